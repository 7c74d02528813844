"""What the store is doing when the fault strikes: creating, building, recovering, repairing. All small and quick."""

from __future__ import annotations

import errno
import functools
import shutil
from typing import TYPE_CHECKING, ClassVar

import numpy as np

import precook
from precook.memo.columns import Kind as Segments
from precook.store import files, pack_cache
from precook.store.snapshot import read_snapshot
from precook.store.snapshot_content import (
    FrozenConcept,
    FrozenEncoder,
    FrozenImage,
    LineColumns,
    PictureColumns,
    SampleColumns,
    SnapshotContent,
)

from .aftermath import Scenario
from .samples import CROWD, RECIPE, check_entries, key_of, same, tree_of
from .trace import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path
    from types import ModuleType

    from .children import Journal
    from .trace import Operation

# Names of precook are imported when first used: here, in place of once in every forked child.
for _name in precook.__all__:
    getattr(precook, _name)

pack_cache.LOOK_EVERY = 0.0  # a mapped pack is looked at in each read, so that every run makes the same calls

_COMPANIONS = ("index.sqlite", "index.sqlite-wal", "index.sqlite-shm")


class StoreScenario(Scenario):
    """A scenario on the real store."""

    tolerated = (precook.PrecookError,)
    too_vague = (precook.PrecookError, precook.StoreError)
    # SQLite tells a full disk from a failing one only when it writes; a failing sync or open is all the same to it.
    names: ClassVar[dict[int, frozenset[str]]] = {
        errno.ENOSPC: frozenset({"NoSpaceError", "StoreWriteError"}),
        errno.EDQUOT: frozenset({"NoSpaceError", "StoreWriteError"}),
        errno.EIO: frozenset({"StoreWriteError"}),
        errno.EMFILE: frozenset({"StoreWriteError"}),
        errno.ENOLCK: frozenset({"LockedError", "StoreWriteError"}),
    }
    spoilt: frozenset[int] = frozenset()
    """Entries that `prepare` damaged: they may be reported so, until they have been put again."""

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """Open the store without help and look at every entry."""
        may_be_damaged = frozenset(self.numbers) if lenient else self.spoilt - acked
        with precook.open(area / "cache") as store:
            problems = check_entries(store, self.numbers, acked, may_be_damaged=may_be_damaged)
            if verify:
                problems += findings(store, spoilt=self.spoilt)
                if len(store) != len(self.numbers):
                    problems.append(f"{len(store)} entries where there should be {len(self.numbers)}")
        if verify:
            problems += [f"{path.name} was left behind" for path in area.rglob("*.partial*")]
        return problems

    def forbids(self, operation: Operation) -> str:
        """Readers map packs: one that is written to shows them other bytes, one that is cut kills them."""
        changes = operation.kind in (Kind.WRITE, Kind.SIZE, Kind.ALLOCATE)
        return "a published pack is changed" if changes and operation.path.endswith(".safetensors") else ""

    def files(self) -> ModuleType:
        """The store's file operations."""
        return files


def findings(store: precook.Store, spoilt: frozenset[int] = frozenset()) -> list[str]:
    """What `verify` finds wrong, in words; `spoilt` entries are expected to be found, and to be found once."""
    verification = store.verify()
    expected = {key_of(number) for number in spoilt}
    unexpected = [damage for damage in verification.damage if damage.key not in expected]
    problems = [f"{damage.pack.name}: {damage.reason}" for damage in unexpected]
    overlooked = len(expected) - (len(verification.damage) - len(unexpected))
    if overlooked:
        problems.append(f"{overlooked} damaged entries overlooked")
    if not verification.complete:
        problems.append(f"only {verification.packs} of {verification.packs_in_store} packs were looked at")
    return problems


def put(store: precook.Store, journal: Journal, number: int) -> None:
    """Put one entry, and once more after an error, as a caller would who does not give up at once."""
    step = functools.partial(store.put, key_of(number), tree_of(number))
    if not journal.commit(step, number):
        journal.commit(step, number)


def write(store: precook.Store, journal: Journal, groups: Iterable[Iterable[int]]) -> None:
    """Write groups of entries, each flushed except the last, which the end of the block makes durable."""
    *flushed, last = [list(group) for group in groups]

    def all_groups() -> None:
        with store.writer() as writer:
            for group in flushed:
                for number in group:
                    writer.put(key_of(number), tree_of(number), recipe=RECIPE)
                writer.flush()
                journal.acknowledge(*group)
            for number in last:
                writer.put(key_of(number), tree_of(number), recipe=RECIPE)

    journal.commit(all_groups, *last)


class Create(StoreScenario):
    """A new store and two single puts."""

    name = "create"
    numbers = range(2)

    def run(self, area: Path, journal: Journal) -> None:
        """Put both."""
        with precook.open(area / "cache") as store:
            for number in self.numbers:
                put(store, journal, number)


class Build(StoreScenario):
    """A writer that flushes several mixed groups, and another whose groups are cut off by size and overlap."""

    name = "build"
    numbers = range(16)

    def run(self, area: Path, journal: Journal) -> None:
        """Write everything."""
        with precook.open(area / "cache") as store:
            write(store, journal, [range(4), range(4, 6), range(6, 10)])
        # So small that groups are committed in the background while the next entries come in.
        with precook.open(area / "cache", flush_bytes=1) as store:
            write(store, journal, [range(10, 12), range(12, 16)])


class _Recovery(StoreScenario):
    """A store whose index is not what the packs say: the recovery is what gets interrupted."""

    numbers: Collection[int] = range(8)
    kept = frozenset(range(6))

    def prepare(self, area: Path) -> None:
        """Three packs, and an index in a sorry state."""
        cache = area / "cache"
        # In several packs, which an index made anew reads in another order than they were written in.
        for part in range(5):
            with precook.open(cache) as store, store.writer() as writer:
                for number in sorted(self.kept & frozenset(CROWD))[part::5]:
                    writer.put(key_of(number), tree_of(number))
        with precook.open(cache) as store:
            store.put(key_of(0), tree_of(0))
            with store.writer() as writer:
                for number in (1, 2):
                    writer.put(key_of(number), tree_of(number))
            early = _copy_index(cache, area / "early")
            with store.writer() as writer:
                for number in (3, 4, 5):
                    writer.put(key_of(number), tree_of(number))
            late = _copy_index(cache, area / "late")
        self.spoil(cache, early, late)
        shutil.rmtree(early)
        shutil.rmtree(late)

    def spoil(self, cache: Path, early: Path, late: Path) -> None:
        """Leave the index as this recovery shall find it; `early` and `late` are copies, taken while it was open."""
        raise NotImplementedError

    def run(self, area: Path, journal: Journal) -> None:
        """Open, which recovers; put; make the index anew; put again."""
        with precook.open(area / "cache") as store:
            put(store, journal, 6)
            journal.commit(store.reindex)
            put(store, journal, 7)


class LostIndex(_Recovery):
    """The index was deleted."""

    name = "lost-index"

    def spoil(self, cache: Path, early: Path, late: Path) -> None:
        """Delete it."""
        _remove_index(cache)


class OldIndex(_Recovery):
    """The index is older than the packs, with its log beside it, as if its writer had been killed."""

    name = "old-index"

    def spoil(self, cache: Path, early: Path, late: Path) -> None:
        """Put the early copy back."""
        _remove_index(cache)
        _restore_index(cache, early)


class DoubtfulIndex(_Recovery):
    """The database is garbage while its log, which holds only some of its pages, is sound.

    The log must not be taken for that of the new index: there are enough entries for the two to differ.
    """

    name = "doubtful-index"
    numbers = (*range(8), *CROWD)
    kept = frozenset({*range(6), *CROWD})

    def spoil(self, cache: Path, early: Path, late: Path) -> None:
        """An early log, of few pages, beside a database that is none."""
        _remove_index(cache)
        _restore_index(cache, early)
        (cache / "index.sqlite").write_bytes(b"not a database " * 1000)


class Damage(StoreScenario):
    """A pack went bad: the damage is found by reading, and the entries are put again."""

    name = "damage"
    numbers = range(8)
    spoilt = frozenset({2, 3})
    kept = frozenset({0, 1, 4, 5, 6})

    def prepare(self, area: Path) -> None:
        """Two packs; in one of them two of the entries lose a bit."""
        cache = area / "cache"
        with precook.open(cache) as store:
            for group in (range(4), range(4, 7)):
                with store.writer() as writer:
                    for number in group:
                        writer.put(key_of(number), tree_of(number))
        for number, leaf in ((2, tree_of(2)["hidden"]), (3, tree_of(3))):
            flip_bit(cache, leaf.tobytes(), f"entry {number}")

    def run(self, area: Path, journal: Journal) -> None:
        """Read everything; encode again what turns out to be damaged or missing, as a build would."""
        with precook.open(area / "cache") as store:
            for number in self.numbers:
                if not self._is_good(store, number):
                    put(store, journal, number)

    def _is_good(self, store: precook.Store, number: int) -> bool:
        try:
            store.get(key_of(number))
        except precook.MissingEntryError:
            return False
        return True


class Read(StoreScenario):
    """Everything is read, by every way there is, and read again."""

    name = "read"
    numbers = range(8)
    kept = frozenset(numbers)
    _alike = (3, 7)

    def prepare(self, area: Path) -> None:
        """Two packs."""
        for group in (range(5), range(5, 8)):
            with precook.open(area / "cache") as store, store.writer() as writer:
                for number in group:
                    writer.put(key_of(number), tree_of(number), recipe=RECIPE)

    def run(self, area: Path, journal: Journal) -> None:
        """Single reads, the second from a mapping; many at once; verified; and after all that, once more."""
        with precook.open(area / "cache") as store:
            for number in (*self.numbers, *self.numbers):
                journal.commit(functools.partial(self._read, store, [number]))
            journal.commit(functools.partial(self._read, store, self.numbers))
            journal.commit(functools.partial(self._stack, store))
            journal.commit(store.verify)
        with precook.open(area / "cache", read_only=True, verify_reads="always") as store:
            journal.commit(functools.partial(self._read, store, self.numbers))

    def _read(self, store: precook.Store, numbers: Collection[int]) -> None:
        keys = [key_of(number) for number in numbers]
        if lost := store.missing(keys):
            raise precook.MissingEntryError(lost[0])
        trees = store.get_many(keys)
        for number, tree in zip(numbers, trees, strict=True):
            if not same(tree, tree_of(number)):
                raise AssertionError(f"entry {number} has wrong bytes")

    def _stack(self, store: precook.Store) -> None:
        found = store.stack([key_of(number) for number in self._alike])
        if not same(found, np.stack([tree_of(number) for number in self._alike])):
            raise AssertionError("stacked entries have wrong bytes")


class Freeze(StoreScenario):
    """A plan remembers what it learnt, entries are put, and the dataset is frozen, twice."""

    name = "freeze"
    numbers = range(2)
    _snapshots = (100, 101)

    def run(self, area: Path, journal: Journal) -> None:
        """Remember, put, freeze; then once more with one sample more."""
        with precook.open(area / "cache") as store:
            for number, snapshot in zip(self.numbers, self._snapshots, strict=True):
                journal.commit(lambda number=number: remember(store, number))
                put(store, journal, number)
                step = functools.partial(store.freeze, "cats", frozen(number + 1))
                if not journal.commit(step, snapshot):
                    journal.commit(step, snapshot)

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """Every acknowledged snapshot is there; each that is there is whole; what is remembered is right."""
        problems = super().check(area, acked & frozenset(self.numbers), lenient=lenient, verify=verify)
        sizes = set()
        with precook.open(area / "cache") as store:
            for file in store.snapshots():
                try:
                    snapshot = read_snapshot(file)
                except precook.DamagedPackError as error:
                    problems += [] if lenient else [str(error)]
                    continue
                sizes.add(snapshot.samples)
                if not _same(snapshot.content.tree(), frozen(snapshot.samples).tree()):
                    problems.append(f"{file.path.name} holds something else")
            memory = store.memory()
            for number in self.numbers:
                known, values = memory.recall(_REMEMBERED, _row(number, 40))
                if known[0] and (values != _row(number, 32)).any():
                    problems.append(f"what was remembered about {number} is wrong")
        expected = {
            number + 1 for number, one in zip(self.numbers, self._snapshots, strict=True) if one in acked or verify
        }
        if not lenient and not expected <= sizes:
            problems.append(f"snapshots of {sorted(sizes)} samples where {sorted(expected)} were frozen")
        return problems


_REMEMBERED = Segments("files", key=40, value=32, slot=16)


def remember(store: precook.Store, number: int) -> None:
    """Remember something."""
    memory = store.memory()
    memory.remember(_REMEMBERED, _row(number, 40), _row(number, 32))
    memory.write_note("rates", bytes([number]), "{}")
    store.remember(memory)


def recalled(store: precook.Store, number: int) -> bool:
    """Whether it is known, and right."""
    memory = store.memory()
    known, values = memory.recall(_REMEMBERED, _row(number, 40))
    return bool(known[0] and (values == _row(number, 32)).all() and memory.notes("rates").get(bytes([number])) == "{}")


def _row(number: int, width: int) -> np.ndarray:
    return np.full((1, width), number + 1, np.uint8)


def frozen(samples: int) -> SnapshotContent:
    """A snapshot of so many samples, whose entries nobody has."""
    return _snapshot(np.repeat(np.arange(samples).astype(np.uint8)[:, None] + 1, 32, axis=1))


def frozen_entries(numbers: Iterable[int]) -> SnapshotContent:
    """A snapshot that names these entries."""
    return _snapshot(np.frombuffer(b"".join(key_of(number).bytes for number in numbers), np.uint8).reshape(-1, 32))


def _snapshot(keys: np.ndarray) -> SnapshotContent:
    samples = len(keys)
    column = np.arange(samples, dtype=np.int32)
    return SnapshotContent(
        dataset="cats",
        image=FrozenImage([512], variations=1, pick="one"),
        concepts=[FrozenConcept("cats", loss_weight=1.0, repeats=1.0)],
        encoders={"latent": FrozenEncoder("image", "[]")},
        samples=SampleColumns(keys, keys, column * 0),
        pictures=PictureColumns(column, np.zeros((samples, 2), np.int32), np.ones((samples, 2), np.int32)),
        picture_keys={"latent": keys},
        lines=LineColumns(column[:0]),
        line_keys={},
        empty_keys={},
    )


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return one == other


def flip_bit(cache: Path, needle: bytes, what: str) -> None:
    for pack in cache.rglob("*.safetensors"):
        content = pack.read_bytes()
        at = content.find(needle)
        if at >= 0:
            middle = at + len(needle) // 2
            pack.write_bytes(content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :])
            return
    message = f"{what} is in no pack"
    raise ValueError(message)


def _copy_index(cache: Path, to: Path) -> Path:
    to.mkdir()
    for name in _COMPANIONS[:2]:
        if (cache / name).exists():
            shutil.copyfile(cache / name, to / name)
    return to


def _remove_index(cache: Path) -> None:
    for name in _COMPANIONS:
        (cache / name).unlink(missing_ok=True)


def _restore_index(cache: Path, copy: Path) -> None:
    for path in copy.iterdir():
        shutil.copyfile(path, cache / path.name)


SCENARIOS: dict[str, StoreScenario] = {
    scenario.name: scenario
    for scenario in (Create(), Build(), LostIndex(), OldIndex(), DoubtfulIndex(), Damage(), Read(), Freeze())
}
for _number in {number for scenario in SCENARIOS.values() for number in scenario.numbers}:
    tree_of(_number)
