"""Preparing: from planned entries to items, read from the sources as they are now.

What is read is compared with what was planned: bytes of another digest are never encoded under the old one's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.encode.encoder import Item
from precook.errors import SourceChangedError
from precook.identity.digests import digest
from precook.plan.entries import PlannedEntry
from precook.plan.plan import EncoderPlan
from precook.sources.captions import CaptionError
from precook.sources.cutting import cut, cut_mask
from precook.sources.geometry import Geometry
from precook.sources.pictures import RefusedError, decode, decode_mask

WHITE = 255


class UnusableError(Exception):
    """A source that turned out to be unusable when it was read; the message says why.

    `lasting` where its content is to blame: trying again would give the same.
    """

    def __init__(self, message: str, *, lasting: bool) -> None:
        super().__init__(message)
        self.lasting = lasting


@dataclass(frozen=True, slots=True)
class Job:
    """An entry and what is to be encoded for it."""

    entry: PlannedEntry
    item: Item

    @property
    def nbytes(self) -> int:
        """Memory that the item takes."""
        arrays = (self.item.image, self.item.mask)
        return sum(array.nbytes for array in arrays if array is not None) + len(self.item.text or "")

    @property
    def shape(self) -> tuple[int, ...]:
        """What the items of one batch share: the picture's size; nothing for texts."""
        array = self.item.image if self.item.image is not None else self.item.mask
        return array.shape[:2] if array is not None else ()


@dataclass(frozen=True, slots=True)
class Unit:
    """Entries that come from one file: it is read and decoded once for all of them."""

    entries: tuple[PlannedEntry, ...]
    path: str | None
    """None for white masks, which come from nowhere."""
    background: tuple[int, int, int]

    @property
    def nbytes(self) -> int:
        """Memory that its items will take, roughly."""
        return sum(3 * width * height for width, height in (_geometry(entry).target for entry in self.entries))

    def prepare(self, kind: str) -> list[Job]:
        """Read, decode and cut; `SourceChangedError` or `UnusableError` where that cannot be done as planned."""
        first = self.entries[0]
        if self.path is None:
            return [Job(entry, Item(mask=_white(_geometry(entry)))) for entry in self.entries]
        try:
            content = Path(self.path).read_bytes()
        except OSError as error:
            raise UnusableError(f"cannot be read: {error.strerror}", lasting=False) from error
        if digest(content) != first.input:
            raise SourceChangedError(Path(self.path))
        try:
            if kind == "mask":
                mask = decode_mask(content)
                return [Job(entry, Item(mask=cut_mask(mask, _geometry(entry)))) for entry in self.entries]
            picture = decode(content, background=self.background)
            return [Job(entry, Item(image=cut(picture, _geometry(entry)))) for entry in self.entries]
        except RefusedError as error:
            raise UnusableError(str(error), lasting=True) from error


def picture_units(plan: EncoderPlan, entries: Sequence[PlannedEntry], background: tuple[int, int, int]) -> list[Unit]:
    """Entries of pictures or masks by the file they come from, those that are cut alike one after the other."""
    groups: dict[tuple[str | None, bytes], list[PlannedEntry]] = {}
    for entry in entries:
        groups.setdefault((_file(plan, entry), entry.input.bytes), []).append(entry)
    units = [Unit(tuple(group), path, background) for (path, _), group in groups.items()]
    return sorted(units, key=lambda unit: ([_geometry(entry).target for entry in unit.entries], unit.path or ""))


def text_jobs(
    plan: EncoderPlan, entries: Sequence[PlannedEntry]
) -> Iterator[Job | tuple[PlannedEntry, SourceChangedError | UnusableError]]:
    """The texts of entries, read now; for one that is no longer what was planned, the error instead."""
    for entry in entries:
        try:
            yield Job(entry, Item(text=_text(plan, entry)))
        except (SourceChangedError, UnusableError) as error:
            yield entry, error


def _text(plan: EncoderPlan, entry: PlannedEntry) -> str:
    if entry.sample is None or entry.line is None:
        return ""
    home, number = plan.samples.home(entry.sample)
    try:
        texts = home.texts(number)
    except OSError as error:
        raise UnusableError(f"its caption cannot be read: {error.strerror}", lasting=False) from error
    except CaptionError as error:
        raise UnusableError(str(error), lasting=True) from error
    # By digest, not by line: lines may have been reordered since.
    found = next((text for text in texts if digest(text) == entry.input), None)
    if found is None:
        raise SourceChangedError(Path(home.caption_path(number) or home.full_path(number)))
    return found


def _file(plan: EncoderPlan, entry: PlannedEntry) -> str | None:
    if entry.parts.white or entry.sample is None:
        return None
    home, number = plan.samples.home(entry.sample)
    return home.mask_path(number) if plan.wants.encoding.input == "mask" else home.full_path(number)


def _geometry(entry: PlannedEntry) -> Geometry:
    assert entry.parts.geometry is not None
    return entry.parts.geometry


def _white(geometry: Geometry) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    width, height = geometry.target
    return np.full((height, width), WHITE, np.uint8)
