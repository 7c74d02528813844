"""Files of samples: each picture of a folder or a table with its caption file, its mask and its further pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import compress, repeat
from pathlib import Path

import numpy as np

from precook.config.concept import ColumnName, Concept, FileName, FixedText
from precook.sources.captions import from_file_name
from precook.sources.documents import DocumentTable
from precook.sources.formats import EXTRA_SUFFIXES, SUFFIXES, VIDEO_SUFFIXES
from precook.sources.pictures import reads
from precook.sources.tables import SourceTable
from precook.sources.walk import Listing, list_names, mark_outside, walk
from precook.units import by_number
from precook.values import Numbers

PICTURE, CAPTION, OTHER, DOCUMENT = 1, 2, 3, 4
"""Roles of files in a listing: samples, their captions, masks and further pictures, and texts alone."""
NOT_SAMPLES = ("-masklabel", "-condlabel")
"""Ends of names that trainers give to masks and conditions: such files are never samples."""


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

    def path(self, number: int) -> str:
        """Where a picture lies, relative to the root or as it was given; of a clip that is a folder, that folder."""
        path = self.listing.path(int(self.pictures[number]))
        return path if self.frames is None else path.rpartition("/")[0]

    def given_texts(self, concept: Concept, number: int) -> list[str] | None:
        """A picture's captions from the table, the config or its name; None where they lie in a file of their own."""
        if self.texts is not None:
            return list(self.texts[number] or ())
        if isinstance(concept.captions, FixedText):
            text = concept.captions.text.strip()
        elif isinstance(concept.captions, FileName):
            name = os.path.basename(self.path(number))  # noqa: PTH119
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


def table_files(concept: Concept, path: Path, table: SourceTable) -> SampleFiles:
    """Look at the files that a table names."""
    names = [row.image for row in table.rows]
    roles = bytearray([PICTURE]) * len(names)
    captions = [-1] * len(table.rows)
    if (sidecar := concept.sidecar_extension) is not None:
        captions = list(range(len(names), 2 * len(names)))
        names += [os.path.splitext(name)[0] + sidecar for name in names]  # noqa: PTH122
        roles += bytearray([CAPTION]) * len(captions)
    columns = [name for name, picture in concept.further.items() if picture.column is not None]
    wanted: list[tuple[list[str | None], bool]] = []
    """What else the rows name or a pattern says: paths, and whether by a pattern."""
    pattern = concept.masks
    if isinstance(pattern, ColumnName):
        wanted.append(([row.mask for row in table.rows], False))
    elif pattern is not None:
        wanted.append(([mask_path(row.image, pattern) for row in table.rows], True))
    for name, picture in concept.further.items():
        if picture.path is None:
            wanted.append(([row.further[columns.index(name)] for row in table.rows], False))
        else:
            wanted.append(([mask_path(row.image, picture.path) for row in table.rows], True))
    patterned = [False] * len(names)
    found: list[list[int]] = []
    for paths, by_pattern in wanted:
        next_row = iter(range(len(names), len(names) + len(paths)))
        found.append([-1 if path is None else next(next_row) for path in paths])
        named = [path for path in paths if path is not None]
        names += named
        roles += bytearray([OTHER]) * len(named)
        patterned += [by_pattern] * len(named)
    listing = list_names(path.parent, names, roles)
    if concept.outside == "refuse":
        for by_pattern in (False, True):
            rows = [row for row, is_pattern in enumerate(patterned) if is_pattern is by_pattern]
            mark_outside(listing, rows, by_pattern=by_pattern)
    texts = tuple(row.captions for row in table.rows) if isinstance(concept.captions, ColumnName) else None
    # What a table names is meant to be there; what only follows from a pattern may not be.
    others = [
        _present(listing, rows) if by_pattern else np.array(rows, np.int64)
        for rows, (_, by_pattern) in zip(found, wanted, strict=True)
    ]
    masks = np.full(len(table.rows), -1) if pattern is None else others.pop(0)
    further = dict(zip(concept.further, others, strict=True))
    return SampleFiles(listing, np.arange(len(table.rows)), _present(listing, captions), masks, texts, further=further)


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
