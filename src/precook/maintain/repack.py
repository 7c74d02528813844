"""Repacking: the living rows of some packs become one new pack, and packs without a living row are unlinked.

Rows are copied as they lie, column by column, and the new pack is durable before the index names it. Dropping the last
row of a pack marks the pack as doomed in the same transaction: a process that dies before the file is gone leaves that
mark, and whoever opens the store next goes on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import secrets
import shutil
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import DamagedEntryError, DamagedPackError, LockedError, NoSpaceError, StoreReadError, printable
from precook.fs.system import system
from precook.fs.trust import file_system_time
from precook.store import files
from precook.store.commit import publishing
from precook.store.dtypes import DType
from precook.store.format.build import assemble, text_form
from precook.store.format.header import HeaderError, header_length
from precook.store.format.pack import (
    MAX_RECIPES,
    Head,
    LeafColumn,
    Table,
    TextColumn,
    lanes_shape,
    pack_id,
    parse_head,
    parse_pack_header,
)
from precook.store.index.index import Index, Place
from precook.store.index.schema import ReplacedPack
from precook.store.internals import StoreInternals
from precook.store.layout import Layout
from precook.store.packfile import Guard, PackFile, RowDamagedError
from precook.units import format_count, format_size
from precook.values import Bytes, Key, Numbers

_log = logging.getLogger("precook")

_CHUNK = 8 << 20
"""Bytes copied at a time."""
_MARGIN = 1 << 20
"""Bytes that stay free beside a new pack: the index needs some."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Some rows of a pack, numbered through all its tables, in order."""

    pack: PackFile
    rows: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class _TableRows:
    """Some rows of one table of a pack."""

    pack: PackFile
    table: Table
    first: int
    """The pack's number of the table's first row."""
    rows: Numbers
    """Their numbers in the table."""


@dataclass(frozen=True, slots=True, eq=False)
class Repack:
    """A new pack that is not on disk yet, and where each of its rows comes from."""

    head: bytes
    parsed: Head
    spans: list[tuple[PackFile, int, int]]
    """Its body: pack, first byte and length of what is copied, in order."""
    origins: list[tuple[str, Numbers]]
    """Pack and row of each new row, in order: runs of rows of one pack."""

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self.parsed.file_bytes

    def buffers(self) -> Generator[bytes, None, None]:
        """Its bytes, a few at a time."""
        yield self.head
        gathered: list[bytes] = []
        room = _CHUNK
        for pack, spans in groupby(self.spans, key=lambda span: span[0]):
            for piece in _read_spans(pack, spans):
                gathered.append(piece)
                room -= len(piece)
                if room <= 0:
                    yield b"".join(gathered)
                    gathered, room = [], _CHUNK
        if gathered:
            yield b"".join(gathered)


def _read_spans(pack: PackFile, spans: Iterable[tuple[PackFile, int, int]]) -> Iterator[bytes]:
    """Some bytes of a pack; what goes wrong is told as an error of this pack, not of what is written meanwhile."""
    try:
        with files.reading(pack.path), pack.open() as descriptor:
            for _, start, length in spans:
                for offset in range(start, start + length, _CHUNK):
                    yield pack.read_bytes(descriptor, offset, min(_CHUNK, start + length - offset))
    except FileNotFoundError as error:
        raise files.read_error(pack.path, error) from error
    except RowDamagedError as error:
        raise DamagedPackError(pack.path, str(error)) from error


@dataclass(slots=True)
class _MergedColumns:
    """The columns of a pack in the making."""

    directory: list[tuple[str, npt.NDArray[Any]]] = field(default_factory=list)
    body: list[tuple[str, DType, tuple[int, ...], list[tuple[PackFile, int, int]]]] = field(default_factory=list)
    recipes: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    """The number of each recipe, with what entries of it were made with."""


def repack(pieces: Sequence[Piece]) -> Repack:
    """One pack of all these rows; equal skeletons share a table, rows stay in order."""
    tables: dict[bytes, list[_TableRows]] = {}
    for piece in pieces:
        first = 0
        for table in piece.pack.head.tables:
            rows = piece.rows[(piece.rows >= first) & (piece.rows < first + table.rows)] - first
            if len(rows):
                tables.setdefault(table.skeleton, []).append(_TableRows(piece.pack, table, first, rows))
            first += table.rows
    columns = _MergedColumns()
    forms = [_table_form(f"t{number}", parts, columns) for number, parts in enumerate(tables.values())]
    if len(columns.recipes) > MAX_RECIPES:
        raise HeaderError(f"{len(columns.recipes)} recipes; at most {MAX_RECIPES} are accepted")
    created = max(piece.pack.head.created for piece in pieces)
    head, spans = assemble(
        forms, list(columns.recipes), columns.directory, columns.body, created=created, salt=secrets.token_hex(8)
    )
    # Read back what is about to be written: nothing that our own limits refuse is ever published.
    parsed = parse_head(parse_pack_header(head[: header_length(head)]), head)
    assert parsed.id == pack_id(head)
    origins = [(part.pack.head.id, part.first + part.rows) for parts in tables.values() for part in parts]
    return Repack(head, parsed, [span for column in spans for span in column if span[2]], origins)


def _table_form(name: str, parts: list[_TableRows], columns: _MergedColumns) -> Any:
    directory = columns.directory
    directory.append((f"{name}/keys", np.concatenate([part.table.keys[part.rows] for part in parts])))
    directory.append((f"{name}/checksums", np.concatenate([part.table.checksums[part.rows] for part in parts])))
    directory.append((f"{name}/recipes", np.concatenate([_recipes(part, columns) for part in parts]).astype("<u2")))
    values = _text(f"{name}/values", [(part.table.values, part.rows) for part in parts], directory)
    labels = _text(f"{name}/labels", [(part.table.labels, part.rows) for part in parts], directory)
    forms = []
    for number, leaf in enumerate(parts[0].table.leaves):
        # Names are for people only; those of the first pack do for all.
        label = leaf.name.partition("/")[2]
        forms.append(_leaf(f"{name}/{label}", f"{name}/shapes.{label}", number, parts, columns))
    skeleton = json.loads(parts[0].table.skeleton)
    rows = sum(len(part.rows) for part in parts)
    return {"name": name, "rows": rows, **skeleton, "columns": forms, "values": values, "labels": labels}


def _recipes(part: _TableRows, columns: _MergedColumns) -> Numbers:
    """The recipe numbers of a part's rows in the new pack."""
    numbers = part.table.recipes[part.rows]
    renumbered = np.zeros(len(part.pack.head.recipes) + 1, np.int64)
    for number in np.unique(numbers).tolist():
        if number:
            recipe = part.pack.head.recipes[number - 1], part.pack.head.made[number]
            renumbered[number] = columns.recipes.setdefault(recipe, len(columns.recipes) + 1)
    return renumbered[numbers]


def _text(name: str, texts: list[tuple[TextColumn, Numbers]], directory: list[tuple[str, npt.NDArray[Any]]]) -> Any:
    if all(column.offsets is None and column.text == texts[0][0].text for column, _ in texts):
        return {"all": json.loads(texts[0][0].text)}
    return text_form(name, [column.row(row) for column, rows in texts for row in rows.tolist()], directory)


def _leaf(name: str, shapes_name: str, number: int, parts: list[_TableRows], columns: _MergedColumns) -> Any:
    """Add one leaf's column; its form for the metadata."""
    leaves = [(part, part.table.leaves[number]) for part in parts]
    dtype = leaves[0][1].dtype
    spans = [(part.pack, *span) for part, leaf in leaves for span in _spans(leaf, part.rows)]
    rows = sum(len(part.rows) for part in parts)
    shapes = [_shapes(leaf, part.rows) for part, leaf in leaves]
    first = shapes[0][0]
    if all((some == first).all() for some in shapes):
        shape = tuple(first.tolist())
        columns.body.append((name, dtype, (rows, *lanes_shape(dtype, shape)), spans))
        return {"name": name, "shape": list(shape)}
    each = [np.broadcast_to(some, (len(part.rows), some.shape[1])) for some, part in zip(shapes, parts, strict=True)]
    columns.directory.append((shapes_name, np.concatenate(each).astype("<u4")))
    elements = sum(span[2] for span in spans) // dtype.size * dtype.lanes
    columns.body.append((name, dtype, (elements,), spans))
    return {"name": name, "shape": None}


def _shapes(leaf: LeafColumn, rows: Numbers) -> Numbers:
    """The shape of each row, or one line for all of them where they share it."""
    if leaf.shape is not None:
        return np.array([leaf.shape], np.int64).reshape(1, len(leaf.shape))
    assert leaf.shapes is not None
    return leaf.shapes[rows].astype(np.int64)


def _spans(leaf: LeafColumn, rows: Numbers) -> Iterator[tuple[int, int]]:
    """First byte and length of rows in the file; rows that lie side by side in one."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    for run in np.split(rows, breaks):
        begin, _ = leaf.span(int(run[0]))
        start, length = leaf.span(int(run[-1]))
        yield begin, start + length - begin


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What became of some packs."""

    packs: int = 0
    """How many were replaced."""
    lost: int = 0
    """Entries that were damaged, or lay in another of these packs, too."""
    nbytes: int = 0
    """Size of the new pack, zero where no row was left to move."""
    freed: int = 0
    """Bytes that the disk has gained."""
    left: tuple[StoreReadError, ...] = ()
    """Why some packs were left as they are: the system refused to read them, which may pass."""


def planned_size(internals: StoreInternals, living: dict[str, Numbers]) -> int | None:
    """The size of a pack of these rows, by the name of their pack; None where one of the packs is gone or damaged.

    `StoreReadError` where the system refuses to read one, `HeaderError` where one pack cannot hold them all.
    """
    pieces = []
    try:
        for name, rows in living.items():
            with files.reading(internals.layout.pack(name)):
                pieces.append(Piece(internals.open_pack(name), rows))
        return repack(pieces).nbytes
    except (FileNotFoundError, DamagedPackError):
        return None
    finally:
        for piece in pieces:
            piece.pack.release()


def rewrite_packs(internals: StoreInternals, names: Sequence[str], *, give_up: Collection[int] = ()) -> Rewrite:
    """Put the living rows of some packs into a new one, and remove the old ones.

    The new pack is read back before it gets its name. Damaged rows are left behind and become misses. A pack of which
    the system refuses to read a row stays as it is, unless it is one of those that whoever asks wants to `give_up`.
    Packs that are gone or damaged as a whole stay, too.
    """
    pieces: list[Piece] = []
    left: list[StoreReadError] = []
    try:
        for name in names:
            with _leaving(left), files.reading(internals.layout.pack(name)):
                pack = internals.open_pack(name)
                pieces.append(Piece(pack, internals.index.living_rows(name, _keys(pack))))
        try:
            rewrite = _replace(internals, pieces, sum(len(piece.rows) for piece in pieces))
        except (FileNotFoundError, DamagedPackError, StoreReadError):
            # Something cannot be read, or is not what was put: pack by pack and row by row, to tell what.
            sound, living = [], 0
            for piece in pieces:
                with _leaving(left), files.reading(piece.pack.path):
                    sound.append(Piece(piece.pack, _sound_rows(internals, piece, give_up=give_up)))
                    living += len(piece.rows)
            rewrite = Rewrite()
            with _leaving(left):
                rewrite = _replace(internals, sound, living)
        return replace(rewrite, left=tuple(left))
    finally:
        for piece in pieces:
            piece.pack.release()


@contextlib.contextmanager
def _leaving(left: list[StoreReadError]) -> Iterator[None]:
    """Pass over a pack that is gone or damaged; `left` takes what the system says of one that it refuses to read."""
    try:
        yield
    except (FileNotFoundError, DamagedPackError):
        pass
    except StoreReadError as error:
        left.append(error)


def _replace(internals: StoreInternals, pieces: Sequence[Piece], living: int) -> Rewrite:
    """Put some rows into a new pack and remove the packs they are from, of which so many rows are living."""
    if not pieces:
        return Rewrite()
    pieces = _once(pieces)
    packs = [piece.pack for piece in pieces]
    image = None
    if any(len(piece.rows) for piece in pieces):
        image = repack(pieces)
        check_space(internals, image.nbytes)
        _publish(internals, image, packs)
        files.reached("compact.published")
    # One transaction names the new rows and drops the old ones, so a reader finds an entry at one place or the other.
    old = {pack.head.id: ReplacedPack(_keys(pack), pack.written) for pack in packs}
    head, origins = (image.parsed, image.origins) if image is not None else (None, ())
    internals.index.replace_packs(head, origins, old)
    files.reached("compact.switched")
    unlink_doomed(internals.layout, internals.index)
    entries, nbytes = (image.parsed.rows, image.nbytes) if image is not None else (0, 0)
    return Rewrite(len(packs), living - entries, nbytes, sum(pack.nbytes for pack in packs) - nbytes)


def _sound_rows(internals: StoreInternals, piece: Piece, *, give_up: Collection[int]) -> Numbers:
    """The rows that are what was put; those that are not are told to the index.

    `StoreReadError` where the system refuses to read one of them that is not to be given up.
    """
    pack = piece.pack
    bad = list(pack.damage(piece.rows.tolist()))
    for one in bad:
        if one.refused and one.row not in give_up:
            raise StoreReadError(pack.path, one.reason)
    for one in bad:
        table, row = pack.locate(one.row)
        key = table.key(row)
        _log.warning("left behind: %s", DamagedEntryError(Key(key), pack.path, one.reason))
        internals.index.mark_damaged(Place(key, pack.head.id, one.row), one.reason)
    return np.setdiff1d(piece.rows, [one.row for one in bad], assume_unique=True)


def _once(pieces: Sequence[Piece]) -> list[Piece]:
    """The same rows without those whose key has another row before: each key once."""
    keys = np.concatenate([_keys(piece.pack)[piece.rows] for piece in pieces])
    # In the order of the keys, equal ones as they came.
    order = np.lexsort(keys.view(">u8").T[::-1])
    ordered = keys[order]
    again = np.zeros(len(keys), bool)
    again[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    edges = np.cumsum([len(piece.rows) for piece in pieces])[:-1]
    return [Piece(piece.pack, piece.rows[~here]) for piece, here in zip(pieces, np.split(again, edges), strict=True)]


def check_space(internals: StoreInternals, nbytes: int) -> None:
    """Make sure that a new pack of this size fits on the disk; `NoSpaceError` where it does not."""
    free = shutil.disk_usage(internals.layout.root).free
    if free < nbytes + _MARGIN:
        hint = "free some space first; nothing was lost, and what could be freed without it was"
        message = f"rewriting a pack takes {format_size(nbytes)} and {format_size(free)} are free"
        raise NoSpaceError(internals.layout.root, message, hint=hint)


def _publish(internals: StoreInternals, image: Repack, packs: Sequence[PackFile]) -> None:
    # As old as the youngest of them: nothing in it may look older than it is.
    modified = min(max(pack.written for pack in packs), file_system_time(internals.layout.root))
    prove = functools.partial(_prove, name=image.parsed.id)
    # Closed also where writing fails: it may have a pack open.
    with publishing(internals, image.parsed.id) as path, contextlib.closing(image.buffers()) as buffers:
        files.publish(path, buffers, modified=modified, prove=prove)


def _prove(path: Path, name: str) -> None:
    """Read a new pack back, row by row: the old ones go on the word of this."""
    with files.reading(path):
        pack = PackFile(path, name, Guard())
        try:
            for bad in pack.damage():
                raise StoreReadError(path, f"this copy is not what was put: {bad.reason}")
        finally:
            pack.release()


def _keys(pack: PackFile) -> Bytes:
    """The key of every row."""
    return np.concatenate([np.zeros((0, 32), np.uint8), *(table.keys for table in pack.head.tables)])


def unlink_packs(internals: StoreInternals, names: Sequence[str]) -> list[tuple[str, int]]:
    """Remove packs of which no row lives any more, and others that are doomed already; which they were, and sizes."""
    internals.index.doom(names)
    return unlink_doomed(internals.layout, internals.index)


def unlink_doomed(layout: Layout, index: Index) -> list[tuple[str, int]]:
    """Remove the files of doomed packs and forget them; which they were. Readers keep what they have mapped.

    On Windows a pack that somebody has mapped cannot be removed: it stays doomed, which is told, and goes the next time
    that the store is opened or something is removed from it.
    """
    doomed, left = _unlink_doomed(layout, index)
    if left:
        _log.warning(
            "%s: %s cannot be removed while a process uses them, which this system does not allow; they are removed"
            " when the store is next opened without it",
            printable(layout.root),
            format_count(len(left), "pack"),
        )
    return doomed


def _unlink_doomed(layout: Layout, index: Index) -> tuple[list[tuple[str, int]], list[str]]:
    """The same without a word: those that were removed, and the names of those that could not be."""
    left = []
    with index.exclusive():
        doomed = index.doomed_packs()
        paths = [layout.pack(name) for name, _ in doomed]
        with files.explained(layout.root):
            for (name, _), path in zip(doomed, paths, strict=True):
                try:
                    files.unlink_inside(layout.root, path)
                except OSError as error:
                    if not system.refuses_removal(error):
                        raise
                    left.append(name)
            # A name that came back after a power cut would be taken for a new pack, once its mark is gone.
            for folder in sorted({path.parent for path in paths}):
                with contextlib.suppress(FileNotFoundError):
                    files.sync_directory(folder)
        doomed = [(name, size) for name, size in doomed if name not in left]
        if doomed:
            index.forget_packs([name for name, _ in doomed])
    return doomed, left


def sweep_doomed(layout: Layout, index: Index) -> None:
    """The same at open, unless somebody else is at it or has the lock, or a full disk leaves no room to forget them."""
    if index.doomed_packs():
        with contextlib.suppress(LockedError, NoSpaceError), index.exclusive(patience=0):
            _unlink_doomed(layout, index)
