"""What it costs to look after a large store: plans of gc, evict and compact, and a collection, in time and memory.

python bench/maintain.py [--entries 1000000] [--dir DIR] [--quick]

Each plan is made in a fresh process, over real packs of small entries. Of all entries a snapshot names 70%: those of
the first packs, so that whole packs go, or spread evenly, so that every pack has to be looked into.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import precook  # noqa: E402
from bench.table import Column, Goal, Section  # noqa: E402
from precook.maintain.compact import plan_compact  # noqa: E402
from precook.maintain.evict import plan_evict  # noqa: E402
from precook.maintain.gc import plan_gc  # noqa: E402
from precook.store.tree import take_apart  # noqa: E402

PER_PACK = 10_000
RECIPE = precook.Recipe("bench", {})
KEPT = 0.7


def make_store(path: Path, entries: int) -> None:
    """So many small entries, the same bytes under every key."""
    parts = take_apart({"x": np.arange(64, dtype=np.uint8)})
    with precook.open(path, flush_bytes=1 << 40, flush_seconds=3600) as store, store.writer() as writer:
        for number in range(entries):
            writer.put_parts(precook.Key(key_of(number)), parts, recipe=RECIPE)
            if number % PER_PACK == PER_PACK - 1:
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
        store.freeze("bench", content)


PLANS: dict[str, Callable[[precook.Store], Any]] = {
    "gc": lambda store: plan_gc(store, grace=0),
    "evict to half": lambda store: plan_evict(store, store.stats().pack_bytes // 2),
    "compact": plan_compact,
}


def child(path: Path, name: str, *, execute: bool) -> None:
    """Make one plan and tell what it took; with `execute`, carry it out."""
    with precook.open(path) as store:
        len(store)
        before = peak()
        started, busy = time.perf_counter(), time.process_time()
        plan = PLANS[name](store)
        planned, busy = time.perf_counter() - started, time.process_time() - busy
        answer = {"plan": planned, "cpu": busy, "memory": peak() - before, "freed": plan.freed, "run": None}
        if execute:
            started = time.perf_counter()
            done = plan.execute()
            answer["run"] = time.perf_counter() - started
            assert done.freed == plan.freed, "the preview is not what was done"
        print(json.dumps(answer))


def peak() -> int:
    """Most memory the process has taken so far, in bytes."""
    # Not getrusage: its maximum begins with that of the process we were forked from.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measured(path: Path, name: str, *, execute: bool = False) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--child", name, "--dir", str(path), *(["--execute"] if execute else [])]
    answer: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def bench(folder: Path, entries: int) -> Section:
    """Make the stores and measure."""
    columns = [
        Column("plan"),
        Column("entries"),
        Column("named by the snapshot"),
        Column("plan, s", ".2f"),
        Column("plan, CPU s", ".2f"),
        Column("bytes of memory per entry", ".0f"),
        Column("run, s", ".2f"),
    ]
    section = Section("maintain", f"{entries:,} entries in packs of {PER_PACK:,}", columns)
    slowest = most = 0.0
    for count in sorted({max(entries // 4, 1), entries}):
        path = folder / f"store-{count}"
        make_store(path, count)
        kept = int(count * KEPT)
        spread = np.sort(np.random.default_rng(0).permutation(count)[:kept])
        for how, numbers in (("the first 70%", np.arange(kept)), ("70%, spread evenly", spread)):
            freeze(path, numbers)
            for name in PLANS if count == entries else ("gc",):
                last = how.endswith("evenly") and name == "gc" and count == entries
                found = measured(path, name)
                ran = measured(path, name, execute=True)["run"] if last else None
                section.rows.append([name, count, how, found["plan"], found["cpu"], found["memory"] / count, ran])
                slowest = max(slowest, found["cpu"]) if name == "gc" else slowest
                most = max(most, found["memory"] / count)
                if last:
                    break  # the store is not what it was
        shutil.rmtree(path)
    section.goals.append(Goal(f"plan a collection of {entries:,} entries, CPU", slowest, 10, "under", ".1f", " s"))
    section.goals.append(Goal("memory of a plan per entry", most, 512, "under", ".0f", " bytes"))
    section.notes.append("fresh processes; memory is the growth of the peak while the plan is made.")
    return section


def main() -> None:
    """Run the benchmark, or one measurement of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="few entries: does it run at all?")
    parser.add_argument("--dir", type=Path, help="where to work; a temporary directory without it")
    parser.add_argument("--child", choices=PLANS, help=argparse.SUPPRESS)
    parser.add_argument("--execute", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.dir, options.child, execute=options.execute)
        return
    folder = Path(tempfile.mkdtemp(prefix="precook-bench-", dir=options.dir))
    try:
        print(bench(folder, 20_000 if options.quick else options.entries))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
