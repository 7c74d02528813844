"""Files of samples: each picture of a folder or a table with its caption file, its mask and its further pictures.

Pictures that stand in the cells of a table are no files, and are listed with them: by the table's name and their row.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, repeat
from pathlib import Path

import numpy as np

from precook.config.concept import ColumnName, Concept, FileName, FixedText
from precook.errors import printable
from precook.sources.captions import from_file_name
from precook.sources.documents import DocumentTable
from precook.sources.embedded import ColumnFacts, TableFile
from precook.sources.facts import FileFacts
from precook.sources.formats import EXTRA_SUFFIXES, SUFFIXES, VIDEO_SUFFIXES
from precook.sources.pictures import reads
from precook.sources.tables import TableRow
from precook.sources.walk import Listing, list_names, mark_outside, walk
from precook.units import by_number
from precook.values import Numbers

PICTURE, CAPTION, OTHER, DOCUMENT = 1, 2, 3, 4
"""Roles of files in a listing: samples, their captions, masks and further pictures, and texts alone."""
NOT_SAMPLES = ("-masklabel", "-condlabel")
"""Ends of names that trainers give to masks and conditions: such files are never samples."""


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedFiles:
    """Pictures that stand in the cells of tables: in a listing they have rows and names, and are no files."""

    first: int
    """The first of them in the listing: all that follow are such."""
    files: tuple[TableFile, ...]
    columns: tuple[str, ...]
    places: Numbers
    """Of each, the number of its file, of its column, and of its row in the file."""
    paths: tuple[str, ...]
    """What stands beside each as its path, or nothing."""
    facts: FileFacts

    def file(self, row: int) -> TableFile:
        """The table that a picture stands in, by its row of the listing."""
        return self.files[int(self.places[row - self.first, 0])]

    def place(self, row: int) -> int:
        """The row of its table that a picture stands in."""
        return int(self.places[row - self.first, 2])

    def read(self, row: int) -> bytes:
        """The bytes of a picture as they are now; `SourceChangedError` where there are none any more."""
        return self.file(row).read(self.columns[int(self.places[row - self.first, 1])], self.place(row))


@dataclass(frozen=True, slots=True)
class SampleFiles:
    """The files of each picture that was found, as rows of a listing; -1 where there is none."""

    listing: Listing
    pictures: Numbers
    captions: Numbers
    masks: Numbers
    texts: tuple[tuple[str, ...] | None, ...] | None = None
    """Captions that come with the pictures, from a table's column."""
    documents: DocumentTable | None = None
    """The rows of a table of texts alone: each stands for a picture, and the table for its file."""
    further: dict[str, Numbers] = field(default_factory=dict)
    """Further pictures, by name."""
    strays: tuple[tuple[str, str], ...] = ()
    """Files that lie where a further picture is looked for and belong to no picture: its name, and their paths."""
    frames: tuple[Numbers, ...] | None = None
    """Of clips that are folders: the frames of each, in their order; `pictures` are the first ones."""
    embedded: EmbeddedFiles | None = None
    """Pictures that stand in tables themselves."""

    def path(self, number: int) -> str:
        """Where a picture lies, relative to the root or as it was given; of a clip that is a folder, that folder."""
        path = self.listing.path(int(self.pictures[number]))
        return path if self.frames is None else path.rpartition("/")[0]

    def is_embedded(self, row: int) -> bool:
        """Whether a row of the listing is a picture in a table."""
        return self.embedded is not None and row >= self.embedded.first

    def given_texts(self, concept: Concept, number: int) -> list[str] | None:
        """A picture's captions from the table, the config or its name; None where they lie in a file of their own."""
        if self.texts is not None:
            return list(self.texts[number] or ())
        if isinstance(concept.captions, FixedText):
            text = concept.captions.text.strip()
        elif isinstance(concept.captions, FileName):
            row, embedded = int(self.pictures[number]), self.embedded
            inside = embedded is not None and row >= embedded.first
            path = embedded.paths[row - embedded.first] if embedded is not None and inside else self.path(number)
            name = os.path.basename(path)  # noqa: PTH119
            text = from_file_name(name.rpartition(".")[0] if self.frames is None else name)
        else:
            return None
        return [text] if text else []


def picture_suffixes() -> tuple[str, ...]:
    """Ends of the names of pictures that can be read here."""
    return (*SUFFIXES, *(suffix for suffix, name in EXTRA_SUFFIXES.items() if reads(name)))


def folder_files(concept: Concept, root: Path, *, clips: bool = False) -> SampleFiles:
    """List a folder and pair what lies in it; videos are samples where something wants `clips`."""
    if clips and concept.clips == "folders":
        return _frame_folders(concept, root)
    sidecar = concept.sidecar_extension
    roles: dict[str, int] = dict.fromkeys((*picture_suffixes(), *(VIDEO_SUFFIXES if clips else ())), PICTURE)
    if sidecar is not None:
        roles[_suffix(sidecar)] = CAPTION
    further = {name: picture.path for name, picture in concept.further.items() if picture.path is not None}
    # No further picture is called mask.
    patterns = {**({"mask": concept.masks} if isinstance(concept.masks, str) else {}), **further}
    for pattern in patterns.values():
        roles.setdefault(_suffix(pattern), OTHER)
    listing = walk(root, roles, recursive=concept.recursive, outside=concept.outside == "allow")
    picture_rows: list[Numbers] = [np.zeros(0, np.int64)]
    caption_rows: list[int] = []
    paths: dict[str, list[str]] = {name: [] for name in patterns}
    for folder, start, stop in listing.folders:
        rows, names = _without_labels(*_with_role(listing, start, stop, PICTURE))
        picture_rows.append(rows)
        if sidecar is not None:
            text_rows, text_names = _with_role(listing, start, stop, CAPTION)
            row_of = dict(zip(text_names, text_rows.tolist(), strict=True))
            sidecars = [name.rpartition(".")[0] + sidecar for name in names]
            caption_rows += map(row_of.get, sidecars, repeat(-1))
        for other, pattern in patterns.items():
            paths[other] += [mask_path(folder + name, pattern) for name in names]
    pictures = np.concatenate(picture_rows)
    none = np.full(len(pictures), -1)
    captions = none if sidecar is None else np.array(caption_rows, np.int64)
    if not patterns:
        return SampleFiles(listing, pictures, captions, none)
    others = {name: _rows_of_paths(listing, some, outside=concept.outside == "allow") for name, some in paths.items()}
    # A mask is no sample of its own, even where it looks like one; nor is a further picture.
    samples = ~np.isin(pictures, np.concatenate([*others.values()]))
    strays: dict[str, str] = {}
    own = [listing.path(row) for row in pictures.tolist()] if further else []
    for name, pattern in further.items():
        # A pattern that leads to the picture itself makes no pair.
        taken = {path for path, picture in zip(paths[name], own, strict=True) if path != picture}
        strays |= dict.fromkeys(_strays(listing, pictures, pattern, taken), name)
    if strays:
        samples &= np.array([path not in strays for path in own], bool)
    return SampleFiles(
        listing,
        pictures[samples],
        captions[samples],
        others.get("mask", none)[samples],
        further={name: others[name][samples] for name in further},
        strays=tuple((name, path) for path, name in strays.items()),
    )


def _frame_folders(concept: Concept, root: Path) -> SampleFiles:
    """Every folder of pictures as one clip: its frames in the order of their names, its caption beside the folder."""
    sidecar = concept.sidecar_extension
    roles: dict[str, int] = dict.fromkeys(picture_suffixes(), PICTURE)
    if sidecar is not None:
        roles[_suffix(sidecar)] = CAPTION
    if isinstance(concept.masks, str):
        roles.setdefault(_suffix(concept.masks), OTHER)
    listing = walk(root, roles, recursive=True, outside=concept.outside == "allow")
    row_of: dict[str, int] = {}
    frames: list[Numbers] = []
    folders: list[str] = []
    for folder, start, stop in listing.folders:
        text_rows, text_names = _with_role(listing, start, stop, CAPTION)
        row_of |= {folder + name: row for name, row in zip(text_names, text_rows.tolist(), strict=True)}
        rows, names = _without_labels(*_with_role(listing, start, stop, PICTURE))
        frames.append(rows[sorted(range(len(names)), key=lambda one, names=names: by_number(names[one]))])  # type: ignore[misc]
        folders.append(folder.rstrip("/"))
    masks = np.full(len(folders), -1)
    if isinstance(concept.masks, str):
        paths = [_beside(folder, concept.masks) for folder in folders]
        masks = _rows_of_paths(listing, paths, outside=concept.outside == "allow")
        frames = [rows[~np.isin(rows, masks)] for rows in frames]
    for rows in (rows for folder, rows in zip(folders, frames, strict=True) if not folder):
        listing.ignored.update(listing.names[row].rpartition(".")[2].lower() for row in rows.tolist())
    kept = [number for number, folder in enumerate(folders) if folder and len(frames[number])]
    return SampleFiles(
        listing,
        np.array([frames[number][0] for number in kept], np.int64),
        np.array([row_of.get(f"{folders[number]}{sidecar}", -1) for number in kept], np.int64),
        masks[kept],
        frames=tuple(frames[number] for number in kept),
    )


def _beside(folder: str, pattern: str) -> str:
    """Where a pattern says that the mask of a clip lies that is a folder: from the folder around it."""
    around, name = os.path.split(folder)
    filled = pattern.replace("{stem}", "\0").replace("{name}", "\0").replace("\0", name)
    return os.path.normpath(os.path.join(around, filled))  # noqa: PTH118


_Line = tuple[tuple[int, int], TableRow]
"""A row of a table that has a picture: the number of its file, and its own among the rows of that; and the row."""


@dataclass(slots=True)
class _TableNames:
    """Collects what the rows of tables name and hold; numbers below -1 stand for pictures in cells."""

    files: Sequence[TableFile]
    found: Mapping[tuple[int, str], ColumnFacts]
    names: list[str] = field(default_factory=list)
    roles: bytearray = field(default_factory=bytearray)
    patterned: list[int] = field(default_factory=list)
    """Which names only follow from a pattern."""
    cells: list[tuple[int, str, int]] = field(default_factory=list)
    """Of each picture in a cell its file, its column, and the number of its row among those of the table."""

    def add(self, name: str, role: int, *, by_pattern: bool = False) -> int:
        """A file by its name; its number."""
        if by_pattern:
            self.patterned.append(len(self.names))
        self.names.append(name)
        self.roles.append(role)
        return len(self.names) - 1

    def cell(self, place: tuple[int, int], column: str, path: str | None, role: int) -> int:
        """What a row has in a column: a picture itself or, where that is null, one by its path; or -1."""
        number, row = place
        facts = self.found.get((number, column))
        if facts is not None and facts.present[row]:
            self.cells.append((number, column, row))
            return -1 - len(self.cells)
        if not path or (facts is None and column in self.files[number].table.embedded):
            return -1
        return self.add(self.beside(number, path), role)

    def beside(self, number: int, path: str) -> str:
        """A path in a table as one from the root."""
        return os.path.join(os.path.dirname(self.files[number].name), path)  # noqa: PTH118, PTH120 - there are many

    def embedded(self, listing: Listing, image_column: str) -> EmbeddedFiles | None:
        """The pictures in cells, which are added to the listing."""
        if not self.cells:
            return None
        names, paths = [], []
        columns = tuple(dict.fromkeys(column for _, column, _ in self.cells))
        places = np.zeros((len(self.cells), 3), np.int64)
        for cell, (number, column, row) in enumerate(self.cells):
            file = self.files[number]
            line = file.table.rows[row]
            own = column == image_column
            names.append(f"{file.name}, row {line.number}" + ("" if own else f", column {column}"))
            paths.append(line.image if own else "")
            places[cell] = number, columns.index(column), line.number - 1
        stamps = np.array([self.files[number].table.stamp for number, _, _ in self.cells], np.int64)
        modes = np.full(len(names), stat.S_IFREG)
        first = len(listing.names)
        roles = bytearray([PICTURE]) * len(names)
        listing.add(Listing(listing.root, names, roles, [("", 0, len(names))], modes=modes, stamps=stamps))
        return EmbeddedFiles(first, tuple(self.files), columns, places, tuple(paths), self._facts())

    def _facts(self) -> FileFacts:
        """What is known of the pictures in cells, in their order."""
        facts = [(self.found[number, column].facts, row) for number, column, row in self.cells]
        return FileFacts(
            np.stack([one.digests[row] for one, row in facts]),
            np.stack([one.facts[row] for one, row in facts]),
            {cell: one.problems[row] for cell, (one, row) in enumerate(facts) if row in one.problems},
        )


def table_files(
    concept: Concept, root: Path, files: Sequence[TableFile], found: Mapping[tuple[int, str], ColumnFacts]
) -> tuple[SampleFiles, list[tuple[str, str]]]:
    """Look at the files that tables name, beside the pictures that they hold, which are known by file and column.

    Also the rows that have no picture, and why.
    """
    names = _TableNames(files, found)
    pictures: list[int] = []
    lines: list[_Line] = []
    problems: list[tuple[str, str]] = []
    for number, file in enumerate(files):
        for row, line in enumerate(file.table.rows):
            picture = names.cell((number, row), concept.image_column, line.image, PICTURE)
            if picture == -1:
                reason = f"no picture in column '{printable(concept.image_column)}': neither bytes nor a path"
                problems.append((f"{file.name}, row {line.number}", reason))
            else:
                pictures.append(picture)
                lines.append(((number, row), line))
    sidecars = [-1] * len(lines)
    if (sidecar := concept.sidecar_extension) is not None:
        for row, picture in enumerate(pictures):
            if picture >= 0:
                sidecars[row] = names.add(os.path.splitext(names.names[picture])[0] + sidecar, CAPTION)  # noqa: PTH122
    named, patterned = _masks_and_further(concept, names, lines)
    listing = list_names(root, names.names, names.roles)
    if concept.outside == "refuse":
        by_pattern = set(names.patterned)
        mark_outside(listing, [row for row in range(len(listing.names)) if row not in by_pattern], by_pattern=False)
        mark_outside(listing, names.patterned, by_pattern=True)
    captions = _present(listing, sidecars)
    # What a table names is meant to be there; what only follows from a pattern may not be.
    rows = {name: _present(listing, some) for name, some in patterned.items()}
    embedded = names.embedded(listing, concept.image_column)
    first = 0 if embedded is None else embedded.first
    rows |= {name: _with_cells(some, first) for name, some in named.items()}
    texts = tuple(line.captions for _, line in lines) if isinstance(concept.captions, ColumnName) else None
    masks = rows.pop("mask", np.full(len(lines), -1))
    further = {name: rows[name] for name in concept.further}
    sample_files = SampleFiles(
        listing, _with_cells(pictures, first), captions, masks, texts, further=further, embedded=embedded
    )
    return sample_files, problems


def _masks_and_further(
    concept: Concept, names: _TableNames, lines: Sequence[_Line]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """What rows have beside their pictures: what their columns name or hold, and what follows from patterns."""
    # No further picture is called mask.
    columns = {"mask": concept.masks.column} if isinstance(concept.masks, ColumnName) else {}
    patterns = {"mask": concept.masks} if isinstance(concept.masks, str) else {}
    columns |= {name: one.column for name, one in concept.further.items() if one.column is not None}
    patterns |= {name: one.path for name, one in concept.further.items() if one.path is not None}
    places = {name: place for place, name in enumerate(name for name in columns if name != "mask")}
    named = {
        name: [
            names.cell(place, column, line.mask if name == "mask" else line.further[places[name]], OTHER)
            for place, line in lines
        ]
        for name, column in columns.items()
    }
    patterned = {
        name: [
            names.add(mask_path(names.beside(place[0], line.image), pattern), OTHER, by_pattern=True)
            if line.image
            else -1
            for place, line in lines
        ]
        for name, pattern in patterns.items()
    }
    return named, patterned


def _with_cells(numbers: list[int], first: int) -> Numbers:
    """Rows of a listing whose pictures in cells begin at `first`."""
    rows = np.array(numbers, np.int64)
    return np.where(rows < -1, first - 2 - rows, rows)


def document_files(concept: Concept, root: Path) -> SampleFiles:
    """List a folder of texts."""
    roles = {_suffix(concept.caption_extension or ".txt"): DOCUMENT}
    listing = walk(root, roles, recursive=concept.recursive, outside=concept.outside == "allow")
    return _of_documents(listing, np.arange(len(listing.names)))


def document_table(path: Path, table: DocumentTable) -> SampleFiles:
    """The texts of a table, whose only file it is itself."""
    listing = list_names(path.parent, [path.name], bytearray([DOCUMENT]))
    return replace(_of_documents(listing, np.zeros(len(table.numbers), np.int64)), documents=table)


def _of_documents(listing: Listing, rows: Numbers) -> SampleFiles:
    none = np.full(len(rows), -1)
    return SampleFiles(listing, rows, none, none)


def mask_path(picture: str, pattern: str) -> str:
    """Where a pattern says that a picture's mask lies."""
    folder, name = os.path.split(picture)
    # By hand, and by way of NULs: a name may itself hold braces.
    filled = pattern.replace("{stem}", "\0s").replace("{name}", "\0n")
    filled = filled.replace("\0s", name.rpartition(".")[0]).replace("\0n", name)
    return os.path.normpath(os.path.join(folder, filled))  # noqa: PTH118


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _with_role(listing: Listing, start: int, stop: int, role: int) -> tuple[Numbers, list[str]]:
    """The files of a directory that have a role: rows and names."""
    chosen = np.frombuffer(listing.roles, np.uint8)[start:stop] == role
    return np.flatnonzero(chosen) + start, list(compress(listing.names[start:stop], chosen.tolist()))


def _without_labels(rows: Numbers, names: list[str]) -> tuple[Numbers, list[str]]:
    """Without those whose name says that they belong to another picture."""
    # One search in all names: nearly every folder has none of them.
    text = "\0".join(names)
    if not any(f"{mark}." in text for mark in NOT_SAMPLES):
        return rows, names
    keep = [not name.rpartition(".")[0].endswith(NOT_SAMPLES) for name in names]
    return rows[keep], list(compress(names, keep))


def _rows_of_paths(listing: Listing, paths: list[str], *, outside: bool) -> Numbers:
    """The rows of files by their paths; those the walk has not seen are looked at now, and added."""
    row_of = {folder + listing.names[row]: row for folder, start, stop in listing.folders for row in range(start, stop)}
    unseen = [path for path in dict.fromkeys(paths) if path not in row_of]
    if unseen:
        first = len(listing.names)
        others = list_names(listing.root, unseen, bytearray([OTHER]) * len(unseen))
        if not outside:
            mark_outside(others, range(len(unseen)), by_pattern=True)
        # Only of these can one be absent: a link to nothing that the walk has listed is there, and unusable.
        present = (~others.absent()).tolist()
        listing.add(others)
        row_of |= {path: first + number for number, path in enumerate(unseen) if present[number]}
    return np.array([row_of.get(path, -1) for path in paths], np.int64)


def _strays(listing: Listing, pictures: Numbers, pattern: str, taken: set[str]) -> Iterator[str]:
    """Files that are named as the pattern says, where it points from the folders of these pictures, and not taken."""
    place, name = os.path.split(pattern)
    parts = re.split(r"\{(?:stem|name)\}", name)
    if len(parts) != 2 or "{" in place:  # noqa: PLR2004 - before and after the only placeholder
        return
    begin, end = parts
    starts = [start for _, start, _ in listing.folders]
    numbers = np.unique(np.searchsorted(starts, pictures, side="right") - 1)
    folders = {listing.folders[number][0] for number in numbers.tolist()}
    # The first of a name: files that were looked for by name stand behind those that the walk has listed.
    listed = {folder: (start, stop) for folder, start, stop in reversed(listing.folders)}
    for folder in sorted(folders):
        target = os.path.normpath(os.path.join(folder, place))  # noqa: PTH118
        inside = "" if target == "." else f"{target}/"
        if inside in listed:
            names = listing.names[slice(*listed[inside])]
        else:
            try:
                names = sorted(entry.name for entry in os.scandir(listing.root / target) if entry.name[0] != ".")
            except OSError:
                continue  # each picture says that it lacks its own
        for other in names:
            ours = other.startswith(begin) and other.endswith(end) and len(other) > len(begin) + len(end)
            path = os.path.normpath(inside + other)
            if ours and _suffix(other) in SUFFIXES and path not in taken:
                yield path


def _present(listing: Listing, numbers: list[int]) -> Numbers:
    """Rows, with -1 for those of files that are not there."""
    rows = np.array(numbers, np.int64)
    return np.where((rows >= 0) & ~listing.absent()[rows], rows, -1) if len(listing.names) else rows
