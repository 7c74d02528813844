"""Reading what the page cache holds: in random order and in the order written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from bench import measure
from bench.layout import Peer, Precook, PrecookAlways
from bench.perfile import OnePt
from bench.samples import Kind, Tree, touch
from bench.table import Column, Goal, Section
from bench.work import Run, nearest_peer

_FIRST = "precook, first pass (reads and checks)"
Use = Callable[[Peer, list[int]], int]


def read(run: Run, kind: Kind) -> Section:
    """Random order, warm: tensors in hand, and every byte touched."""
    order = run.order(kind)
    readers = {peer.name: run.written(peer, kind) for peer in run.taking_part if peer.random}
    readers[PrecookAlways.name] = PrecookAlways(run.path(Precook, kind), kind, len(order))
    opening = {name: _opened(reader) for name, reader in readers.items()}
    for reader in readers.values():
        _get_all(reader, order)
    gets = _interleaved(run, kind, readers, order, _get_all)
    touches = _interleaved(run, kind, readers, order, _touch_all)
    for reader in readers.values():
        reader.close()

    columns = [
        Column("layout"),
        Column("open, ms", ",.1f"),
        Column("get"),
        Column("touch"),
        Column("get, x .pt", ",.1f"),
        Column("touch, x .pt", ",.1f"),
    ]
    section = Section("read", f"Random read, warm, {kind}: samples per second to torch tensors", columns, kind)
    for name, got in gets.items():
        rates = [measure.median(got), measure.median(touches[name])]
        ratios = [measure.median_ratio(found[name], found[OnePt.name]) for found in (gets, touches)]
        section.rows.append([name, opening.get(name), *rates, *ratios])
    for what, found, wanted in (("get", gets, 30), ("touch", touches, 10)):
        times_pt = measure.median_ratio(found[Precook.name], found[OnePt.name])
        section.goals.append(Goal(f"{what}, {kind}, precook against one .pt per sample", times_pt, wanted, form=".1f"))
        name, ratio = nearest_peer(found)
        section.goals.append(Goal(f"{what}, {kind}, precook against the best peer ({name})", ratio, 1.1))
    section.notes += [
        "get: tensors in hand; touch: every byte summed as 64-bit words, by the same function for everyone.",
        (
            "everyone has read everything once before the clock starts; precook checks an entry when a process first "
            "reads it, as the row 'first pass' shows (open included), and at every read with verify_reads=always."
        ),
        (
            "tensors from LMDB, SQLite, diskcache, HF datasets and MDS are read-only memory, LMDB's only as long as "
            "its transaction lasts; precook's may be written to."
        ),
    ]
    return section


def sequential(run: Run, kind: Kind) -> Section:
    """In the order written, warm, every byte touched."""
    readers = {peer.name: run.written(peer, kind) for peer in run.taking_part}
    for reader in readers.values():
        reader.open()
        _touch_scan(reader)
    runs = {
        name: partial(measure.rate, partial(_touch_scan, reader), at_least=run.least)
        for name, reader in readers.items()
    }
    found = measure.interleave(runs, run.repeats)
    for reader in readers.values():
        reader.close()
    columns = [Column("layout"), Column("samples/s"), Column("x .pt", ",.1f")]
    section = Section("sequential", f"Sequential read, warm, {kind}: every byte touched", columns, kind)
    for name, rates in found.items():
        section.rows.append([name, measure.median(rates), measure.median_ratio(rates, found[OnePt.name])])
    name, ratio = nearest_peer(found)
    section.goals.append(Goal(f"sequential, {kind}, precook against the best peer ({name})", ratio, 1, "more than"))
    return section


def _interleaved(run: Run, kind: Kind, readers: dict[str, Peer], order: list[int], use: Use) -> dict[str, list[float]]:
    """Samples per second of every layout, each measured a few times in turn."""
    runs: dict[str, Callable[[], float]] = {
        name: partial(measure.rate, partial(use, reader, order), at_least=run.least) for name, reader in readers.items()
    }
    runs[_FIRST] = partial(_first_pass, run.path(Precook, kind), kind, order, use)
    return measure.interleave(runs, run.repeats)


def _opened(reader: Peer) -> float:
    """Open a layout; the milliseconds it takes, the median of three."""
    taken = []
    for last in (False, False, True):
        taken.append(measure.seconds(reader.open) * 1e3)
        if not last:
            reader.close()
    return measure.median(taken)


def _first_pass(folder: Path, kind: Kind, order: list[int], use: Use) -> float:
    reader = Precook(folder, kind, len(order))

    def run() -> int:
        reader.open()
        return use(reader, order)

    found = measure.rate(run, at_least=0)
    reader.close()
    return found


def _get_all(reader: Peer, order: list[int]) -> int:
    get = reader.get
    for number in order:
        get(number)
    return len(order)


def _touch_all(reader: Peer, order: list[int]) -> int:
    return _touch(map(reader.get, order))


def _touch_scan(reader: Peer) -> int:
    return _touch(reader.scan())


def _touch(trees: Iterable[Tree]) -> int:
    count = 0
    for tree in trees:
        touch(tree)
        count += 1
    return count
