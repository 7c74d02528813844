"""The feed benchmark: batches from `feed.epoch` beside a bare copy and beside DataLoaders over its peers.

`python bench/feed.py` runs everything, `--quick` is a smoke run, `--only assembly,growth` runs some sections.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

if not __package__:
    import script  # noqa: F401 - finds the rest

import numpy as np
import torch

import precook
from bench import measure, peers
from bench.feedset import DATASET, store_entries, store_samples
from bench.layout import Peer
from bench.perfile import OnePt
from bench.samples import FIELDS, KINDS, Kind, Tree
from bench.script import ROOT, facts, fill, folder, parser, some_of, tell
from bench.table import Column, Goal, Section
from bench.ways import BATCH, PEERS, WORKERS, FeedLoaderWay, FeedWay, PeerWay, Way
from bench.work import DifferentError, Run, child_environment

SECTIONS = ("assembly", "warm", "cold", "growth")
GB, MB = 1e9, 1e6
_GOALS: tuple[tuple[bool | Literal["always"], float], ...] = ((False, 0.95), ("always", 0.75))
_CHILD_SECONDS = 1800
_MOST = 100_000
"""Samples of an epoch that the growth section reads, at most."""


def main(arguments: list[str] | None = None) -> int:
    """Run the sections asked for."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    if options.child:
        child(options.child)
        return 0
    present, missing = peers.usable()
    present = [peer for peer in present if peer in PEERS]
    missing = {name: reason for name, reason in missing.items() if name in {peer.name for peer in PEERS}}
    gc.freeze()
    tell(facts(**peers.told(missing)))
    with folder(options.dir) as made:
        run = Run.asked(made, options, present)
        for section in _sections(run, options):
            print(section, flush=True)
    return 0


def _sections(run: Run, options: argparse.Namespace) -> Iterator[Section]:
    for kind in options.kinds:
        if set(options.only) & {"warm", "cold"} or (kind == "large" and "assembly" in options.only):
            store_samples(_store(run, kind), run.samples(kind))
        if kind == "large" and "assembly" in options.only:
            yield assembly(run)
        if "warm" in options.only:
            yield warm(run, kind)
        if "cold" in options.only:
            yield cold(run, kind)
        run.clear(kind)
    if "growth" in options.only:
        yield growth(run, options.growth)


def assembly(run: Run) -> Section:
    """The feed against a bare copy of the same rows: one thread, batch by batch in turn; then as it is by default."""
    samples = run.samples("large")
    rows = {name: [tree[name].numpy() for tree in samples.trees] for name in FIELDS["large"]}
    size = sum(column[0].nbytes for column in rows.values())
    columns = [Column("what"), Column("GB/s", ".2f"), Column("items/s"), Column("of memcpy", ".2f")]
    section = Section("assembly", f"Batch assembly by a feed: {BATCH['large']} large samples a batch", columns)
    for verify, wanted in _GOALS:
        way = FeedWay(_store(run, "large"), "large", len(samples), verify=verify, threads=0)
        floors, feeds = _alternate(way, rows, passes=2 * run.repeats + 1)
        ratio = measure.median_ratio(floors, feeds)
        label = f"verify_reads={verify}"
        for name, times, share in (
            (f"floor: memcpy, one thread, beside {label}", floors, 1.0),
            (f"precook, threads=0, {label}", feeds, ratio),
        ):
            rate = len(samples) / measure.median(times)
            section.rows.append([name, rate * size / GB, rate, share])
        section.goals.append(Goal(f"feed, one thread, {label}, share of memcpy", ratio, wanted, unit=""))
        threaded = FeedWay(_store(run, "large"), "large", len(samples), verify=verify)
        floors, feeds = _in_turn(threaded, rows, passes=2 * run.repeats + 1)
        rate = len(samples) / measure.median(feeds)
        ratio = measure.median_ratio(floors, feeds)
        section.rows.append([f"precook, threads=2 (the default), {label}", rate * size / GB, rate, ratio])
    floors, copies = _from_file(run.folder / "rows", rows, passes=2 * run.repeats + 1)
    rate = len(samples) / measure.median(copies)
    section.rows.append(
        ["the same copy, one thread, from a mapped file", rate * size / GB, rate, measure.median_ratio(floors, copies)]
    )
    section.notes.append(
        "memcpy: np.copyto of the same rows in the same order, from arrays in memory into buffers that are kept; "
        "from a mapped file: what the system's page cache gives to anybody; the "
        f"feed's batches also carry sample, concept, caption and weight. Median of {len(floors)} passes."
    )
    return section


def _alternate(way: FeedWay, rows: dict[str, list[Any]], *, passes: int) -> tuple[list[float], list[float]]:
    """Seconds for all batches, pass by pass: the floor's and the feed's, each first in every other batch.

    A pass counts as all its batches at the pace of the one in the middle: those during which others had the processor
    drop out.
    """
    way.open()
    floors, feeds = [], []
    try:
        for epoch in range(passes + 1):
            floor, feed = [], []
            plan, coming = way.feed.schedule(epoch), iter(way.feed.epoch(epoch))
            kept = _buffers(rows)
            for step in range(plan.steps):
                chosen = plan.items.samples[plan.batch(step, 0)].tolist()
                batch = None
                for copying in (step % 2, 1 - step % 2):
                    start = time.perf_counter()
                    if copying:
                        _copy(rows, chosen, kept)
                        floor.append(time.perf_counter() - start)
                    else:
                        batch = next(coming)
                        feed.append(time.perf_counter() - start)
                if epoch == 0 and step == 0:
                    _compare(batch, rows, chosen)
            coming.close()
            if epoch:  # the first one is the first read of every entry
                floors.append(measure.median(floor) * plan.steps)
                feeds.append(measure.median(feed) * plan.steps)
    finally:
        way.close()
    return floors, feeds


def _in_turn(way: FeedWay, rows: dict[str, list[Any]], *, passes: int) -> tuple[list[float], list[float]]:
    """The same for a feed with threads of its own, which nothing may run beside: epoch by epoch."""
    way.open()
    floors, feeds = [], []
    try:
        way.epoch(0)
        for epoch in range(1, passes + 1):
            plan = way.feed.schedule(epoch)
            batches = [plan.items.samples[plan.batch(step, 0)].tolist() for step in range(plan.steps)]
            kept = _buffers(rows)
            floors.append(measure.seconds(lambda: [_copy(rows, chosen, kept) for chosen in batches]))  # noqa: B023
            feeds.append(measure.seconds(lambda: way.epoch(epoch)))  # noqa: B023
    finally:
        way.close()
    return floors, feeds


def _from_file(path: Path, rows: dict[str, list[Any]], *, passes: int) -> tuple[list[float], list[float]]:
    """Seconds to copy all rows at random, from memory and from a mapped file that the system holds in memory."""
    with path.open("wb") as file:
        for column in rows.values():
            for row in column:
                file.write(row.data)
    mapped: dict[str, list[Any]] = {}
    begin = 0
    for name, column in rows.items():
        shape, dtype = (len(column), *column[0].shape), column[0].dtype
        mapped[name] = list(np.memmap(path, dtype, "r", begin, shape))
        begin += sum(row.nbytes for row in column)
    order = np.random.default_rng(0).permutation(len(next(iter(rows.values())))).tolist()
    size = BATCH["large"]
    batches = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    kept = _buffers(rows)
    floors, copies = [], []
    for number in range(passes + 1):
        for source, times in ((rows, floors), (mapped, copies)):
            taken = measure.seconds(lambda: [_copy(source, chosen, kept) for chosen in batches])  # noqa: B023
            if number:  # the first one maps the pages
                times.append(taken * len(order) / (size * len(batches)))
    path.unlink()
    return floors, copies


def _buffers(rows: dict[str, list[Any]]) -> dict[str, Any]:
    # Filled, so that no page of them is new when the clock runs.
    return {name: np.ones((BATCH["large"], *column[0].shape), column[0].dtype) for name, column in rows.items()}


def _copy(rows: dict[str, list[Any]], chosen: list[int], kept: dict[str, Any]) -> None:
    for name, column in rows.items():
        made = kept[name]
        for place, number in enumerate(chosen):
            np.copyto(made[place], column[number])


def _compare(batch: Any, rows: dict[str, list[Any]], chosen: list[int]) -> None:
    found = {"latent": batch["latent"], "prompt": batch["prompt"]["hidden"]}
    for name, tensor in found.items():
        if not np.array_equal(tensor.numpy(), np.stack([rows[name][number] for number in chosen])):
            message = "a batch differs from the samples it was made of"
            raise DifferentError(message)


def warm(run: Run, kind: Kind) -> Section:
    """Everybody has read everything once: samples per second."""
    ways = _ways(run, kind)
    # Workers start first: an LMDB that is open here could not be opened in a process forked from here.
    for way in sorted(ways, key=lambda way: not way.workers):
        way.open()
        if way.epoch(0) != run.counts[kind]:
            message = f"{way.name} did not give every sample once"
            raise DifferentError(message)
    epochs = {way.name: iter(range(1, 1_000_000)) for way in ways}
    found = measure.interleave(
        {
            way.name: partial(measure.rate, partial(_next_epoch, way, epochs[way.name]), at_least=run.least)
            for way in ways
        },
        run.repeats,
    )
    for way in ways:
        way.close()
    return _section(run, kind, "warm", ways, found, None)


def _next_epoch(way: Way, epochs: Iterator[int]) -> int:
    return way.epoch(next(epochs))


def cold(run: Run, kind: Kind) -> Section:
    """From a cold page cache, in fresh processes: from opening to the end of the first epoch."""
    ways = [way for way in _ways(run, kind) if not isinstance(way, FeedLoaderWay)]
    found: dict[str, list[float]] = {way.name: [] for way in ways}
    how = ""
    for _ in range(run.repeats):
        for way in ways:
            peer = way.peer.__name__ if isinstance(way, PeerWay) else ""
            given = {"do": "cold", "folder": str(way.folder), "kind": kind, "count": way.count, "peer": peer}
            answer = _child(given | {"workers": way.workers})
            found[way.name].append(answer["rate"])
            how = answer["how"]
    return _section(run, kind, "cold", ways, found, how)


def _ways(run: Run, kind: Kind) -> list[Way]:
    count = run.counts[kind]
    ways: list[Way] = [FeedWay(_store(run, kind), kind, count)]
    ways += [FeedLoaderWay(_store(run, kind), kind, count, workers) for workers in (0, WORKERS)]
    for peer in run.taking_part:
        run.written(peer, kind)
        ways += [PeerWay(peer, run.path(peer, kind), kind, count, workers) for workers in (0, WORKERS)]
    return ways


def _section(
    run: Run, kind: Kind, name: str, ways: list[Way], found: dict[str, list[float]], how: str | None
) -> Section:
    samples = run.samples(kind)
    size = samples.payload / len(samples)
    pts = _best(found, OnePt.name)
    columns = [Column("way"), Column("items/s"), Column("GB/s", ".2f"), Column("x .pt", ",.1f")]
    section = Section(name, f"Batches of {BATCH[kind]}, {name}, {kind}: {len(samples):,} samples", columns, kind)
    for way in ways:
        rates = found[way.name]
        rate = measure.median(rates)
        section.rows.append([way.name, rate, rate * size / GB, measure.median_ratio(rates, pts) if pts else None])
    ours = found[ways[0].name]
    others = {way.peer.name: _best(found, way.peer.name) for way in ways if isinstance(way, PeerWay)}
    if others:
        ratios = {peer: measure.median_ratio(ours, rates) for peer, rates in others.items()}
        nearest = min(ratios, key=lambda peer: ratios[peer])
        told = f"{name}, {kind}, feed.epoch against the best peer ({nearest})"
        section.goals.append(Goal(told, ratios[nearest], 1.1))
    if how:
        section.notes.append(f"page cache dropped with {how}; opening, workers and checksums are on the clock.")
    else:
        section.notes.append("random order, but for WebDataset; of each peer the better of its two rows counts.")
    return section


def _best(found: dict[str, list[float]], peer: str) -> list[float]:
    """The rates of a peer's better way."""
    of_peer = [rates for name, rates in found.items() if name.startswith(f"{peer}, ")]
    return max(of_peer, key=measure.median, default=[])


def growth(run: Run, counts: list[int]) -> Section:
    """From thousands to a million samples: what the start costs, in time and memory, and whether reading slows down."""
    columns = [
        Column("samples"),
        Column("open, s", ".2f"),
        Column("feed, s", ".2f"),
        Column("feed, CPU s", ".2f"),
        Column("first batch, s", ".2f"),
        Column("own memory, MB"),
        Column("first epoch, items/s"),
        Column("again, items/s"),
    ]
    section = Section("growth", "Growth: two small entries a sample (256 bytes, and 8 to 31 token ids)", columns)
    made = []
    for count in counts:
        folder = run.folder / f"growth-{count}"
        made.append(store_entries(folder, {"latent": "image", "tokens": "text"}, count, _small_entries(count)))
        answers = [_child({"do": "growth", "folder": str(folder), "most": _MOST}) for _ in range(run.repeats)]
        fields = ("open", "feed", "busy", "batch", "memory", "first", "again")
        section.rows.append([f"{count:,}", *(measure.median(one[field] for one in answers) for field in fields)])
        shutil.rmtree(folder)
    most = section.rows[-1]
    section.goals += [
        Goal(f"open a feed of {most[0]} samples, CPU", most[3], 3, "at most", ".1f", " s"),
        Goal("own memory per entry", most[5] * MB / (2 * counts[-1]), 150, "at most", ".0f", " bytes"),
    ]
    section.notes += [
        f"fresh processes, warm page cache; batches of {BATCH['small']}; an epoch is read up to {_MOST:,} samples.",
        (
            "open: the store and the snapshot; feed: every key looked up and confirmed by its pack; first batch: the "
            "epoch's order included. Memory: what the process holds more than before, mapped files aside."
        ),
        f"storing them took {', '.join(f'{seconds:.0f} s' for seconds in made)}.",
    ]
    return section


def _small_entries(count: int) -> Iterator[Tree]:
    random = np.random.default_rng(0)
    latents = random.integers(0, 256, (256, 4, 8, 8), np.uint8)
    tokens = [random.integers(0, 30_000, 8 + number % 24, np.int32) for number in range(256)]
    for number in range(count):
        yield {"latent": latents[number % 256], "tokens": {"ids": tokens[number % 256]}}


def child(asked: dict[str, Any]) -> None:
    """What a fresh process is to measure; prints a line of JSON."""
    gc.freeze()
    print(json.dumps(_grown(asked) if asked["do"] == "growth" else _first_epoch(asked)))


def _first_epoch(asked: dict[str, Any]) -> dict[str, Any]:
    kind, folder = cast("Kind", asked["kind"]), Path(asked["folder"])
    chosen: list[type[Peer]] = [peer for peer in PEERS if peer.__name__ == asked["peer"]]
    for peer in chosen:
        peer.load()

    def way() -> Way:
        if chosen:
            return PeerWay(chosen[0], folder, kind, asked["count"], asked["workers"])
        return FeedWay(folder, kind, asked["count"])

    # Once through everything that is imported on first use.
    before = way()
    before.open()
    next(iter(before.batches(0)))
    before.close()
    how = measure.drop_cache(folder)
    one = way()
    start = time.perf_counter()
    one.open()
    count = one.epoch(0)
    rate = count / (time.perf_counter() - start)
    one.close()
    return {"rate": rate, "how": how}


def _grown(asked: dict[str, Any]) -> dict[str, Any]:
    importlib.import_module("precook.feed.feed")
    before = measure.resident().own
    start = time.perf_counter()
    with precook.open(asked["folder"]) as store:
        snapshot = store.snapshot(DATASET)
        opened, busy = time.perf_counter(), time.process_time()
        with snapshot.feed(batch_size=BATCH["small"]) as feed:
            fed, busy = time.perf_counter(), time.process_time() - busy
            next(iter(feed.epoch(0)))
            begun = time.perf_counter()
            first = _rate(feed, 1, asked["most"])
            again = _rate(feed, 1, asked["most"])
            memory = measure.resident().own - before
    return {
        "open": opened - start,
        "feed": fed - opened,
        "busy": busy,
        "batch": begun - fed,
        "memory": memory / MB,
        "first": first,
        "again": again,
    }


def _rate(feed: Any, epoch: int, most: int) -> float:
    feed.schedule(epoch)
    count, start = 0, time.perf_counter()
    for batch in feed.epoch(epoch):
        count += len(batch["sample"])
        if count >= most:
            break
    return count / (time.perf_counter() - start)


def _child(asked: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.feed", "--child", json.dumps(asked)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=child_environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_CHILD_SECONDS,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _store(run: Run, kind: Kind) -> Path:
    return run.folder / kind / "feed"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--only", **some_of(SECTIONS))
    asked.add_argument("--kinds", **some_of(KINDS))
    asked.add_argument("--samples", type=int, help="large samples of 393 kB (default: 1000)")
    asked.add_argument("--small-samples", type=int, help="small samples of 3 kB (default: 20000)")
    asked.add_argument("--growth", type=_counts, help="numbers of samples (default: 10000,100000,1000000)")
    asked.add_argument("--repeats", type=int, help="of which medians are taken (default: 3)")
    asked.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    return fill(
        asked.parse_args(arguments),
        full={"samples": 1_000, "small_samples": 20_000, "growth": [10_000, 100_000, 1_000_000], "repeats": 3},
        quick={"samples": 48, "small_samples": 300, "growth": [500], "repeats": 1},
    )


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
