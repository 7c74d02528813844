"""Clips for tests, made with PyAV: every frame is told from all others by its colours, whatever the codec loses."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from precook.values import Pixels

_MATRIX_AT = {0: 4 + 20 + 16, 1: 4 + 32 + 16}
"""Where the display matrix stands in a track's header, by the version of that."""
_ONE = 1 << 16
_TURNS = {
    0: (1, 0, 0, 1),
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
}


def pyav() -> Any:
    """PyAV; where it is not installed, the test is passed over."""
    return pytest.importorskip("av", reason="PyAV is not installed")


def frame(number: int, width: int = 64, height: int = 48) -> Pixels:
    """A frame whose red grows to the right, whose green grows downwards, and whose blue tells its number."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :, 0] = np.linspace(20, 220, width).astype(np.uint8)
    pixels[:, :, 1] = np.linspace(20, 220, height).astype(np.uint8)[:, None]
    pixels[:, :, 2] = number_level(number)
    return pixels


def number_level(number: int) -> int:
    """The blue of a frame: neighbours are far apart."""
    return 16 + number * 37 % 224


def clip(  # noqa: PLR0913 - what a video may be like
    count: int = 20,
    *,
    codec: str = "libx264",
    form: str = "mp4",
    size: tuple[int, int] = (64, 48),
    rate: int = 16,
    pixels: str = "yuv420p",
    times: Iterable[int] | None = None,
    audio: bool = False,
    options: dict[str, str] | None = None,
) -> bytes:
    """A video of so many frames; `times` are time stamps in thousandths of seconds, for a rate that varies."""
    av = pyav()
    file = io.BytesIO()
    width, height = size
    with av.open(file, "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.options = options or {}
        if times is not None:
            stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        if not count:
            container.start_encoding()  # with the first frame, otherwise
        sound = container.add_stream("aac", rate=8000) if audio else None
        stamps = None if times is None else list(times)
        for number in range(count if stamps is None else len(stamps)):
            made = av.VideoFrame.from_ndarray(frame(number, width, height), format="rgb24")
            if stamps is not None:
                made.pts, made.time_base = stamps[number], Fraction(1, 1000)
            container.mux(stream.encode(made))
        container.mux(stream.encode())
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), format="fltp", layout="mono")
            silence.sample_rate = 8000
            container.mux(sound.encode(silence))
            container.mux(sound.encode())
    return file.getvalue()


def turned(content: bytes, degrees: int) -> bytes:
    """The same MP4, to be shown turned clockwise, as phones write it."""
    a, b, c, d = (_ONE * number for number in _TURNS[degrees])
    return with_matrix(content, (a, b, 0, c, d, 0, 0, 0, 1 << 30))


def with_matrix(content: bytes, matrix: tuple[int, ...]) -> bytes:
    """The same MP4 with another display matrix."""
    header = content.index(b"tkhd") + 4
    place = header + _MATRIX_AT[content[header]]
    return content[:place] + struct.pack(">9i", *matrix) + content[place + 36 :]


def animation(
    count: int = 6,
    *,
    form: str = "GIF",
    duration: int | list[int] = 100,
    alpha: bool = False,
    size: tuple[int, int] = (64, 48),
) -> bytes:
    """An animated GIF or WebP; with `alpha` every second frame is partly transparent."""
    frames = []
    for number in range(count):
        image = Image.fromarray(frame(number, *size)).convert("RGBA" if alpha else "RGB")
        if alpha and number % 2:
            image.paste((0, 0, 0, 0), (0, 0, 16, 16))
        frames.append(image)
    file = io.BytesIO()
    options = {"lossless": True} if form == "WEBP" else {"disposal": 2}
    frames[0].save(file, form, save_all=True, append_images=frames[1:], duration=duration, loop=0, **options)
    return file.getvalue()


def decoded(content: bytes) -> list[Pixels]:
    """Every frame of a video as PyAV itself gives it."""
    with pyav().open(io.BytesIO(content)) as container:
        return [shown.to_ndarray(format="rgb24") for shown in container.decode(video=0)]


def write_clip(path: Path, content: bytes, caption: str | None = None) -> Path:
    """A clip in a file, with a caption beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption, "utf-8")
    return path
