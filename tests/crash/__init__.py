"""Fault injection: what a crash, a full disk or a power cut at any system call may leave of a store.

    inject.c      the library that counts, breaks and records system calls (LD_PRELOAD)
    library.py    compiles and steers it; the faults we inject
    children.py   forked children: one per injected point
    trace.py      reads a recorded trace
    disk.py       a strict POSIX model of what a power cut leaves
    power.py      replays a trace on that disk and cuts the power everywhere
    injector.py   one fault at the 1st, 2nd, 3rd … call, until the scenario gets through
    meanwhile.py  one process stands still at a call while another does the same
    full.py       a disk that is full, for real
    users.py      two users of one group
    aftermath.py  what must hold afterwards
    repeatable.py chance and clock, the same in every run: a state that was checked need not be checked again
    scenarios.py  what the store is doing when it happens
    samples.py    entries known by number
    report.py     what a sweep found
    bugs.py       the bugs seeded on purpose, which must be caught
    driver.py     the process all of this runs in, and how to talk to it
    kill_loop.py  kill -9 at random moments
    overlap.py    several processes writing the same keys
    toy.py        a store in forty lines, to test the harness itself
    soak.py       everything at once over one store
    calls.py      one call of each kind, to test the library and the model

`python -m tests.crash` (or `python tests/crash`) runs the long sweep.
"""
