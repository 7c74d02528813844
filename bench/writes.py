"""Writing: every layout with equal durability, and precook against the disk itself."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np

from bench import measure
from bench.layout import Precook
from bench.samples import FIELDS, Kind, Samples
from bench.table import Cell, Column, Goal, Section
from bench.work import Run, stored

GB = 1e9
_BUFFERS = 512
_RAW = "floor: raw sequential write + fsync"
_ENTRY_BYTES = 64
_SHARE = 1.01


def write(run: Run, kind: Kind) -> Section:
    """Store all samples in every layout, durably."""
    samples = run.samples(kind)
    raw = run.folder / "raw"
    times = measure.interleave(
        {_RAW: partial(raw_write, raw, samples)} | {peer.name: partial(run.write, peer, kind) for peer in stored(run)},
        run.repeats,
    )
    raw.unlink()
    columns = [
        Column("layout"),
        Column("write, s", ",.2f"),
        Column("GB/s", ".2f"),
        Column("samples/s"),
        Column("MB on disk", ",.1f"),
        Column("files"),
    ]
    section = Section("write", f"Write, {kind}: {len(samples):,} samples, {samples.payload / GB:.2f} GB", columns, kind)
    for name, taken in times.items():
        passed = measure.median(taken)
        row: list[Cell] = [name, passed, samples.payload / passed / GB, len(samples) / passed]
        peer = next((peer for peer in stored(run) if peer.name == name), None)
        if peer is None:
            section.rows.append([*row, samples.payload / 1e6, 1])
        else:
            use = measure.disk_use(run.path(peer, kind))
            section.rows.append([*row, use.nbytes / 1e6, use.files])
    over = overhead(run, kind)
    section.goals.append(over)
    section.notes.append(
        "durable when the clock stops: precook, LMDB and SQLite sync each commit, all others are synced once at the "
        "end (syncfs, the cheapest way); the first and last samples of each were read back and compared."
    )
    return section


def overhead(run: Run, kind: Kind) -> Goal:
    """What precook's packs take beyond the payload, per entry, against what they may."""
    samples = run.samples(kind)
    run.written(Precook, kind)
    size = measure.disk_use(run.path(Precook, kind) / "packs").nbytes
    allowed = samples.payload * (_SHARE - 1) + _ENTRY_BYTES * len(samples)
    return Goal(
        f"precook's packs, {kind}: bytes per entry beyond the payload",
        (size - samples.payload) / len(samples),
        allowed / len(samples),
        "at most",
        ",.0f",
        " bytes",
    )


def build(run: Run, kind: Kind) -> Section:
    """Store samples that cost nothing to make, against writing the same bytes to one file."""
    samples = run.samples(kind)
    raw = run.folder / "raw"
    times = measure.interleave(
        {"raw": partial(raw_write, raw, samples), "precook": partial(run.write, Precook, kind)}, 2 * run.repeats + 1
    )
    raw.unlink()
    ratio = measure.median_ratio(times["raw"], times["precook"])
    columns = [Column("what"), Column("s", ".2f"), Column("GB/s", ".2f"), Column("of raw", ".2f")]
    section = Section("build", f"Build with a free encoder, {kind}: {len(samples):,} samples", columns, kind)
    for name, label, share in (("raw", _RAW, 1.0), ("precook", "precook writer", ratio)):
        passed = measure.median(times[name])
        section.rows.append([label, passed, samples.payload / passed / GB, share])
    if kind == "large":
        section.goals.append(
            Goal("build with a free encoder, share of raw sequential write + fsync", ratio, 0.70, unit="")
        )
    else:
        section.notes.append("the goal is set for entries of training size: a 3 kB entry costs its Python call")
    section.notes.append(f"median of {len(times['raw'])} ratios of runs in turn")
    return section


def raw_write(path: Path, samples: Samples) -> float:
    """Write the tensors' bytes to one file as fast as the system takes them, and sync it once."""
    buffers = [
        memoryview(tree[name].numpy().reshape(-1).view(np.uint8))
        for tree in samples.trees
        for name in FIELDS[samples.kind]
    ]
    path.unlink(missing_ok=True)
    measure.settle(path.parent)

    def action() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for at in range(0, len(buffers), _BUFFERS):
                _write_all(descriptor, buffers[at : at + _BUFFERS])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    return measure.seconds(action)


def _write_all(descriptor: int, buffers: list[memoryview]) -> None:
    if os.writev(descriptor, buffers) != sum(buffer.nbytes for buffer in buffers):
        message = "the disk took only a part of the bytes"
        raise OSError(message)
