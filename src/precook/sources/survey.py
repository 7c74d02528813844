"""The survey: what lies in a folder, so that `precook init` can write a config that fits it."""

from __future__ import annotations

import os
from pathlib import Path

from precook.config.template import FoundConcept
from precook.errors import SourceError
from precook.sources.pairing import CAPTION, NOT_SAMPLES, PICTURE, SUFFIXES
from precook.sources.pictures import RefusedError, read_facts
from precook.sources.walk import Listing, walk

_LOOKED_AT = 200
"""Pictures whose size is read: enough to tell the usual one."""
_MASK_PATTERNS = ("{stem}-masklabel.png", "{stem}-mask.png", "{stem}_mask.png", "masks/{stem}.png", "mask/{stem}.png")
_ROLES = {**dict.fromkeys(SUFFIXES, PICTURE), "txt": CAPTION}


def survey(folder: Path, base: Path) -> list[FoundConcept]:
    """The concepts in a folder: each of its folders that holds pictures, or the folder itself if pictures lie in it.

    `base` is where the config file will lie; paths are relative to it. `SourceError` where there are no pictures.
    """
    listing = walk(folder, _ROLES, recursive=True)
    direct = [at for at in _pictures(listing) if "/" not in listing.path(at)]
    groups = sorted({listing.path(at).split("/")[0] for at in _pictures(listing)}) if not direct else []
    if len(groups) > 1:
        return [_concept(walk(folder / name, _ROLES, recursive=True), base) for name in groups]
    if not _pictures(listing):
        hint = f"pictures end in {', '.join('.' + suffix for suffix in SUFFIXES)}"
        raise SourceError(folder, "no pictures in there", hint=hint)
    return [_concept(listing, base)]


def _concept(listing: Listing, base: Path) -> FoundConcept:
    known = {listing.path(row) for row in range(len(listing.names))}
    pictures = _pictures(listing)
    stems = {row: os.path.splitext(listing.path(row))[0] for row in pictures}  # noqa: PTH122
    pattern = next((one for one in _MASK_PATTERNS if any(_mask(stem, one) in known for stem in stems.values())), None)
    masks = {_mask(stem, pattern) for stem in stems.values()} if pattern else set()
    samples = [row for row in pictures if listing.path(row) not in masks]
    captioned = any(f"{stems[row]}.txt" in known for row in samples)
    sides = _sides(listing, samples)
    return FoundConcept(
        name=listing.root.resolve().name or "pictures",
        path=os.path.relpath(listing.root, base).replace(os.sep, "/"),
        images=len(samples),
        captions="sidecar" if captioned else "filename" if _telling(listing, samples) else "none",
        masks=pattern,
        min_side=min(sides, default=0),
        max_side=max(sides, default=0),
    )


def _pictures(listing: Listing) -> list[int]:
    return [
        row
        for row, role in enumerate(listing.roles)
        if role == PICTURE and not listing.names[row].rpartition(".")[0].endswith(NOT_SAMPLES)
    ]


def _mask(stem: str, pattern: str) -> str:
    folder, name = os.path.split(stem)
    return os.path.join(folder, pattern.replace("{stem}", name))  # noqa: PTH118


def _telling(listing: Listing, rows: list[int]) -> bool:
    """Whether file names read like captions: several words, most of them."""
    names = [listing.names[row].rpartition(".")[0] for row in rows]
    return 2 * sum(len(name.split()) > 2 and any(char.isalpha() for char in name) for name in names) > len(names)  # noqa: PLR2004


def _sides(listing: Listing, rows: list[int]) -> list[int]:
    """The side of a square of the same area, of some pictures."""
    step = max(1, len(rows) // _LOOKED_AT)
    sides = []
    for row in rows[::step]:
        try:
            facts = read_facts(Path(listing.full_path(row)).read_bytes())
        except (OSError, RefusedError):
            continue  # `plan` names it
        sides.append(round((facts.width * facts.height) ** 0.5))
    return sides
