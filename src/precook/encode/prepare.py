"""Preparing: from planned entries to the items that an encoder gets, read from the sources as they are now.

What is read is compared with what was planned: bytes of another digest are never encoded under the old one's key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precook.config.further_pictures import OWN, VIDEO
from precook.encode.encoder import Item
from precook.encode.stages import StageTimes
from precook.errors import SourceChangedError
from precook.identity.digest import digest
from precook.plan.entries import PlannedEntry
from precook.plan.targets import Samples
from precook.plan.wanted import MASK, TEXT, Encoding, KeyParts
from precook.sources.captions import CaptionError
from precook.sources.clips import decode_frames
from precook.sources.crop import cut, cut_mask
from precook.sources.documents import DocumentText, text_digest
from precook.sources.frame_choice import FrameTimes, frame_numbers
from precook.sources.frame_folder import FrameFolder
from precook.sources.geometry import Geometry
from precook.sources.pictures import DecodedPicture, RefusedError, decode_image, decode_mask
from precook.sources.samples import EMPTY, ConceptSamples
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
        return sum(pixels.nbytes for pixels in self.item.pixels) + len(self.text or "")

    @property
    def text(self) -> str | None:
        """The text, or a text in parts as it is written; None for pictures."""
        return self.item.text if self.item.document is None else self.item.document.form

    @property
    def shape(self) -> tuple[int, ...]:
        """What the items of one batch share: the sizes of pictures, of a clip also its frames; nothing for texts."""
        return tuple(side for pixels in self.item.pixels for side in pixels.shape[: max(2, pixels.ndim - 1)])


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
    """Entries that come from the same files: each is read and decoded once for all of them."""

    samples: Samples
    encoding: Encoding
    """What of its sample is read: several encoders with the same inputs share it."""
    entries: Sequence[PlannedEntry]
    """Of one encoder or of several."""
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
        texts: dict[bytes, str | DocumentText] = {EMPTY: ""} if self.encoding.per == "pair" else {}
        if TEXT in self.encoding.inputs:
            # By digest, not by line: lines may have been reordered since.
            with times.measured("reading"):
                found = concept.texts(number) if concept.passages is None else concept.document(number)
                texts |= {text_digest(text): text for text in found}
        files: dict[str, bytes | FrameFolder] = {}
        for name in self.encoding.inputs:
            part = first.parts[name]
            if name != TEXT and not part.white and not part.absent:
                folder = concept.frame_folder(number) if name in (OWN, VIDEO) else None
                with times.measured("reading"):
                    files[name] = folder or _content(concept, number, name, part.input)
        with times.measured("decoding") if files else nullcontext():
            decoded = _Decoded(files, concept.image.rgb)
            for name in self.encoding.inputs:
                if first.parts[name].frames is not None:
                    frames = self.samples.times(first.sample)
                    decoded.cut_frames(name, [entry.parts[name] for entry in self.entries], frames)
            for entry in self.entries:
                text = None if TEXT not in entry.parts else texts.get(entry.parts[TEXT].input)
                yield Changed(entry) if TEXT in entry.parts and text is None else self._job(entry, text, decoded)

    def _job(self, entry: PlannedEntry, text: str | DocumentText | None, decoded: _Decoded) -> Job:
        """An entry with its text, and its pictures as they are cut for it."""
        pixels: dict[str, Pixels] = {}
        for name, part in entry.parts.items():
            if name != TEXT and not part.absent:
                assert part.geometry is not None, "pictures and masks have one"
                pixels[name] = decoded.frames(name, part) if part.frames else decoded.cut(name, part.geometry)
        mask, image, video = (pixels.pop(name, None) for name in (MASK, self.encoding.of, VIDEO))
        if not isinstance(text, str | None):
            return Job(entry, Item(document=text))
        if (geometry := self._shown(entry)) is None:
            return Job(entry, Item(text=text))
        (width, height), (target_width, target_height) = geometry.source, geometry.target
        item = Item(
            image=image,
            mask=mask,
            video=video,
            text=text,
            original_size=(height, width),
            crop=geometry.shown_crop,
            target_size=(target_height, target_width),
            images=pixels,
        )
        return Job(entry, item)

    def _shown(self, entry: PlannedEntry) -> Geometry | None:
        """The cut whose numbers an item tells: its image's or, where it has none, that of the first picture."""
        image = entry.parts.get(self.encoding.of)
        return entry.geometry if image is None or image.absent else image.geometry

    def _refused(self, reason: str, *, lasting: bool = False) -> list[Prepared]:
        return [Refused(entry, reason, lasting) for entry in self.entries]


class _Decoded:
    """The files of a sample as pixels; each is decoded once for all that take it in one size."""

    def __init__(self, files: dict[str, bytes | FrameFolder], background: tuple[int, int, int]) -> None:
        self._files = files
        self._background = background
        self._pictures: dict[tuple[str, int], DecodedPicture] = {}
        self._mask: Pixels | None = None
        self._frames: dict[tuple[str, KeyParts], Pixels] = {}

    def cut_frames(self, name: str, parts: Sequence[KeyParts], times: FrameTimes) -> None:
        """Decode the frames of a clip, once for all that take them, and cut them one by one."""
        wanted: dict[int, list[tuple[Pixels, Geometry]]] = {}
        for part in dict.fromkeys(parts):
            assert part.frames is not None, "clips have frames"
            assert part.geometry is not None, "and a cut"
            width, height = part.geometry.target
            made = self._frames[name, part] = np.empty((part.frames.count, height, width, 3), np.uint8)
            for row, number in zip(made, frame_numbers(times, part.frames).tolist(), strict=True):
                wanted.setdefault(number, []).append((row, part.geometry))
        for number, picture in self._decode(name, list(wanted)):
            for frame, geometry in wanted[number]:
                frame[...] = cut(picture, geometry)

    def _decode(self, name: str, numbers: Sequence[int]) -> Iterator[tuple[int, DecodedPicture]]:
        """Some frames of a clip."""
        file = self._files[name]
        if isinstance(file, FrameFolder):
            return file.decode(numbers, background=self._background)
        return decode_frames(file, numbers, background=self._background)

    def frames(self, name: str, part: KeyParts) -> Pixels:
        """The frames of a clip that were cut before; for what takes a picture, the only one."""
        made = self._frames[name, part]
        return made if name == VIDEO else made[0]

    def cut(self, name: str, geometry: Geometry) -> Pixels:
        """A picture or a mask as its geometry says; a mask without a file is white."""
        if name == MASK:
            if name not in self._files:
                width, height = geometry.target
                return np.full((height, width), _WHITE, np.uint8)
            if self._mask is None:
                file = self._files[name]
                assert isinstance(file, bytes), "a mask is a file"
                self._mask = decode_mask(file)
            return cut_mask(self._mask, geometry)
        place = name, geometry.reduction
        if (picture := self._pictures.get(place)) is None:
            file = self._files[name]
            if isinstance(file, FrameFolder):
                ((_, picture),) = self._decode(name, [0])  # a clip of one frame, for what takes a picture
            else:
                picture = decode_image(file, background=self._background, reduction=geometry.reduction)
            self._pictures[place] = picture
        return cut(picture, geometry)


def _content(concept: ConceptSamples, number: int, name: str, planned: bytes) -> bytes:
    """The bytes of a picture or a mask, if they are what was planned."""
    content = concept.read(number, name)
    if digest(content).bytes != planned:
        raise SourceChangedError(Path(concept.full_path(number)))
    return content


def make_units(samples: Samples, encoding: Encoding, entries: Sequence[PlannedEntry]) -> list[Unit]:
    """Entries by the files they come from, in the order of the first of each; all take the same parts of a sample."""
    groups: dict[object, list[PlannedEntry]] = {}
    for entry in entries:
        # A white mask and the empty prompt come from no file, and each is on its own.
        alone = entry.sample is None or (len(entry.parts) == 1 and entry.first.white)
        groups.setdefault((entry.encoder, entry.key) if alone else _file(samples, entry), []).append(entry)
    return [Unit(samples, encoding, group, _memory(samples, group)) for group in groups.values()]


def _file(samples: Samples, entry: PlannedEntry) -> object:
    """What is read for an entry: passages of one text are read together."""
    assert entry.sample is not None
    concept, number = samples.in_concept(entry.sample)
    return entry.sample if concept.passages is None else (concept.concept.name, int(concept.rows[number]))


def _memory(samples: Samples, entries: Sequence[PlannedEntry]) -> int:
    """What reading files takes for these entries: pictures while they are decoded, and all that is cut out of them.

    Of a clip it is one frame while it is decoded, and the file, which may be large.
    """
    memory = 0
    for name, first in entries[0].parts.items():
        if first.geometry is None or first.absent:
            continue  # texts are small
        width, height = (0, 0) if first.white else first.geometry.source
        memory += _DECODING * width * height
        for entry in entries:
            geometry, frames = entry.parts[name].geometry, entry.parts[name].frames
            pixels = 0 if geometry is None else geometry.target[0] * geometry.target[1]
            memory += 3 * pixels * (1 if frames is None else frames.count)
        if first.frames is not None and entries[0].sample is not None:
            memory += samples.file_size(entries[0].sample)
    return memory
