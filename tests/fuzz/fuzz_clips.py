"""Clips: any bytes are frames with their times, all of which can be had, or refused with a reason.

Videos are read by PyAV where that is installed; GIF and WebP by Pillow, always.
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Iterator

import numpy as np
from PIL import Image

from precook.sources.clips import decode_frames, has_pyav, read_clip
from precook.sources.formats import video_format
from precook.sources.pictures import RefusedError
from tests.fuzz.frame import Target, mutate_bytes
from tests.support.clips import animation, clip, turned

MOST_PIXELS = 1 << 19
"""What Pillow is told to allow, half of what is refused here: a header may claim more than an input may take."""


def check(data: bytes) -> bool:
    """Read a clip, and decode the frames at both ends and one between them."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, MOST_PIXELS
    try:
        facts = read_clip(data)
        count = facts.times.count
        wanted = sorted({0, count // 2, count - 1})
        # What a plan has decoded is not refused by the build; of a still it has read the header alone.
        with _taken() if video_format(data) or count > 1 else contextlib.nullcontext():
            frames = list(decode_frames(data, wanted))
    except RefusedError as error:
        assert str(error)
        return False
    except OSError as error:
        # Under the limits of a fuzzer there may be no room for a decoder's threads: it says nothing about the clip.
        assert error.errno in (errno.EAGAIN, errno.ENOMEM), error
        return False
    finally:
        Image.MAX_IMAGE_PIXELS = before
    assert count > 0
    assert facts.times.ticks[0] == 0
    assert bool((np.diff(facts.times.ticks) > 0).all())
    assert [number for number, _ in frames] == wanted
    assert {frame.image.size for _, frame in frames} == {(facts.width, facts.height)}
    assert {frame.image.mode for _, frame in frames} == {"RGB"}
    return True


@contextlib.contextmanager
def _taken() -> Iterator[None]:
    try:
        yield
    except RefusedError as error:
        raise AssertionError(f"refused although its facts were taken: {error}") from error


@functools.cache
def _seeds() -> tuple[bytes, ...]:
    small = (32, 24)
    found = [animation(4, form=form, alpha=alpha, size=small) for form in ("GIF", "WEBP") for alpha in (False, True)]
    if has_pyav():
        found += [
            clip(6, size=small),
            turned(clip(4, size=small), 90),
            clip(5, size=small, times=[0, 40, 90, 200, 210], audio=True),
            clip(6, size=small, codec="libvpx", form="webm"),
            clip(4, size=small, codec="mpeg4", form="matroska"),
        ]
    return tuple(found)


def seeds() -> list[bytes]:
    """A clip of each kind: still rates and others, turned, with sound, with transparency."""
    return list(_seeds())


TOKENS = ("ftyp", "moov", "mdat", "trak", "tkhd", "stts", "stsz", "stco", "GIF89a", "NETSCAPE2.0", "ANMF", "VP8X")
TARGET = Target("clips", seeds, check, mutate_bytes, TOKENS)
