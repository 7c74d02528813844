"""Frame folders: clips whose frames are picture files of their own, in the order of their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from precook.errors import SourceChangedError
from precook.fs.read import read_small
from precook.identity.digest import derived_digest, digest
from precook.sources.facts import LARGEST
from precook.sources.pictures import DecodedPicture, RefusedError, decode_image
from precook.values import Bytes

_CONTEXT = "precook frames 1"


@dataclass(frozen=True, slots=True, eq=False)
class FrameFolder:
    """The frames of a clip: where each lies, and what it held when it was planned."""

    paths: tuple[str, ...]
    digests: Bytes

    def decode(
        self, numbers: Sequence[int], *, background: tuple[int, int, int] = (255, 255, 255)
    ) -> Iterator[tuple[int, DecodedPicture]]:
        """Some frames by their numbers, each once and in order; `SourceChangedError` where one is another by now."""
        for number in sorted(set(numbers)):
            if number >= len(self.paths):
                raise RefusedError(f"damaged: frame {number} is not there")
            content = read_small(self.paths[number], LARGEST)
            if digest(content).bytes != self.digests[number].tobytes():
                raise SourceChangedError(Path(self.paths[number]))
            yield number, decode_image(content, background=background)


def frames_digest(digests: Bytes) -> bytes:
    """The content of a clip that is a folder: that of its frames, in their order, whatever they are called."""
    return derived_digest(_CONTEXT, digests.tobytes())
