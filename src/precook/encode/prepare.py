"""Preparing: from planned entries to items, read from the sources as they are now.

What is read is compared with what was planned: bytes of another digest are never encoded under the old one's key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precook.encode.encoder import Item
from precook.errors import SourceChangedError
from precook.fs.read import read_source
from precook.identity.digest import digest
from precook.plan.entries import EncoderPlan, PlannedEntry
from precook.sources.captions import CaptionError
from precook.sources.crop import cut, cut_mask
from precook.sources.geometry import Geometry
from precook.sources.image import RefusedError, decode, decode_mask
from precook.sources.samples import ConceptSamples

_LOOK = 0.1
"""Seconds between two looks at whether it is time to stop."""


class MemoryBudget:
    """How much memory is left for what is on its way; safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._changed = threading.Condition()

    def has(self, nbytes: int) -> bool:
        """Whether so much fits; anything does where nothing else is."""
        return self._taken == 0 or self._taken + nbytes <= self._size

    def take(self, nbytes: int) -> None:
        """Count so much as taken."""
        with self._changed:
            self._taken += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count it as free."""
        with self._changed:
            self._taken -= nbytes
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait a moment for somebody to give something back."""
        with self._changed:
            self._changed.wait(_LOOK)


WHITE = 255
_DECODING = 8
"""Bytes that a pixel of the source takes while it is decoded: Pillow's four, and copies of three and less."""


@dataclass(frozen=True, slots=True)
class Job:
    """An entry and what is to be encoded for it."""

    entry: PlannedEntry
    item: Item

    @property
    def nbytes(self) -> int:
        """Memory that the item takes."""
        pixels = self._pixels
        return pixels.nbytes if pixels is not None else len(self.item.text or "")

    @property
    def shape(self) -> tuple[int, ...]:
        """What the items of one batch share: the picture's size; nothing for texts."""
        pixels = self._pixels
        return pixels.shape[:2] if pixels is not None else ()

    @property
    def _pixels(self) -> npt.NDArray[np.uint8] | None:
        return self.item.image if self.item.image is not None else self.item.mask


@dataclass(frozen=True, slots=True)
class Changed:
    """An entry whose source is no longer what was planned."""

    entry: PlannedEntry


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry whose source turned out to be unusable when it was read, and why."""

    entry: PlannedEntry
    reason: str
    lasting: bool
    """Whether its content is to blame: trying again would give the same."""


Prepared = Job | Changed | Refused


@dataclass(frozen=True, slots=True)
class Unit:
    """Entries that come from one file: it is read and decoded once for all of them."""

    entries: tuple[PlannedEntry, ...]
    nbytes: int
    """Memory that preparing it takes, roughly."""
    read: Callable[[Sequence[PlannedEntry]], list[Prepared]]

    def prepare(self) -> list[Prepared]:
        """What has become of each entry; whatever is wrong with one file must not end the work on all others."""
        try:
            return self.read(self.entries)
        except SourceChangedError:
            return [Changed(entry) for entry in self.entries]
        except (RefusedError, CaptionError) as error:
            return self._refused(str(error), lasting=True)
        except OSError as error:
            return self._refused(f"cannot be read: {error.strerror or error}")
        except MemoryError:
            return self._refused("cannot be read: there is not enough memory for it")
        except Exception as error:  # noqa: BLE001 - not remembered: a later version may do better
            return self._refused(f"cannot be understood: {type(error).__name__}: {error}")

    def _refused(self, reason: str, *, lasting: bool = False) -> list[Prepared]:
        return [Refused(entry, reason, lasting) for entry in self.entries]


def make_units(plan: EncoderPlan, entries: Sequence[PlannedEntry], background: tuple[int, int, int]) -> list[Unit]:
    """Entries by the file they come from, in the order of the first of each."""
    groups: dict[object, list[PlannedEntry]] = {}
    for entry in entries:
        # A white mask and the empty prompt come from nowhere, and each is on its own.
        groups.setdefault(entry.key if _from_nowhere(entry) else entry.sample, []).append(entry)
    return [_unit(plan, tuple(group), background) for group in groups.values()]


def _unit(plan: EncoderPlan, entries: tuple[PlannedEntry, ...], background: tuple[int, int, int]) -> Unit:
    kind = plan.wants.encoding.input
    if entries[0].sample is None:
        return Unit(entries, 0, _empty_prompt)
    home, number = plan.samples.in_concept(entries[0].sample)
    if kind == "text":
        return Unit(entries, 0, partial(_read_texts, home, number))
    targets = sum(3 * width * height for width, height in (_geometry(entry).target for entry in entries))
    if entries[0].parts.white:
        return Unit(entries, targets, _whiten)
    width, height = _geometry(entries[0]).source
    read: Callable[[Sequence[PlannedEntry]], list[Prepared]]
    if kind == "mask":
        read = partial(_read_mask, home.mask_path(number) or "")
    else:
        read = partial(_read_picture, home.full_path(number), background)
    return Unit(entries, _DECODING * width * height + targets, read)


def _from_nowhere(entry: PlannedEntry) -> bool:
    return entry.sample is None or entry.parts.white


def _empty_prompt(entries: Sequence[PlannedEntry]) -> list[Prepared]:
    return [Job(entry, Item(text="")) for entry in entries]


def _whiten(entries: Sequence[PlannedEntry]) -> list[Prepared]:
    return [Job(entry, Item(mask=_white(_geometry(entry)))) for entry in entries]


def _read_picture(path: str, background: tuple[int, int, int], entries: Sequence[PlannedEntry]) -> list[Prepared]:
    picture = decode(_content(path, entries[0]), background=background)
    return [Job(entry, Item(image=cut(picture, _geometry(entry)))) for entry in entries]


def _read_mask(path: str, entries: Sequence[PlannedEntry]) -> list[Prepared]:
    mask = decode_mask(_content(path, entries[0]))
    return [Job(entry, Item(mask=cut_mask(mask, _geometry(entry)))) for entry in entries]


def _read_texts(home: ConceptSamples, number: int, entries: Sequence[PlannedEntry]) -> list[Prepared]:
    # By digest, not by line: lines may have been reordered since.
    texts = {digest(text).bytes: text for text in home.texts(number)}
    found = [(entry, texts.get(entry.parts.input)) for entry in entries]
    return [Changed(entry) if text is None else Job(entry, Item(text=text)) for entry, text in found]


def _content(path: str, entry: PlannedEntry) -> bytes:
    """A file's bytes, if they are what was planned."""
    content = read_source(path)
    if digest(content) != entry.input:
        raise SourceChangedError(Path(path))
    return content


def _geometry(entry: PlannedEntry) -> Geometry:
    assert entry.parts.geometry is not None
    return entry.parts.geometry


def _white(geometry: Geometry) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    width, height = geometry.target
    return np.full((height, width), WHITE, np.uint8)
