"""Preparing: from planned entries to the items that an encoder gets, read from the sources as they are now.

What is read is compared with what was planned: bytes of another digest are never encoded under the old one's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.encode.encoder import Item
from precook.encode.stages import StageTimes
from precook.errors import SourceChangedError
from precook.fs.read import read_small
from precook.identity.digest import digest
from precook.plan.entries import PlannedEntry
from precook.plan.targets import Samples
from precook.plan.wanted import Input
from precook.sources.captions import CaptionError
from precook.sources.clips import decode_frames
from precook.sources.crop import cut, cut_mask
from precook.sources.documents import text_digest
from precook.sources.facts import LARGEST
from precook.sources.frame_choice import FrameTimes, frame_numbers
from precook.sources.geometry import Geometry
from precook.sources.pictures import DecodedPicture, RefusedError, decode_image, decode_mask
from precook.values import Pixels

_WHITE = 255
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
        return pixels.nbytes if pixels is not None else len(self.text or "")

    @property
    def text(self) -> str | None:
        """The text, or a text in parts as it is written; None for pictures."""
        return self.item.text if self.item.document is None else self.item.document.form

    @property
    def shape(self) -> tuple[int, ...]:
        """What the items of one batch share: the picture's size, of a clip also its frames; nothing for texts."""
        pixels = self._pixels
        if pixels is None:
            return ()
        return pixels.shape[:2] if self.item.video is None else pixels.shape[:3]

    @property
    def _pixels(self) -> Pixels | None:
        item = self.item
        return item.image if item.image is not None else item.mask if item.mask is not None else item.video


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

    samples: Samples
    takes: Input
    """What of its sample is read."""
    entries: Sequence[PlannedEntry]
    """Of one encoder or of several."""
    background: tuple[int, int, int]
    """What shows through where a picture is transparent."""
    nbytes: int
    """Memory that preparing it takes, roughly."""

    def prepare(self, times: StageTimes) -> list[Prepared]:
        """What has become of each entry; whatever is wrong with one file must not end the work on all others."""
        try:
            return list(self._read(times))
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

    def _read(self, times: StageTimes) -> Iterator[Prepared]:
        first = self.entries[0]
        if first.sample is None:
            yield from (Job(entry, Item(text="")) for entry in self.entries)
            return
        concept, number = self.samples.in_concept(first.sample)
        if self.takes == "text":
            # By digest, not by line: lines may have been reordered since.
            with times.measured("reading"):
                found = concept.texts(number) if concept.passages is None else concept.document(number)
                texts = {text_digest(text): text for text in found}
            for entry in self.entries:
                text = texts.get(entry.parts.input)
                if text is None:
                    yield Changed(entry)
                else:
                    yield Job(entry, Item(text=text) if isinstance(text, str) else Item(document=text))
        elif first.parts.white:
            for entry in self.entries:
                width, height = _geometry(entry).target
                yield _cut_job(entry, mask=np.full((height, width), _WHITE, np.uint8))
        elif self.takes == "mask":
            with times.measured("reading"):
                content = self._content(concept.mask_path(number) or "")
            with times.measured("decoding"):
                mask = decode_mask(content)
                yield from (_cut_job(entry, mask=cut_mask(mask, _geometry(entry))) for entry in self.entries)
        else:
            with times.measured("reading"):
                content = self._content(concept.full_path(number))
            with times.measured("decoding"):
                if first.parts.frames is None:
                    yield from self._cut(content)
                else:
                    yield from self._cut_frames(content, self.samples.times(first.sample))

    def _cut(self, content: bytes) -> Iterator[Prepared]:
        """A picture's cuts; it is decoded once for all that take it in one size."""
        decoded: dict[int, DecodedPicture] = {}
        for entry in self.entries:
            geometry = _geometry(entry)
            if (picture := decoded.get(geometry.reduction)) is None:
                picture = decode_image(content, background=self.background, reduction=geometry.reduction)
                decoded[geometry.reduction] = picture
            yield _cut_job(entry, image=cut(picture, geometry))

    def _cut_frames(self, content: bytes, times: FrameTimes) -> Iterator[Prepared]:
        """A clip's cuts: its frames are decoded once for all that take them, and cut one by one."""
        wanted: dict[int, list[tuple[PlannedEntry, int]]] = {}
        made: dict[PlannedEntry, Pixels] = {}
        for entry in self.entries:
            assert entry.parts.frames is not None, "clips have frames"
            width, height = _geometry(entry).target
            made[entry] = np.empty((entry.parts.frames.count, height, width, 3), np.uint8)
            for place, number in enumerate(frame_numbers(times, entry.parts.frames).tolist()):
                wanted.setdefault(number, []).append((entry, place))
        for number, picture in decode_frames(content, list(wanted), background=self.background):
            for entry, place in wanted[number]:
                made[entry][place] = cut(picture, _geometry(entry))
        for entry, pixels in made.items():
            yield _cut_job(entry, video=pixels) if self.takes == "video" else _cut_job(entry, image=pixels[0])

    def _content(self, path: str) -> bytes:
        """A file's bytes, if they are what was planned."""
        content = read_small(path, LARGEST)
        if digest(content) != self.entries[0].input:
            raise SourceChangedError(Path(path))
        return content

    def _refused(self, reason: str, *, lasting: bool = False) -> list[Prepared]:
        return [Refused(entry, reason, lasting) for entry in self.entries]


def make_units(
    samples: Samples, takes: Input, entries: Sequence[PlannedEntry], background: tuple[int, int, int]
) -> list[Unit]:
    """Entries by the file they come from, in the order of the first of each; all take the same part of their sample."""
    groups: dict[object, list[PlannedEntry]] = {}
    for entry in entries:
        # A white mask and the empty prompt come from no file, and each is on its own.
        alone = entry.sample is None or entry.parts.white
        groups.setdefault((entry.encoder, entry.key) if alone else _file(samples, entry), []).append(entry)
    return [Unit(samples, takes, group, background, _memory(samples, group)) for group in groups.values()]


def _file(samples: Samples, entry: PlannedEntry) -> object:
    """What is read for an entry: passages of one text are read together."""
    assert entry.sample is not None
    concept, number = samples.in_concept(entry.sample)
    return entry.sample if concept.passages is None else (concept.concept.name, int(concept.rows[number]))


def _memory(samples: Samples, entries: Sequence[PlannedEntry]) -> int:
    """What reading a file takes for these entries: the picture while it is decoded, and all that is cut out of it.

    Of a clip it is one frame while it is decoded, and the file, which may be large.
    """
    first = entries[0].parts
    if first.geometry is None:
        return 0  # texts are small
    cuts = 0
    for entry in entries:
        width, height = _geometry(entry).target
        cuts += 3 * width * height * (1 if entry.parts.frames is None else entry.parts.frames.count)
    if first.frames is not None and entries[0].sample is not None:
        cuts += samples.file_size(entries[0].sample)
    width, height = (0, 0) if first.white else first.geometry.source
    return _DECODING * width * height + cuts


def _cut_job(
    entry: PlannedEntry, *, image: Pixels | None = None, mask: Pixels | None = None, video: Pixels | None = None
) -> Job:
    """A picture, a mask or a clip with the numbers of its cut."""
    geometry = _geometry(entry)
    (width, height), (target_width, target_height) = geometry.source, geometry.target
    item = Item(
        image=image,
        mask=mask,
        video=video,
        original_size=(height, width),
        crop=geometry.shown_crop,
        target_size=(target_height, target_width),
    )
    return Job(entry, item)


def _geometry(entry: PlannedEntry) -> Geometry:
    assert entry.parts.geometry is not None, "pictures and masks have one"
    return entry.parts.geometry
