"""Pairing: which caption and which mask belong to which picture, by name and never by position."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import compress, repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.config.models import Column, Concept, Sidecar
from precook.sources.tables import Table
from precook.sources.walk import Listing, list_names, walk

PICTURE, CAPTION, MASK = 1, 2, 3
SUFFIXES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "avif", "bmp", "tif", "tiff", "gif")
NOT_SAMPLES = ("-masklabel", "-condlabel")
"""Ends of names that trainers give to masks and conditions: such files are never samples."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of a listing that belong together; -1 where there is none."""

    listing: Listing
    pictures: Numbers
    captions: Numbers
    masks: Numbers
    texts: tuple[tuple[str, ...] | None, ...] | None = None
    """Captions that come with the pictures, from a table's column."""


def pair_folder(concept: Concept, root: Path, *, helpers: int | None = None) -> Pairs:
    """List a folder and pair what lies in it."""
    sidecar = isinstance(concept.captions, Sidecar)
    roles: dict[str, int] = dict.fromkeys(SUFFIXES, PICTURE)
    if sidecar:
        roles[_suffix(concept.caption_extension)] = CAPTION
    if isinstance(concept.masks, str):
        roles.setdefault(_suffix(concept.masks), MASK)
    listing = walk(root, roles, recursive=concept.recursive, helpers=helpers)
    pictures: list[Numbers] = [np.zeros(0, np.int64)]
    captions: list[int] = []
    wanted_masks: list[str] = []
    for folder, start, stop in listing.folders:
        rows, names = _files(listing, start, stop, PICTURE)
        rows, names = _samples(rows, names)
        pictures.append(rows)
        if sidecar:
            at, beside = _files(listing, start, stop, CAPTION)
            here = dict(zip(beside, at.tolist(), strict=True))
            wanted = [name.rpartition(".")[0] + concept.caption_extension for name in names]
            captions += map(here.get, wanted, repeat(-1))
        if isinstance(concept.masks, str):
            wanted_masks += [mask_path(folder + name, concept.masks) for name in names]
    rows = np.concatenate(pictures)
    none = np.full(len(rows), -1)
    masks = _find(listing, wanted_masks) if wanted_masks else none
    found = np.array(captions, np.int64) if sidecar else none
    if not wanted_masks:
        return Pairs(listing, rows, found, masks)
    # A mask is no sample of its own, even where it looks like one.
    samples = ~np.isin(rows, masks)
    return Pairs(listing, rows[samples], found[samples], masks[samples])


def pair_table(concept: Concept, path: Path, table: Table, *, helpers: int | None = None) -> Pairs:
    """Look at the files that a table names."""
    names = [row.image for row in table.rows]
    none = [-1] * len(names)
    captions = masks = none
    wanted = list(names)
    roles = bytearray([PICTURE]) * len(names)
    if isinstance(concept.captions, Sidecar):
        sidecars = [os.path.splitext(name)[0] + concept.caption_extension for name in names]  # noqa: PTH122
        captions = list(range(len(wanted), len(wanted) + len(names)))
        wanted += sidecars
        roles += bytearray([CAPTION]) * len(names)
    if concept.masks is not None:
        pattern = concept.masks
        found = [row.mask if isinstance(pattern, Column) else mask_path(row.image, pattern) for row in table.rows]
        at = iter(range(len(wanted), len(wanted) + len(found)))
        masks = [next(at) if name is not None else -1 for name in found]
        present = [name for name in found if name is not None]
        wanted += present
        roles += bytearray([MASK]) * len(present)
    listing = list_names(path.parent, wanted, roles, helpers=helpers)
    texts = tuple(row.captions for row in table.rows) if isinstance(concept.captions, Column) else None
    # What a table names is meant to be there; what only follows from a pattern may not be.
    mask_rows = np.array(masks, np.int64) if isinstance(concept.masks, Column) else _present(listing, masks)
    return Pairs(listing, np.arange(len(names)), _present(listing, captions), mask_rows, texts)


def _files(listing: Listing, start: int, stop: int, role: int) -> tuple[Numbers, list[str]]:
    """The files of a directory that have a role: rows and names."""
    chosen = np.frombuffer(listing.roles, np.uint8)[start:stop] == role
    return np.flatnonzero(chosen) + start, list(compress(listing.names[start:stop], chosen.tolist()))


def _samples(rows: Numbers, names: list[str]) -> tuple[Numbers, list[str]]:
    """Without those whose name says that they belong to another picture."""
    text = "\0".join(names)
    if not any(f"{mark}." in text for mark in NOT_SAMPLES):
        return rows, names
    keep = [not name.rpartition(".")[0].endswith(NOT_SAMPLES) for name in names]
    return rows[keep], list(compress(names, keep))


def _find(listing: Listing, wanted: list[str]) -> Numbers:
    """The rows of files by their paths; those the walk has not seen are looked at now."""
    known = {folder + listing.names[row]: row for folder, start, stop in listing.folders for row in range(start, stop)}
    beyond = [name for name in dict.fromkeys(wanted) if name not in known]
    if beyond:
        first = len(listing.names)
        others = list_names(listing.root, beyond, bytearray([MASK]) * len(beyond))
        # Only of these can one be absent: a link to nothing that the walk has listed is there, and unusable.
        there = (~others.absent()).tolist()
        listing.add(others)
        known |= {name: first + at for at, name in enumerate(beyond) if there[at]}
    return np.array([known.get(name, -1) for name in wanted], np.int64)


def _present(listing: Listing, rows: list[int]) -> Numbers:
    """Rows, without those of files that are not there."""
    found = np.array(rows, np.int64)
    return np.where((found >= 0) & ~listing.absent()[found], found, -1) if len(listing.names) else found


def mask_path(picture: str, pattern: str) -> str:
    """Where a pattern says that a picture's mask lies."""
    folder, name = os.path.split(picture)
    # By hand, and by way of NULs: a name may itself hold braces.
    filled = pattern.replace("{stem}", "\0s").replace("{name}", "\0n")
    filled = filled.replace("\0s", name.rpartition(".")[0]).replace("\0n", name)
    return os.path.normpath(os.path.join(folder, filled))  # noqa: PTH118


def _suffix(name: str) -> str:
    return name.rpartition(".")[2].lower()
