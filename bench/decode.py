"""The decoding benchmark: what a core decodes and cuts in a second, and how many cores a GPU needs.

Pictures have the spectrum of photos. Each is decoded and brought to 512 px in one thread, timed by the processor's
clock: as a build does it, by Pillow alone with the same steps, by both with `draft`, which lets the JPEG decoder hand
out a half, a quarter or an eighth of the size (other pixels), and by torchvision and simplejpeg where they are
installed.

`python bench/decode.py` takes about a minute, `--quick` is a smoke run.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

import numpy as np
from PIL import Image

from bench.measure import median
from bench.script import facts, fill, parser, tell, versions
from bench.table import Cell, Column, Section
from precook.config.sections import ImageSettings
from precook.sources.crop import cut
from precook.sources.geometry import Geometry, cut_rows
from precook.sources.pictures import decode_image

_SIDE = 512
_SOURCES = {"768x576": (768, 576), "1920x1280": (1920, 1280), "4000x3000": (4000, 3000)}
_NEEDS = {"180": 180, "320": 320}
"""Pictures a second that a GPU encodes at 512 px, eager and compiled: bench/gpu_build.py."""
_GPUS = 8

Decode = Callable[[bytes, Geometry], Any]


def main(arguments: list[str] | None = None) -> int:
    """Decode every format in every way."""
    options = _parse(arguments)
    tell(facts(versions=versions("Pillow", "numpy")))
    for size in _SOURCES.values() if not options.quick else [_SOURCES["768x576"]]:
        print(_section(size, options), flush=True)
    return 0


def _section(size: tuple[int, int], options: argparse.Namespace) -> Section:
    """What one core does with pictures of one size."""
    columns = [
        Column("format"),
        Column("kB"),
        Column("way"),
        Column("ms of a core", ".1f"),
        Column("pictures/s of a core", ".0f"),
        *(Column(f"cores for {need}/s", ".1f") for need in _NEEDS),
        *(Column(f"for {_GPUS} x {need}/s", ".0f") for need in _NEEDS),
        Column("largest difference"),
    ]
    section = Section("decode", f"{size[0]} x {size[1]} pixels to {_SIDE} px", columns)
    picture = _photo(size)
    settings = ImageSettings(resolutions=(_SIDE,))
    images = np.zeros((1, 32), np.uint8)
    cuts = cut_rows(np.array([size]), images, settings, resolution=settings.sizes[0], variation=0)
    geometry = Geometry.of(cuts.rows[0])
    for form, saved in (("JPEG", {"quality": 90}), ("PNG", {"compress_level": 6}), ("WEBP", {"quality": 90})):
        stream = io.BytesIO()
        picture.save(stream, form, **saved)
        content = stream.getvalue()
        ours = _as_built(content, geometry)
        for way, action in _ways(form):
            made = np.asarray(action(content, geometry))
            taken = median(_seconds(action, content, geometry) for _ in range(options.repeats))
            needed = [need * taken for need in _NEEDS.values()]
            other = int(np.abs(made.astype(int) - ours).max())
            cells: list[Cell] = [form, len(content) / 1e3, way, 1e3 * taken, 1 / taken]
            section.rows.append([*cells, *needed, *(_GPUS * cores for cores in needed), other])
    return section


def _photo(size: tuple[int, int]) -> Image.Image:
    """Noise of all scales, the coarse stronger than the fine."""
    rng = np.random.default_rng(0)
    total = np.full((size[1], size[0], 3), 128.0, np.float32)
    octave = 4
    while octave < size[0]:
        small = rng.normal(0, 1, (octave * size[1] // size[0] + 1, octave, 3)) * 90 / octave**0.6
        bands = [
            np.asarray(Image.fromarray(small[..., band].astype(np.float32)).resize(size, Image.Resampling.BICUBIC))
            for band in range(3)
        ]
        total += np.stack(bands, axis=2)
        octave *= 2
    return Image.fromarray(total.clip(0, 255).astype(np.uint8))


def _seconds(action: Decode, content: bytes, geometry: Geometry) -> float:
    start = time.process_time()
    action(content, geometry)
    return time.process_time() - start


def _ways(form: str) -> Iterator[tuple[str, Decode]]:
    """The ways that there are here to decode a format."""
    yield "precook", _as_built
    yield "Pillow", _pillow
    if form == "JPEG":
        yield "precook, draft", lambda content, geometry: _as_built(content, replace(geometry, resampling="draft"))
        yield "Pillow, draft", lambda content, geometry: _pillow(content, geometry, draft=True)
        if importlib.util.find_spec("simplejpeg") is not None:
            yield "simplejpeg", _simplejpeg
    if _runs_torchvision():
        yield "torchvision", _torchvision


@cache
def _runs_torchvision() -> bool:
    """Whether it is installed, and for the torch that is here."""
    if importlib.util.find_spec("torchvision") is None:
        return False
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        print(f"torchvision does not run here: {error}\n", flush=True)
        return False
    return True


def _as_built(content: bytes, geometry: Geometry) -> Any:
    return cut(decode_image(content, reduction=geometry.reduction), geometry)


def _pillow(content: bytes, geometry: Geometry, *, draft: bool = False) -> Any:
    with Image.open(io.BytesIO(content)) as picture:
        if draft:
            picture.draft("RGB", geometry.scaled)
        return _cropped(picture.convert("RGB").resize(geometry.scaled, Image.Resampling.LANCZOS), geometry)


def _cropped(picture: Image.Image, geometry: Geometry) -> Any:
    (left, top), (width, height) = geometry.crop, geometry.target
    return np.asarray(picture.crop((left, top, left + width, top + height)))


def _simplejpeg(content: bytes, geometry: Geometry) -> Any:
    pixels = importlib.import_module("simplejpeg").decode_jpeg(content)
    return _cropped(Image.fromarray(pixels).resize(geometry.scaled, Image.Resampling.LANCZOS), geometry)


def _torchvision(content: bytes, geometry: Geometry) -> Any:
    """Decoded to a tensor, scaled there, by bicubic: torchvision has no Lanczos filter for tensors."""
    torch, io_, functional = (
        importlib.import_module(name) for name in ("torch", "torchvision.io", "torchvision.transforms.v2.functional")
    )
    torch.set_num_threads(1)
    pixels = io_.decode_image(torch.frombuffer(bytearray(content), dtype=torch.uint8), io_.ImageReadMode.RGB)
    (left, top), (width, height) = geometry.crop, geometry.target
    scaled = functional.resize(
        pixels, list(geometry.scaled[::-1]), functional.InterpolationMode.BICUBIC, antialias=True
    )
    return scaled[:, top : top + height, left : left + width].permute(1, 2, 0).contiguous().numpy()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--repeats", type=int, help="of which medians are taken (default: 7)")
    return fill(asked.parse_args(arguments), full={"repeats": 7}, quick={"repeats": 1})


if __name__ == "__main__":
    sys.exit(main())
