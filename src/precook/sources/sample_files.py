"""Files of samples: each picture of a folder or a table with its caption file and its mask."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import compress, repeat
from pathlib import Path

import numpy as np

from precook.config.concept import ColumnName, Concept, FileName, FixedText
from precook.sources.captions import from_file_name
from precook.sources.documents import DocumentTable
from precook.sources.formats import SUFFIXES, VIDEO_SUFFIXES
from precook.sources.tables import SourceTable
from precook.sources.walk import Listing, list_names, mark_outside, walk
from precook.values import Numbers

PICTURE, CAPTION, MASK, DOCUMENT = 1, 2, 3, 4
"""Roles of files in a listing."""
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

    def given_texts(self, concept: Concept, number: int) -> list[str] | None:
        """A picture's captions from the table, the config or its name; None where they lie in a file of their own."""
        if self.texts is not None:
            return list(self.texts[number] or ())
        if isinstance(concept.captions, FixedText):
            text = concept.captions.text.strip()
        elif isinstance(concept.captions, FileName):
            name = self.listing.names[int(self.pictures[number])]
            text = from_file_name(os.path.basename(name).rpartition(".")[0])  # noqa: PTH119
        else:
            return None
        return [text] if text else []


def folder_files(concept: Concept, root: Path, *, clips: bool = False) -> SampleFiles:
    """List a folder and pair what lies in it; videos are samples where something wants `clips`."""
    sidecar = concept.sidecar_extension
    roles: dict[str, int] = dict.fromkeys((*SUFFIXES, *(VIDEO_SUFFIXES if clips else ())), PICTURE)
    if sidecar is not None:
        roles[_suffix(sidecar)] = CAPTION
    if isinstance(concept.masks, str):
        roles.setdefault(_suffix(concept.masks), MASK)
    listing = walk(root, roles, recursive=concept.recursive, outside=concept.outside == "allow")
    picture_rows: list[Numbers] = [np.zeros(0, np.int64)]
    caption_rows: list[int] = []
    mask_paths: list[str] = []
    for folder, start, stop in listing.folders:
        rows, names = _without_labels(*_with_role(listing, start, stop, PICTURE))
        picture_rows.append(rows)
        if sidecar is not None:
            text_rows, text_names = _with_role(listing, start, stop, CAPTION)
            row_of = dict(zip(text_names, text_rows.tolist(), strict=True))
            sidecars = [name.rpartition(".")[0] + sidecar for name in names]
            caption_rows += map(row_of.get, sidecars, repeat(-1))
        if isinstance(concept.masks, str):
            mask_paths += [mask_path(folder + name, concept.masks) for name in names]
    pictures = np.concatenate(picture_rows)
    none = np.full(len(pictures), -1)
    captions = none if sidecar is None else np.array(caption_rows, np.int64)
    if not mask_paths:
        return SampleFiles(listing, pictures, captions, none)
    masks = _rows_of_paths(listing, mask_paths, outside=concept.outside == "allow")
    # A mask is no sample of its own, even where it looks like one.
    samples = ~np.isin(pictures, masks)
    return SampleFiles(listing, pictures[samples], captions[samples], masks[samples])


def table_files(concept: Concept, path: Path, table: SourceTable) -> SampleFiles:
    """Look at the files that a table names."""
    names = [row.image for row in table.rows]
    roles = bytearray([PICTURE]) * len(names)
    captions = masks = [-1] * len(table.rows)
    if (sidecar := concept.sidecar_extension) is not None:
        captions = list(range(len(names), 2 * len(names)))
        names += [os.path.splitext(name)[0] + sidecar for name in names]  # noqa: PTH122
        roles += bytearray([CAPTION]) * len(captions)
    pattern = concept.masks
    if pattern is not None:
        mask_names = [
            row.mask if isinstance(pattern, ColumnName) else mask_path(row.image, pattern) for row in table.rows
        ]
        next_row = iter(range(len(names), len(names) + len(mask_names)))
        masks = [-1 if name is None else next(next_row) for name in mask_names]
        named = [name for name in mask_names if name is not None]
        names += named
        roles += bytearray([MASK]) * len(named)
    listing = list_names(path.parent, names, roles)
    if concept.outside == "refuse":
        from_pattern = len(mask_names) if isinstance(pattern, str) else 0
        mark_outside(listing, range(len(names) - from_pattern), by_pattern=False)
        mark_outside(listing, range(len(names) - from_pattern, len(names)), by_pattern=True)
    texts = tuple(row.captions for row in table.rows) if isinstance(concept.captions, ColumnName) else None
    # What a table names is meant to be there; what only follows from a pattern may not be.
    mask_rows = np.array(masks, np.int64) if isinstance(pattern, ColumnName) else _present(listing, masks)
    return SampleFiles(listing, np.arange(len(table.rows)), _present(listing, captions), mask_rows, texts)


def document_files(concept: Concept, root: Path) -> SampleFiles:
    """List a folder of texts."""
    roles = {_suffix(concept.caption_extension or ".txt"): DOCUMENT}
    listing = walk(root, roles, recursive=concept.recursive, outside=concept.outside == "allow")
    return _of_documents(listing, np.arange(len(listing.names)))


def document_table(path: Path, table: DocumentTable) -> SampleFiles:
    """The texts of a table, whose only file it is itself."""
    listing = list_names(path.parent, [path.name], bytearray([DOCUMENT]))
    return replace(_of_documents(listing, np.zeros(len(table.texts), np.int64)), documents=table)


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
        others = list_names(listing.root, unseen, bytearray([MASK]) * len(unseen))
        if not outside:
            mark_outside(others, range(len(unseen)), by_pattern=True)
        # Only of these can one be absent: a link to nothing that the walk has listed is there, and unusable.
        present = (~others.absent()).tolist()
        listing.add(others)
        row_of |= {path: first + number for number, path in enumerate(unseen) if present[number]}
    return np.array([row_of.get(path, -1) for path in paths], np.int64)


def _present(listing: Listing, numbers: list[int]) -> Numbers:
    """Rows, with -1 for those of files that are not there."""
    rows = np.array(numbers, np.int64)
    return np.where((rows >= 0) & ~listing.absent()[rows], rows, -1) if len(listing.names) else rows
