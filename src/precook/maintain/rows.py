"""Rows of packs as entries: read from the disk, checked, and ready to be written elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedPackError, MissingEntryError
from precook.identity.recipe import recipe_digest
from precook.store.format.build import Entry
from precook.store.format.pack import NO_RECIPE, checksum
from precook.store.internals import StoreInternals
from precook.store.leaves import Leaf
from precook.store.packfile import PackFile, RowDamagedError, TableFile, damage_reason
from precook.store.store import Store
from precook.store.tree import Parts
from precook.values import Array, Key

_NO_LABELS = b"null"


@dataclass(frozen=True, slots=True)
class PackRow:
    """Where an entry lies, and what it takes."""

    key: bytes
    pack: str
    row: int
    nbytes: int


@contextlib.contextmanager
def protected(store: Store, purpose: str, keys: npt.NDArray[np.uint8]) -> Iterator[None]:
    """Keep these entries from being collected, from before they are looked up."""
    with store.lease(purpose) as lease:
        lease.protect(keys)
        yield


def find_rows(internals: StoreInternals, keys: Sequence[bytes]) -> tuple[list[PackRow], dict[bytes, str]]:
    """A place for each key, in the order in which they lie on the disk; and the keys without one, with the reason."""
    places: dict[str, list[tuple[int, bytes]]] = {}
    lost = dict.fromkeys(keys, "there is no such entry")
    for place in internals.index.find(keys):
        places.setdefault(place.pack, []).append((place.row, place.key))
    rows: list[PackRow] = []
    for name in sorted(places):
        wanted = sorted((row, key) for row, key in places[name] if key in lost)
        if not wanted:
            continue
        try:
            pack = internals.open_pack(name)
        except FileNotFoundError:
            continue  # removed since the index named it
        except (DamagedPackError, OSError) as error:
            lost.update(dict.fromkeys((key for _, key in wanted), damage_reason(error, internals.layout.pack(name))))
            continue
        sizes = [size for table in pack.tables for size in table.table.row_bytes().tolist()]
        for row, key in wanted:
            if row < len(sizes) and key in lost:
                rows.append(PackRow(key, name, row, sizes[row]))
                del lost[key]
    return rows, lost


def read_rows(pack: PackFile, rows: Iterable[int]) -> Iterator[Entry]:
    """Entries as they lie in a pack; `RowDamagedError` or `OSError` where one is not what was put."""
    with pack.open() as descriptor:
        for row in rows:
            table, at = pack.locate(row)
            yield _entry(table, at, table.verify(descriptor, at))


def sound_keys(internals: StoreInternals, keys: Sequence[bytes]) -> set[bytes]:
    """The keys whose entry is there and, read from the disk, what was put."""
    rows, _ = find_rows(internals, keys)
    sound: set[bytes] = set()
    for name, group in groupby(rows, key=lambda row: row.pack):
        wanted = list(group)
        try:
            pack = internals.open_pack(name)
            with pack.open() as descriptor:
                for row in wanted:
                    table, at = pack.locate(row.row)
                    table.verify(descriptor, at)
                    if table.key(at) == row.key:
                        sound.add(row.key)
        except (RowDamagedError, DamagedPackError, OSError):
            # One by one, wherever they lie: this also tells the index what is damaged.
            sound |= {row.key for row in wanted if row.key not in sound and internals.is_sound(row.key)}
    return sound


def without_labels(entry: Entry) -> Entry:
    """The same entry without what its maker noted beside it."""
    if entry.labels == _NO_LABELS:
        return entry
    return _summed(dataclasses.replace(entry, labels=_NO_LABELS))


class RowReader:
    """Reads rows one after the other, most of them from the pack before; entries that cannot be read are kept aside."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._internals = store.internals()
        self._pack: PackFile | None = None
        self.lost: dict[bytes, str] = {}
        """Entries that could not be read, and why."""

    def read(self, rows: Iterable[PackRow]) -> list[Entry]:
        """The entries of these rows that can be read, without labels."""
        found: list[Entry] = []
        for name, group in groupby(rows, key=lambda row: row.pack):
            wanted = list(group)
            done = 0
            with contextlib.suppress(RowDamagedError, DamagedPackError, OSError):
                for entry in read_rows(self._open(name), [row.row for row in wanted]):
                    if entry.key != wanted[done].key:
                        break  # the index was behind
                    found.append(without_labels(entry))
                    done += 1
            # Compacted since, or damaged here: another pack may have the rest; if not, it says why.
            found += [without_labels(other) for row in wanted[done:] if (other := self._find(row)) is not None]
        return found

    def _open(self, name: str) -> PackFile:
        if self._pack is None or self._pack.head.id != name:
            self._pack = self._internals.open_pack(name)
        return self._pack

    def _find(self, row: PackRow) -> Entry | None:
        """An entry wherever it lies by now; where it cannot be read, the reason is kept."""
        path = self._internals.layout.pack(row.pack)
        try:
            located = self._store.locate(Key(row.key))
            return _entry(located.table, located.row, located.table.read(located.row, check=True))
        except MissingEntryError as error:
            self.lost[row.key] = error.message
        except (RowDamagedError, DamagedPackError, OSError) as error:
            self.lost[row.key] = damage_reason(error, path)
        return None


def _entry(table: TableFile, row: int, arrays: list[Array]) -> Entry:
    leaves = tuple(
        Leaf(leaf.dtype, leaf.library, array.shape, array.reshape(-1).view("u1"))
        for leaf, array in zip(table.table.leaves, arrays, strict=True)
    )
    number = table.table.recipes.item(row)
    return Entry(
        key=table.key(row),
        parts=Parts(
            skeleton=table.table.skeleton,
            leaves=leaves,
            # For people only, as in the pack it comes from: what tells equal names apart is added anew.
            paths=tuple(leaf.name.partition("leaf.")[2].partition("~")[0] for leaf in table.table.leaves),
            values=table.table.values.row(row),
        ),
        recipe=table.pack.head.recipes[number - 1] if number else b"",
        labels=table.table.labels.row(row),
        checksum=table.table.checksums[row].tobytes(),
    )


def _summed(entry: Entry) -> Entry:
    found = checksum(
        key=entry.key,
        recipe=recipe_digest(entry.recipe).bytes if entry.recipe else NO_RECIPE,
        skeleton=entry.parts.skeleton,
        values=entry.parts.values,
        labels=entry.labels,
        leaves=((leaf.shape, (leaf.data,)) for leaf in entry.parts.leaves),
    )
    return dataclasses.replace(entry, checksum=found)
