"""Batch assembly: entries copied into one buffer per tensor, against a bare copy of the same rows from memory."""

from __future__ import annotations

import random
import time
from typing import Any, Literal

import numpy as np

import precook
from bench import measure
from bench.layout import Precook, sample_keys
from bench.samples import FIELDS, Samples
from bench.table import Column, Goal, Section
from bench.work import DifferentError, Run

BATCH = 16
GB = 1e9
_GOALS: tuple[tuple[bool | Literal["always"], float], ...] = ((False, 0.95), ("always", 0.75))


def batch(run: Run) -> Section:
    """`store.stack` with checksums off and on; floor and precook take turns batch by batch."""
    samples = run.samples("large")
    run.written(Precook, "large")
    columns = [Column("what"), Column("GB/s", ".2f"), Column("batches/s"), Column("of memcpy", ".2f")]
    section = Section("batch", f"Batch assembly: {BATCH} large samples into one buffer per tensor", columns)
    for verify, wanted in _GOALS:
        floors, stacks = _alternate(run, samples, verify)
        ratio = measure.median_ratio(floors, stacks)
        label = f"verify_reads={verify}"
        size = _batches(len(samples)) * BATCH * sum(samples.trees[0][name].nbytes for name in FIELDS["large"])
        for name, times, share in (
            (f"floor: memcpy, beside {label}", floors, 1.0),
            (f"precook, {label}", stacks, ratio),
        ):
            passed = measure.median(times)
            section.rows.append([name, size / passed / GB, _batches(len(samples)) / passed, share])
        section.goals.append(Goal(f"batch assembly, {label}, share of memcpy", ratio, wanted, unit=""))
    section.notes.append(
        "memcpy: np.copyto of the same rows in the same random order, from arrays in memory into buffers as fresh as "
        f"precook's; median of {len(floors)} passes."
    )
    return section


def _alternate(run: Run, samples: Samples, verify: bool | Literal["always"]) -> tuple[list[float], list[float]]:  # noqa: FBT001
    """Seconds for all batches, pass by pass: the floor's and precook's."""
    rows = [{name: tree[name].numpy() for name in FIELDS["large"]} for tree in samples.trees]
    keys = sample_keys("large", len(samples))
    draw = random.Random(0)
    order = list(range(len(samples)))
    floors, stacks = [], []
    with precook.open(run.path(Precook, "large"), verify_reads=verify) as store:
        for number in range(2 * run.repeats + 2):
            draw.shuffle(order)
            floor = stack = 0.0
            for at in range(_batches(len(samples))):
                chosen = order[at * BATCH : (at + 1) * BATCH]
                asked = [keys[i] for i in chosen]
                # Each goes first in every other batch: the second finds freed memory that is still mapped.
                for first in (at % 2, 1 - at % 2):
                    start = time.perf_counter()
                    made = _copied(rows, chosen) if first else store.stack(asked)
                    passed = time.perf_counter() - start
                    if first:
                        floor += passed
                    else:
                        stack += passed
                        if number == 0 and at == 0:
                            _compare(made, _copied(rows, chosen))
                    del made
            if number:  # the first pass is precook's first read of every entry
                floors.append(floor)
                stacks.append(stack)
    return floors, stacks


def _copied(rows: list[dict[str, Any]], chosen: list[int]) -> dict[str, Any]:
    made = {name: np.empty((BATCH, *array.shape), array.dtype) for name, array in rows[0].items()}
    for place, number in enumerate(chosen):
        for name, array in rows[number].items():
            np.copyto(made[name][place], array)
    return made


def _compare(found: Any, wanted: dict[str, Any]) -> None:
    if not all(np.array_equal(found[name].numpy(), array) for name, array in wanted.items()):
        message = "a stack differs from the samples it was made of"
        raise DifferentError(message)


def _batches(count: int) -> int:
    return count // BATCH
