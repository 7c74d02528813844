"""Ten million entries: how long a store takes to open and to say which keys it lacks, and in how much memory.

The packs are empty files with the right names; their rows enter the index through the same functions as real ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench import measure
from bench.script import ROOT
from bench.table import Column, Goal, Section
from bench.work import Run, child_environment
from precook.store.format.pack import NO_RECIPE, Head, Table, TextColumn
from precook.store.index.index import Index
from precook.store.layout import Layout, create_store

PER_PACK = 160
"""Entries of a 64 MiB pack at 400 kB each: the most packs, and so the slowest open, that one would have."""
_GIB = 1 << 30


def index10m(run: Run, entries: int) -> Section:
    """Make the index, then open it and resolve keys in fresh processes."""
    folder = run.folder / "index10m"
    wanted = min(1_000_000, entries)
    start = time.perf_counter()
    make_store(folder, entries, wanted)
    made = time.perf_counter() - start
    size = Layout(folder).index.stat().st_size
    columns = [
        Column("page cache"),
        Column("open, s", ".3f"),
        Column(f"resolve {wanted:,} keys, s", ".2f"),
        Column("resident, MiB"),
        Column("peak, MiB"),
        Column("of it the caller's keys, MiB"),
    ]
    packs = -(-entries // PER_PACK)
    section = Section("index", f"{entries:,} entries in {packs:,} packs, an index of {size / 1e6:,.0f} MB", columns)
    found: dict[str, list[dict[str, float]]] = {"warm": [], "cold": []}
    for _ in range(run.repeats):
        for name, answers in found.items():
            if name == "cold":
                how = measure.drop_cache(folder)
            answers.append(_child(folder))
    fields = ("open", "resolve", "resident", "peak", "keys")
    for name, answers in found.items():
        medians = [measure.median(answer[field] for answer in answers) for field in fields]
        section.rows.append([name, *medians[:2], *(value / (1 << 20) for value in medians[2:])])
    warm = {field: measure.median(answer[field] for answer in found["warm"]) for field in fields}
    section.goals += [
        Goal(f"open {entries:,} entries", warm["open"], 1, "under", ".3f", " s"),
        Goal(f"resolve {wanted:,} keys, half of them present", warm["resolve"], 5, "under", ".2f", " s"),
        Goal("peak resident memory", warm["peak"] / _GIB, 1, "under", ".2f", " GiB"),
    ]
    section.notes.append(
        f"fresh processes that open the store and call store.missing once; cold: {how}; "
        f"the index was made in {made:.0f} s by precook's own functions, from packs that exist in name only."
    )
    return section


def make_store(folder: Path, entries: int, wanted: int) -> None:
    """A store whose index has this many entries, and a file of keys to ask for: half of them present."""
    layout = Layout(folder)
    folder.mkdir(parents=True)
    marker = create_store(layout)
    rng = np.random.default_rng(entries)
    asked: list[npt.NDArray[np.uint8]] = []

    def heads(_: object) -> Iterator[Head]:
        taken = 0
        for first in range(0, entries, PER_PACK):
            rows = min(PER_PACK, entries - first)
            keys = np.frombuffer(rng.bytes(32 * rows), np.uint8).reshape(rows, 32)
            share = wanted // 2 * (first + rows) // entries - taken
            taken += share
            asked.append(keys[:share])
            yield _head(rng.bytes(32).hex(), keys)

    index = Index(layout, marker.id, heads, read_only=False)
    index.rebuild()
    for name in index.pack_ids():
        path = layout.pack(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    index.close()
    absent = np.frombuffer(rng.bytes(32 * (wanted - wanted // 2)), np.uint8).reshape(-1, 32)
    rng.permutation(np.concatenate([*asked, absent])).tofile(keys_of(folder))


def keys_of(folder: Path) -> Path:
    """The keys to ask for, beside the store."""
    return folder.with_suffix(".keys")


def _head(name: str, keys: npt.NDArray[np.uint8]) -> Head:
    """A head as the index sees it: keys and sizes, no leaves."""
    rows = len(keys)
    table = Table(
        rows=rows,
        skeleton=b"",
        build=None,  # type: ignore[arg-type]
        keys=keys,
        checksums=np.zeros((rows, 16), np.uint8),
        recipes=np.zeros(rows, np.uint16),
        leaves=(),
        values=TextColumn(b"[]", np.arange(rows + 1, dtype=np.uint32) * 393_216),
        labels=TextColumn(b"null", None),
    )
    return Head(name, int(time.time()), (table,), (), (NO_RECIPE,), 0, 0)


def _child(folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.resolve", str(folder), str(keys_of(folder))]
    done = subprocess.run(command, cwd=ROOT, env=child_environment(), check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer
