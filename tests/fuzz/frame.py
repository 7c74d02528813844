"""What all fuzz targets share: how inputs are changed, the limits one may take, and what becomes of a finding.

A target is one format that may come from somebody else. It says where to start (`seeds`) and what to do with an input
(`check`); any error that `check` lets out is a finding. This module imports nothing of precook: what is to be watched
by a fuzzer has to be imported after it.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
"""By format: inputs that once led somewhere, replayed by the test suite. Findings are written here, too."""
CPU_SECONDS = 5.0
"""What one input may cost. Of the processor's time: how busy the machine is says nothing about a reader."""
WAIT_SECONDS = 60
"""Longer than this nothing waits for anything, however busy the machine is."""
MEMORY = 1 << 30
"""Bytes that one input may take beyond what the process has already."""
_OWN_FAULT = 99
"""How a process ends whose fuzzer is broken."""
MAX_INPUT = 1 << 18
MAX_POOL = 2000
LARGE = 1000
"""Parts of a document that is not repeated many times any more."""
MAX_FINDINGS = 20
NUMBERS = [
    -1,
    0,
    1,
    2,
    3,
    7,
    255,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    2**70,
    10**400,
]
VALUES: list[Any] = [None, True, False, "", "x", "\x1b[31m", "../..", "é\ud800", 1.5, -0.0, 1e9, 1e308, [], {}, [[]]]
"""What stands in for a part of a JSON document, beside numbers."""


@dataclass(frozen=True)
class Target:
    """One format, and what has to hold for any input."""

    name: str
    seeds: Callable[[], list[bytes]]
    """Good inputs to start from."""
    check: Callable[[bytes], bool]
    """Use an input as a user would; whether it was accepted. Errors that are ours are refusals, others are findings."""
    mutate: Callable[[bytes, random.Random], bytes]
    tokens: tuple[bytes, ...] = ()
    """Words of the format, for a fuzzer that can use them."""

    @property
    def corpus(self) -> Path:
        """Where its inputs are kept."""
        return CORPUS / self.name

    def kept(self) -> list[Path]:
        """Inputs that are kept."""
        return sorted(path for path in self.corpus.glob("*") if path.is_file())


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, removed, repeated or put in."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        place = rng.randrange(len(changed) + 1)
        size = rng.choice([1, 1, 2, 4, 8, 32])
        kind = rng.randrange(5)
        if kind == 0 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[place : place + size]
        elif kind == 2:
            changed[place:place] = changed[place : place + size]
        elif kind == 3:
            changed[place : place + size] = rng.randbytes(size)
        else:
            number = rng.choice(NUMBERS) & (1 << 64) - 1
            changed[place : place + size] = number.to_bytes(8, "little")[:size]
    return bytes(changed[:MAX_INPUT])


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """One or a few parts of a JSON document replaced, removed, repeated, exchanged or changed a little."""
    try:
        form = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, rng)
    if rng.randrange(16) == 0:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        form = _mutate_form(form, rng)
    return json.dumps(form).encode()[:MAX_INPUT]


def _mutate_form(form: Any, rng: random.Random) -> Any:
    parts = list(_parts(form))
    if not parts:
        return copy.deepcopy(rng.choice([*VALUES, *NUMBERS]))
    parent, key = rng.choice(parts)
    kind = rng.randrange(7)
    if kind == 0:
        del parent[key]
    elif kind == 1:
        other, at = rng.choice(parts)
        parent[key] = json.loads(json.dumps(other[at])) if other is not parent else other[at]
    elif kind == 2 and isinstance(parent, list):
        # What is large already grows slowly: a hundred times a hundred times it is the end of this process.
        parent[key:key] = [parent[key]] * rng.choice([1, 1, 3, 100] if len(parts) < LARGE else [1])
    elif kind == 2:
        parent[rng.choice([f"{key}x", "", "$tuple", "x" * 200])] = parent[key]
    elif kind == 3:
        parent[key] = rng.choice([[parent[key]], {"x": parent[key]}, {"$tuple": [parent[key]]}])
    elif kind == 4 and type(parent[key]) in (int, float):
        number = parent[key]
        parent[key] = rng.choice(
            [number + 1, number - 1, -number, number * 2, number / 2 if abs(number) < 2**60 else 0]
        )
    elif kind == 4 and isinstance(parent[key], str):
        text = parent[key].encode("utf-8", "surrogatepass")
        parent[key] = mutate_bytes(text, rng).decode("latin-1")
    else:
        # A copy: what stands for the lists of many documents must not become a part of itself.
        parent[key] = rng.choice(NUMBERS) if rng.randrange(2) else copy.deepcopy(rng.choice(VALUES))
    return form


def _parts(form: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of a document as what holds it and where it stands there; not those of endless nesting."""
    waiting = [form]
    while waiting:
        held = waiting.pop()
        for key in list(held) if isinstance(held, dict) else range(len(held)) if isinstance(held, list) else ():
            yield held, key
            waiting.append(held[key])


@dataclass
class Finder:
    """Runs inputs under the limits and keeps those that break something."""

    target: Target
    home: Path
    """Where the input that is being tried lies: it is there when the process has died of it."""
    known: set[str] = field(default_factory=set)
    """Where errors came from that were met already."""
    tried: int = 0

    @property
    def current(self) -> Path:
        return self.home / "current"

    def try_input(self, data: bytes) -> bool:
        """Whether an input was accepted; an error that is not ours is told and kept."""
        self.tried += 1
        self.current.write_bytes(data)
        try:
            with limited():
                return self.target.check(data)
        except Exception as error:  # noqa: BLE001 - that there is one is what we look for
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
            if name not in self.known:
                self.known.add(name)
                keep(self.target, data, f"{name}: {error}"[:300])
            return False


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """The limits of one input: a process that takes longer dies, and memory beyond them is a MemoryError."""
    signal.alarm(WAIT_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def bound_memory() -> None:
    """Let this process have no more than it has now and what one input may take."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: then the bound is what the machine has
        return
    used = [line for line in status.read_text().splitlines() if line.startswith("VmData")]
    limit = int(used[0].split()[1]) * 1024 + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def keep(target: Target, data: bytes, reason: str) -> Path:
    """Keep an input that broke something, and say so."""
    target.corpus.mkdir(parents=True, exist_ok=True)
    path = target.corpus / f"found-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    print(f"{target.name}: {reason}\n  kept as {path}", file=sys.stderr, flush=True)
    return path


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A folder for all that targets write; in memory where there is such a place: stores sync what they write."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="precook-fuzz-", dir=place) as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


def fuzz(target: Target, seconds: float, inputs: float, seed: int, engine: Any = None) -> int:
    """Try changed inputs, for some time or so many, in a process that may die of them; how many findings there are."""
    end = time.monotonic() + seconds
    before = len(target.kept())
    with home() as folder:
        finder = Finder(target, folder)
        run = 0
        while (left := end - time.monotonic()) > 0 and len(target.kept()) - before < MAX_FINDINGS:
            status = _in_child(lambda run=run, left=left: _work(finder, left, inputs, f"{seed} {run}", engine))
            if status == 0:
                break
            if status == _OWN_FAULT:
                message = f"the fuzzer of {target.name} is broken: see above"
                raise RuntimeError(message)
            run += 1
            keep(target, finder.current.read_bytes(), _cause(status))
    return len(target.kept()) - before


def _cause(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"took more than {CPU_SECONDS:g} s"
    if status == -signal.SIGALRM:
        return f"waited for more than {WAIT_SECONDS} s"
    return f"the process ended with {status}"


def _in_child(work: Callable[[], None]) -> int:
    """Do something in a child; how it ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = _OWN_FAULT
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it is
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _work(finder: Finder, seconds: float, inputs: float, seed: str, engine: Any) -> None:
    pool = [*finder.target.seeds(), *(path.read_bytes() for path in finder.target.kept())]
    for data in pool:
        finder.try_input(data)
    bound_memory()
    if engine is not None:
        _guided(finder, pool, seconds, engine)
        return
    end = time.monotonic() + seconds
    rng = random.Random(seed)
    while time.monotonic() < end and finder.tried < inputs:
        data = finder.target.mutate(rng.choice(pool), rng)
        # What is accepted is a better place to start from than what is not.
        if finder.try_input(data) and len(pool) < MAX_POOL:
            pool.append(data)
    print(f"{finder.target.name}: {finder.tried:,} inputs, {len(pool):,} to start from", flush=True)


def _guided(finder: Finder, pool: list[bytes], seconds: float, engine: Any) -> None:
    """The same by atheris, which sees what code an input reaches."""
    corpus, words = finder.home / "pool", finder.home / "words"
    corpus.mkdir(exist_ok=True)
    for data in pool:
        (corpus / hashlib.sha256(data).hexdigest()).write_bytes(data)
    arguments = ["fuzz", str(corpus), f"-max_total_time={int(seconds) + 1}", f"-max_len={MAX_INPUT}"]
    if finder.target.tokens:
        # Byte by byte: its reader knows no other way to write a quote, a control character or half of a number.
        escaped = ("".join(f"\\x{byte:02x}" for byte in token) for token in finder.target.tokens)
        words.write_text("".join(f'"{token}"\n' for token in escaped))
        arguments.append(f"-dict={words}")
    # Our own limits are stricter, and say more.
    arguments += ["-timeout=600", "-rss_limit_mb=0", "-verbosity=0", "-print_final_stats=1"]

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = engine.Mutate(data, size) if rng.randrange(4) == 0 else finder.target.mutate(bytes(data), rng)
        return bytes(changed[:size])

    engine.Setup(arguments, finder.try_input, custom_mutator=mutate)
    engine.Fuzz()


def replay(target: Target) -> list[str]:
    """Try the seeds and every input that is kept, in a process that may die of them; what is wrong."""
    wrong = []
    with home() as folder:
        told = folder / "told"
        told.touch()

        def work() -> None:
            seeds = {f"seed {number}": seed for number, seed in enumerate(target.seeds())}
            for name, data in seeds.items():
                with limited():
                    if not target.check(data):
                        told.write_text(f"{name} is refused")
                        return
            bound_memory()
            for path in target.kept():
                told.write_text(path.name)
                with limited():
                    target.check(path.read_bytes())
            told.write_text("")

        status = _in_child(work)
        if status or told.read_text():
            wrong.append(f"{target.name}: {told.read_text() or 'a seed'}: {_cause(status)}")
    return wrong
