"""What it costs to look after a large store: plans of gc, evict and compact, a collection, and a compaction.

python bench/maintain.py [--entries 1000000] [--dir DIR] [--quick]

Each plan is made in a fresh process, over real packs of small entries, of a tenth as many and of all: a plan's own
memory should not grow with them. Of all entries a snapshot names 70%: those of the first packs, so that whole packs go,
or spread evenly, so that every pack has to be looked into. The compaction is of as many entries in packs of a hundred.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

import numpy as np

import precook
from bench.measure import peak_resident, resident
from bench.script import facts, fill, folder, parser, tell
from bench.table import Column, Goal, Section
from precook.maintain.compact import plan_compact
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from precook.store.snapshot_content import SnapshotContent
from precook.store.tree import take_apart

PER_PACK = 10_000
PER_SMALL_PACK = 100
RECIPE = precook.Recipe("bench", {})
KEPT = 0.7
MB = 1e6
_MOMENT = 0.002
"""Seconds between two looks at the memory."""


def make_store(path: Path, entries: int, per_pack: int = PER_PACK) -> None:
    """So many small entries, the same bytes under every key."""
    parts = take_apart({"x": np.arange(64, dtype=np.uint8)})
    with precook.open(path, flush_bytes=1 << 40, flush_seconds=3600) as store, store.writer() as writer:
        for number in range(entries):
            writer.put_parts(precook.Key(key_of(number)), parts, recipe=RECIPE)
            if number % per_pack == per_pack - 1:
                writer.flush()


def key_of(number: int) -> bytes:
    """A key for each number, quickly."""
    return precook.digest(number.to_bytes(8, "little")).bytes


def freeze(path: Path, numbers: np.ndarray) -> None:
    """A snapshot that names these entries."""
    keys = np.frombuffer(b"".join(key_of(number) for number in numbers.tolist()), np.uint8).reshape(-1, 32)
    rows = np.arange(len(keys), dtype=np.int32)
    content = {
        "format": 1,
        "dataset": "bench",
        "image": {"resolutions": [512], "variations": 1, "pick": "one"},
        "concepts": [{"name": "all", "loss_weight": 1.0, "repeats": 1.0, "samples": None}],
        "encoders": {"latent": {"input": "image", "recipe": "[]"}},
        "samples": {"id": keys, "image": keys, "concept": rows * 0},
        "pictures": {
            "sample": rows,
            "target": np.zeros((len(keys), 2), np.int32),
            "size": np.ones((len(keys), 2), np.int32),
        },
        "picture_keys": {"latent": keys},
        "lines": {"sample": rows[:0]},
        "line_keys": {},
        "empty_keys": {},
    }
    with precook.open(path) as store:
        store.freeze("bench", SnapshotContent.of(content))


PLANS: dict[str, Callable[[precook.Store], Any]] = {
    "gc": lambda store: plan_gc(store, grace=0),
    "evict to half": lambda store: plan_evict(store, store.internals().index.pack_bytes() // 2),
    "compact": plan_compact,
}


def child(path: Path, name: str, *, execute: bool) -> None:
    """Make one plan and tell what it took; with `execute`, carry it out."""
    with precook.open(path) as store:
        len(store)
        watch = Watch()
        started, busy = time.perf_counter(), time.process_time()
        plan = PLANS[name](store)
        planned, busy = time.perf_counter() - started, time.process_time() - busy
        answer = {"plan": planned, "cpu": busy, "memory": watch.growth(), "freed": plan.freed, "run": None}
        if execute:
            started = time.perf_counter()
            done = plan.execute()
            answer["run"] = time.perf_counter() - started
            assert done.freed == plan.freed, "the preview is not what was done"
        answer["peak"] = peak_resident()
        print(json.dumps(answer))


class Watch:
    """Looks every few milliseconds how much memory of its own the process holds: the system counts no peak of that."""

    def __init__(self) -> None:
        self._before = self._most = resident().own
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_MOMENT):
            self._most = max(self._most, resident().own)

    def growth(self) -> int:
        """The most bytes that there were more than at first."""
        self._over.set()
        self._thread.join()
        return max(self._most, resident().own) - self._before


def measured(path: Path, name: str, *, execute: bool = False) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", name, "--dir", str(path), *(["--execute"] if execute else [])]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def bench(base: Path, entries: int) -> Section:
    """Make the stores and measure."""
    columns = [
        Column("plan"),
        Column("entries"),
        Column("named by the snapshot"),
        Column("plan, s", ".2f"),
        Column("plan, CPU s", ".2f"),
        Column("own memory, MB", ".1f"),
        Column("run, s", ".2f"),
    ]
    section = Section("maintain", f"{entries:,} entries in packs of {PER_PACK:,}", columns)
    slowest = 0.0
    most: dict[int, int] = {}
    small = max(entries // 10, 1)
    for count in (small, entries):
        path = base / f"store-{count}"
        make_store(path, count)
        kept = int(count * KEPT)
        spread = np.sort(np.random.default_rng(0).permutation(count)[:kept])
        for how, numbers in (("the first 70%", np.arange(kept)), ("70%, spread evenly", spread)):
            freeze(path, numbers)
            for name in PLANS if count == entries else ("gc",):
                last = how.endswith("evenly") and name == "gc" and count == entries
                found = measured(path, name)
                ran = measured(path, name, execute=True)["run"] if last else None
                section.rows.append([name, count, how, found["plan"], found["cpu"], found["memory"] / MB, ran])
                if name == "gc":
                    slowest = max(slowest, found["cpu"])
                    most[count] = max(most.get(count, 0), found["memory"])
                if last:
                    break  # the store is not what it was
        shutil.rmtree(path)
    path = base / "store-small-packs"
    make_store(path, entries, PER_SMALL_PACK)
    compacted = measured(path, "compact", execute=True)
    shutil.rmtree(path)
    section.goals.append(Goal(f"plan a collection of {entries:,} entries, CPU", slowest, 10, "under", ".1f", " s"))
    told = f"own memory of such a plan, {entries:,} entries against {small:,}"
    section.goals.append(Goal(told, most[entries] / max(most[small], 1), 2, "under", ".1f"))
    packs = entries // PER_SMALL_PACK
    told = f"memory of a process that compacts {entries:,} entries in {packs:,} packs, all of it"
    section.goals.append(Goal(told, compacted["peak"] / MB, 200, "under", ".0f", " MB"))
    section.notes.append(
        "fresh processes; own memory is the most that a process holds while it plans beyond what it held before, "
        "mapped files aside: pages of snapshots that the system takes back when it needs them."
    )
    return section


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, or one measurement of it."""
    options = _parse(arguments)
    if options.child:
        child(options.dir, options.child, execute=options.execute)
        return 0
    tell(facts())
    with folder(options.dir) as made:
        print(bench(made, options.entries))
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--entries", type=int, help="of the larger store (default: 1000000)")
    asked.add_argument("--child", choices=PLANS, help=argparse.SUPPRESS)
    asked.add_argument("--execute", action="store_true", help=argparse.SUPPRESS)
    return fill(asked.parse_args(arguments), full={"entries": 1_000_000}, quick={"entries": 20_000})


if __name__ == "__main__":
    sys.exit(main())
