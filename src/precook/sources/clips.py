"""Clips: when each frame of a video is shown, and the pixels of some of them: docs/guides/video.md has the rules.

A clip is a video, an animated GIF or WebP, or a still picture, which is a clip of one frame. Every function takes the
file's bytes, changes nothing outside and may run in many threads at once; of a video, one frame is in memory at a time.
"""

from __future__ import annotations

import errno
import importlib.util
import io
import math
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from precook.errors import printable
from precook.sources.formats import file_format, video_format, why_video_cut_off
from precook.sources.frame_choice import FrameTimes
from precook.sources.pictures import (
    SWAPPED,
    TRANSPOSE,
    DecodedPicture,
    RefusedError,
    decode_image,
    open_picture,
    refuse_failures,
)
from precook.values import Numbers

VERSION = 1
"""How clips become frames. Part of every key made from frames: it changes when the same file gives others."""

_ANIMATED = frozenset({"GIF", "WEBP"})
"""Formats of pictures that may be clips: Pillow reads them, with their transparency."""
_NO_TIME = 100
"""Milliseconds for which a frame is shown whose file says none, as browsers do."""
_MOST_FRAMES = 1 << 20
_ONE = 1 << 16
"""One in the fixed-point numbers of a display matrix."""
_ORIENTATIONS = {
    (1, 0, 0, 1): 1,
    (-1, 0, 0, 1): 2,
    (-1, 0, 0, -1): 3,
    (1, 0, 0, -1): 4,
    (0, 1, 1, 0): 5,
    (0, 1, -1, 0): 6,
    (0, -1, -1, 0): 7,
    (0, -1, 1, 0): 8,
}
"""What a display matrix means, as EXIF numbers it: by its first two numbers and its fourth and fifth."""


@dataclass(frozen=True, slots=True)
class ClipFacts:
    """What is known of a clip once all of it was decoded."""

    width: int
    """After it is turned upright, like `height`."""
    height: int
    orientation: int
    """How its frames are turned, as in EXIF, 1 to 8."""
    alpha: bool
    """Whether transparency decides pixels, so that the background does."""
    audio: bool
    """Whether it has sound, which nobody listens to."""
    times: FrameTimes


def has_pyav() -> bool:
    """Whether videos can be read: GIF, WebP and stills need nothing beside Pillow."""
    return importlib.util.find_spec("av") is not None


def read_clip(content: bytes) -> ClipFacts:
    """The facts of a clip; all its frames are decoded. `RefusedError` if it is none, is cut off or damaged."""
    if video_format(content) is not None:
        return _read_video(content)
    if content and file_format(content) is None:
        raise RefusedError("not a picture or a video of a kind that is read here, by its first bytes")
    image, facts = open_picture(content)
    times = FrameTimes(np.zeros(1, np.int64), 1, 1)
    alpha = facts.alpha
    if file_format(content) in _ANIMATED and (why := why_video_cut_off(content)):
        raise RefusedError(f"cut off: {why}")
    if file_format(content) in _ANIMATED and _frame_count(image) > 1:
        ends, alphas = [], []
        for frame in _animation(image):
            ends.append(frame.info.get("duration") or _NO_TIME)
            alphas.append(_has_alpha(frame))
        alpha = any(alphas)
        times = _times(np.cumsum([0, *(round(end) for end in ends[:-1])]), 1, 1000)
    return ClipFacts(facts.width, facts.height, facts.orientation, alpha, audio=False, times=times)


def decode_frames(
    content: bytes, numbers: Sequence[int], *, background: tuple[int, int, int] = (255, 255, 255)
) -> Iterator[tuple[int, DecodedPicture]]:
    """Some frames of a clip by their numbers, each once and in order, upright and in RGB.

    `RefusedError` where one is not there or damaged.
    """
    wanted = sorted(set(numbers))
    if video_format(content) is not None:
        frames = _decode_video(content, wanted)
    elif wanted == [0]:
        frames = iter([(0, decode_image(content, background=background).image)])
    else:
        frames = _decode_animation(content, wanted, background)
    found = 0
    for number, image in frames:
        found += 1
        yield number, DecodedPicture(image, (0, 0, *image.size))
    if found < len(wanted):
        raise RefusedError(f"damaged: frame {wanted[found]} is not there")


# Videos


def _read_video(content: bytes) -> ClipFacts:
    if why := why_video_cut_off(content):
        raise RefusedError(f"cut off: {why}")
    with _opened(content) as (container, stream):
        stamps: list[int] = []
        shape = None
        for frame in _frames(container, stream):
            if shape is None:
                shape = frame.width, frame.height, _orientation(frame)
            elif shape != (frame.width, frame.height, _orientation(frame)):
                raise RefusedError(f"its frames have several sizes: frame {len(stamps)} is another than the first")
            stamps.append(_stamp(frame, len(stamps), stream))
            if len(stamps) > _MOST_FRAMES:
                raise RefusedError(f"it has more than {_MOST_FRAMES:,} frames: cut it into clips")
        if shape is None:
            raise RefusedError("it has no frames")
        width, height, orientation = shape
        base = stream.time_base
        audio = any(other.type == "audio" for other in container.streams)
    ticks = np.array(stamps, np.int64)
    still = np.flatnonzero(np.diff(ticks) <= 0)
    if len(still):
        raise RefusedError(f"its time stamps do not increase: frame {int(still[0]) + 1} is not after the one before")
    if orientation in SWAPPED:
        width, height = height, width
    times = _times(ticks - ticks[0], base.numerator, base.denominator)
    return ClipFacts(width, height, orientation, alpha=False, audio=audio, times=times)


def _decode_video(content: bytes, wanted: Sequence[int]) -> Iterator[tuple[int, Image.Image]]:
    left = list(reversed(wanted))
    with _opened(content) as (container, stream):
        for number, frame in enumerate(_frames(container, stream)):
            if number == left[-1]:
                image = Image.fromarray(frame.to_ndarray(format="rgb24"))
                turn = TRANSPOSE.get(_orientation(frame))
                yield left.pop(), image if turn is None else image.transpose(turn)
                if not left:
                    return


_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


@contextmanager
def _opened(content: bytes) -> Iterator[tuple[Any, Any]]:
    """A video's container and its first stream of pictures; whatever is wrong with it becomes a `RefusedError`."""
    if not has_pyav():
        raise RefusedError("a video, and PyAV is not installed: pip install 'precook[video]'")
    import av  # noqa: PLC0415 - only those who have videos need it

    try:
        # By name, so that no file is taken for a playlist, which would have other files read.
        with av.open(io.BytesIO(content), format=video_format(content)) as container:
            streams = [stream for stream in container.streams.video if not _is_cover(stream)]
            if not streams:
                raise RefusedError("it has no pictures to show")
            stream = streams[0]
            if stream.codec_context is None:
                raise RefusedError("its codec is none that this PyAV decodes: convert it, to H.264 for example")
            stream.codec_context.thread_count = 1  # several clips are decoded at a time
            if Image.MAX_IMAGE_PIXELS is not None:
                # By the decoder's own word, too: frames may be larger than the container says.
                stream.codec_context.options = {"max_pixels": str(2 * Image.MAX_IMAGE_PIXELS)}
            _check_size(stream.codec_context)
            yield container, stream
    except (av.FFmpegError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, RefusedError):
            raise
        if (number := getattr(error, "errno", None)) in _SHORTAGES:
            # This machine's trouble, and none of the clip's: a decoder that finds no room for its threads.
            raise OSError(number, os.strerror(number)) from error
        reason = printable(getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
        raise RefusedError(f"not a readable video: {reason}") from error


def _is_cover(stream: Any) -> bool:
    """Whether a stream of pictures is the cover of a film, or its thumbnail."""
    import av  # noqa: PLC0415

    return bool(stream.disposition & av.stream.Disposition.attached_pic)


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """All frames in the order in which they are shown, none of them made up."""
    for number, frame in enumerate(container.decode(stream)):
        if frame.is_corrupt:
            raise RefusedError(f"damaged: frame {number} cannot be decoded as a whole")
        _check_size(frame)
        yield frame


def _check_size(shown: Any) -> None:
    """Refuse a stream or a frame of more pixels than a picture may have."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and shown.width * shown.height > 2 * limit:
        raise RefusedError(f"{shown.width} x {shown.height} pixels are more than the {2 * limit} that Pillow allows")


def _stamp(frame: Any, number: int, stream: Any) -> int:
    """The time stamp of a frame, in ticks of its stream; by the stream's rate where the frame has none."""
    if frame.pts is not None:
        return int(frame.pts)
    rate, base = stream.average_rate, stream.time_base
    if not rate or not base:
        raise RefusedError(f"frame {number} has no time stamp, and the file names no rate")
    return int(round(number / (rate * base)))  # noqa: RUF046 - of PyAV's fractions, whose types nobody knows


def _orientation(frame: Any) -> int:
    """How a frame is to be turned, by its display matrix."""
    for data in frame.side_data:
        if data.type.name == "DISPLAYMATRIX":
            matrix = struct.unpack("<9i", bytes(data))
            numbers = (matrix[0], matrix[1], matrix[3], matrix[4])
            found = _ORIENTATIONS.get((_sign(matrix[0]), _sign(matrix[1]), _sign(matrix[3]), _sign(matrix[4])))
            if found is None or any(abs(number) not in (0, _ONE) for number in numbers):
                raise RefusedError("it is to be shown askew or stretched, not turned by a right angle")
            return found
    return 1


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


# Animated pictures


def _frame_count(image: Image.Image) -> int:
    with refuse_failures("damaged"):
        return int(getattr(image, "n_frames", 1))


def _animation(image: Image.Image) -> Iterator[Image.Image]:
    """Every frame of an animated picture, complete and decoded; the picture itself, which goes from one to the next."""
    for number in range(_frame_count(image)):
        with refuse_failures(f"damaged: frame {number}"):
            image.seek(number)
            image.load()
        yield image


def _decode_animation(
    content: bytes, wanted: Sequence[int], background: tuple[int, int, int]
) -> Iterator[tuple[int, Image.Image]]:
    image, facts = open_picture(content)
    left = list(reversed(wanted))
    for number, frame in enumerate(_animation(image)):
        if number != left[-1]:
            continue
        rgba = frame.convert("RGBA")
        canvas = Image.new("RGB", rgba.size, background)
        canvas.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
        turn = TRANSPOSE.get(facts.orientation)
        yield left.pop(), canvas if turn is None else canvas.transpose(turn)
        if not left:
            return


def _has_alpha(frame: Image.Image) -> bool:
    return bool((np.asarray(frame.convert("RGBA").getchannel("A")) < 255).any())  # noqa: PLR2004 - opaque


def _times(ticks: Numbers, numerator: int, denominator: int) -> FrameTimes:
    """Time stamps in the longest ticks that measure all of them: an even rate counts 0, 1, 2."""
    common = int(np.gcd.reduce(ticks)) or 1
    shorter = math.gcd(numerator * common, denominator)
    return FrameTimes(ticks // common, numerator * common // shorter, denominator // shorter)
