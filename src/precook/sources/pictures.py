"""Pictures: what the header of a picture file says, and its pixels as RGB: docs/guides/pictures.md has the rules.

Every function takes the file's bytes, changes nothing outside and may run in many threads at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile, features
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from precook.errors import printable
from precook.sources.formats import file_format, media_brands, png_chunks, video_format, why_cut_off
from precook.values import Pixels

VERSION = 1
"""How pictures become pixels. Part of every key made from pixels: it changes when the same file decodes differently."""

_READERS: dict[str, Callable[[IO[bytes]], ImageFile.ImageFile]] = {
    "JPEG": JpegImageFile,  # of an MPO, the first picture
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "BMP": BmpImageFile,
    "TIFF": TiffImageFile,
    "GIF": GifImageFile,
}
"""Pillow's readers, called directly: `Image.open` warns of large pictures, and a warning cannot be silenced in one
thread alone. Its check for decompression bombs is made here."""

with suppress(ImportError):  # Pillow before 11.3 has no AVIF
    from PIL.AvifImagePlugin import AvifImageFile

    _READERS["AVIF"] = AvifImageFile

_EXTRAS = {
    "HEIF": ("heif", "pillow_heif", "pillow_heif.as_plugin", "HeifImageFile"),
    "JXL": ("jxl", "pillow_jxl", "pillow_jxl.JpegXLImagePlugin", "JXLImageFile"),
}
"""Formats that Pillow reads with an extra of ours: its name, its package, and where in that the reader is."""
DECODERS = {"HEIF": "pillow-heif", "JXL": "pillow-jxl-plugin"}
"""The same, by the name under which each is installed."""
_NAMES = {"HEIF": "HEIC", "JXL": "JPEG XL"}
_UPRIGHT = frozenset(_EXTRAS)
"""Formats whose decoders turn pictures themselves: by their standards, what EXIF says beside that is not applied."""
_FORMATS = "JPEG, PNG, WebP, AVIF, BMP, TIFF or GIF"

_FAILURES = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""What Pillow's readers raise on hostile bytes, by their code and by fuzzing. MemoryError is no such thing: it says
something about the machine."""

_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _ORIENTATION = 0x0100, 0x0101, 0x0102, 0x0106, 0x0112
"""Tags of TIFF and EXIF."""
_WHITE_IS_ZERO = 0
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SWAPPED = frozenset({5, 6, 7, 8})
_FROM_RIGHT, _FROM_BELOW = frozenset({2, 3, 6, 7}), frozenset({3, 4, 7, 8})
"""Orientations whose pictures have at the left, or at the top, what is at the other end of a side in the file."""
_ALPHA_MODES = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})


def reads(name: str) -> bool:
    """Whether a format is read here: some need an extra."""
    return name in _READERS or (name in _EXTRAS and importlib.util.find_spec(_EXTRAS[name][1]) is not None)


def used_decoders() -> tuple[str, ...]:
    """The packages beside Pillow that have decoded pictures in this process: they decide pixels as that does."""
    return tuple(DECODERS[name] for name in _EXTRAS if name in _READERS)


def extra_for(name: str) -> str:
    """The extra of ours that reads a format, such as the jxl of `pip install 'precook[jxl]'`."""
    return _EXTRAS[name][0]


class RefusedError(ValueError):
    """Content that cannot be used as a picture; its text is the reason, for people and without a path."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the header of a picture file says."""

    width: int
    """After the orientation is applied, like `height`."""
    height: int
    orientation: int
    """As in EXIF, 1 to 8; 1 where nothing valid is said."""
    alpha: bool
    """Whether transparency decides pixels, so that the background does."""


@dataclass(frozen=True, slots=True)
class DecodedPicture:
    """A picture as Pillow has it, upright and in RGB."""

    image: Image.Image
    box: tuple[float, float, float, float]
    """Where in it the picture is: everywhere, but for a part of a column and a row of one that was made smaller and
    whose sides are no multiples of that."""


def read_facts(content: bytes) -> Facts:
    """The facts of a picture file, without decoding a pixel; `RefusedError` if it is no picture or visibly cut off."""
    return open_picture(content)[1]


def check_pixels(facts: Facts, limit: int) -> None:
    """Refuse a picture of more than `limit` pixels, before anybody decodes it.

    >>> check_pixels(Facts(13000, 13000, orientation=1, alpha=False), 100_000_000)
    Traceback (most recent call last):
        ...
    precook.sources.pictures.RefusedError: 13000 x 13000 pixels are more than the 100000000 allowed
    """
    if facts.width * facts.height > limit:
        raise RefusedError(f"{facts.width} x {facts.height} pixels are more than the {limit} allowed")


def decode(content: bytes, *, background: tuple[int, int, int] = (255, 255, 255)) -> Pixels:
    """The pixels, H x W x 3, upright, in RGB; what is transparent shows `background`.

    Colour profiles are ignored. A picture that is cut off or damaged is refused, never filled in.
    """
    return np.array(decode_image(content, background=background).image)


def decode_image(
    content: bytes, *, background: tuple[int, int, int] = (255, 255, 255), reduction: int = 1
) -> DecodedPicture:
    """The picture that `decode` gives the pixels of, as Pillow has it: to scale it, nobody needs to copy it.

    A JPEG is made smaller by its decoder, as many times as `reduction` says: 2, 4 or 8. Other formats come in full
    size.
    """
    image, facts = open_picture(content)
    transparent = image.info.get("transparency")
    with refuse_failures("damaged"):
        # Pillow turns a TIFF as it loads it.
        turned = (
            facts.orientation != 1
            and isinstance(image, TiffImageFile)
            and image.getexif().get(_ORIENTATION) == facts.orientation
        )
        # Its decoder rounds to what a part of its frequencies give; all of the file is read and checked all the same.
        reduction = reduction if isinstance(image, JpegImageFile) else 1
        _load(image, content, reduction)
        rgb = _to_rgb(image, facts, transparent, content[24] if isinstance(image, PngImageFile) else 8, background)
    if facts.orientation in TRANSPOSE and not turned:
        rgb = rgb.transpose(TRANSPOSE[facts.orientation])
    width, height = facts.width / reduction, facts.height / reduction
    if rgb.size != (whole := (math.ceil(width), math.ceil(height))):
        raise RefusedError(f"damaged: {rgb.width} x {rgb.height} pixels instead of {whole[0]} x {whole[1]}")
    # In the file, the pixels that are no whole ones are at the right and at the bottom.
    left = whole[0] - width if facts.orientation in _FROM_RIGHT else 0.0
    top = whole[1] - height if facts.orientation in _FROM_BELOW else 0.0
    return DecodedPicture(rgb, (left, top, left + width, top + height))


def decode_mask(content: bytes) -> Pixels:
    """The luminance of a picture over black, H x W: what is transparent is 0, like what is black."""
    return np.array(Image.fromarray(decode(content, background=(0, 0, 0))).convert("L"))


def open_picture(content: bytes) -> tuple[ImageFile.ImageFile, Facts]:
    """The picture, not yet decoded, and its facts."""
    name = file_format(content)
    if name is None:
        raise RefusedError(_why_not_read(content))
    if why := why_cut_off(content):
        raise RefusedError(f"cut off: {why}")
    if why := _why_damaged(content):
        raise RefusedError(f"damaged: {why}")
    if name in _EXTRAS and not reads(name):
        raise RefusedError(f"{_NAMES[name]}, and its reader is not installed: pip install 'precook[{extra_for(name)}]'")
    if not reads(name) or (name in {"WEBP", "AVIF"} and not features.check(name.lower())):
        raise RefusedError(f"the installed Pillow cannot read {name}: install a newer one, or convert the file")
    with refuse_failures(f"not a readable {name}"):
        image = _reader(name)(io.BytesIO(content))
        if isinstance(image, TiffImageFile):
            # `size` comes before or after the orientation, depending on Pillow's version.
            width, height = int(image.tag_v2[_WIDTH]), int(image.tag_v2[_HEIGHT])
        else:
            width, height = image.size
        orientation = _orientation(image, content)
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > 2 * limit:
        raise RefusedError(f"{width} x {height} pixels are more than the {2 * limit} that Pillow allows")
    if why := _why_not_rgb(image):
        raise RefusedError(why)
    if orientation in SWAPPED:
        width, height = height, width
    alpha = image.mode in _ALPHA_MODES or "transparency" in image.info
    return image, Facts(width, height, orientation, alpha)


def _reader(name: str) -> Callable[[IO[bytes]], ImageFile.ImageFile]:
    if name not in _READERS:
        _, _, module, kind = _EXTRAS[name]
        _READERS[name] = getattr(importlib.import_module(module), kind)
    return _READERS[name]


@contextmanager
def refuse_failures(summary: str) -> Iterator[None]:
    """Whatever Pillow finds wrong with the bytes becomes a `RefusedError`."""
    try:
        yield
    except RefusedError:
        raise
    except _FAILURES as error:
        reason = printable(str(error) or type(error.__cause__ or error).__name__)[:200]
        if isinstance(error, Image.DecompressionBombError):
            summary = "too many pixels"
        elif re.search("truncated|not enough image data", reason, re.IGNORECASE):
            summary = "cut off"
        raise RefusedError(f"{summary}: {reason}") from error


def _why_not_read(content: bytes) -> str:
    """Why content that is in no format of ours is refused."""
    if not content:
        return "empty file"
    name = _other_format(content)
    if name is None:
        return f"not a picture: its first bytes are those of no {_FORMATS}"
    return f"not a picture of a kind that is read here: it looks like {name}; convert it to {_FORMATS}"


def _other_format(content: bytes) -> str | None:
    if {b"heic", b"heix", b"hevc", b"mif1", b"msf1"} & set(media_brands(content)):
        return "HEIC"
    if video_format(content) is not None:
        return "a video"
    Image.init()
    for name, (_, accepts) in list(Image.OPEN.items()):
        # The errors that Pillow itself takes for "no".
        with suppress(SyntaxError, IndexError, TypeError, struct.error):
            if accepts and accepts(content[:16]) is True and name not in _READERS:
                return name
    return None


def _why_damaged(content: bytes) -> str | None:
    """Which part of a PNG's header has a wrong checksum: LOAD_TRUNCATED_IMAGES makes Pillow overlook some of them."""
    if file_format(content) == "PNG":
        for kind, start, end in png_chunks(content):
            if kind == b"IDAT":
                break
            if zlib.crc32(memoryview(content)[start - 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
                return f"the checksum of its {kind!a} chunk is wrong"
    return None


def _why_not_rgb(image: ImageFile.ImageFile) -> str | None:
    """Why pixels of this kind cannot become RGB without a guess, None if they can."""
    if image.mode == "F":
        return "its pixels are floating-point numbers, which do not say what white is; convert it to 8 or 16 bits"
    if isinstance(image, TiffImageFile) and image.mode.startswith("I;16"):
        # Pillow hands both out as they are: the one would be nearly black, the other inverted.
        if image.tag_v2.get(_BITS) != (16,):
            return "its greys have 12 bits; convert it to 8 or 16 bits"
        if image.tag_v2.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
            return "its greys have 16 bits and 0 means white; convert it so that 0 means black"
    return None


def _orientation(image: ImageFile.ImageFile, content: bytes) -> int:
    """The orientation that EXIF gives, or XMP where EXIF gives none; 1 if that is nonsense."""
    value: object
    if image.format in _UPRIGHT:
        return 1
    if isinstance(image, TiffImageFile):
        value = image.tag_v2.get(_ORIENTATION)
    elif isinstance(image, PngImageFile):
        value = _exif_orientation(_png_exif(image, content))
    else:
        value = _exif_orientation(image.info.get("exif", b""))
    if value is None:
        xmp = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp") or b""
        match = re.search(rb'tiff:Orientation(?:="|>)([0-9])', xmp.encode() if isinstance(xmp, str) else xmp)
        value = int(match[1]) if match else None
    return value if isinstance(value, int) and value in TRANSPOSE else 1


def _png_exif(image: PngImageFile, content: bytes) -> bytes:
    # It may lie behind the pixels, where Pillow finds it only by decoding them.
    for kind, start, end in png_chunks(content):
        if kind == b"eXIf":
            return content[start:end]
    # How ImageMagick wrote it before there was a chunk for it.
    profile = image.info.get("Raw profile type exif")
    with suppress(ValueError):
        return bytes.fromhex("".join(profile.split("\n")[3:])) if isinstance(profile, str) else b""
    return b""


def _exif_orientation(exif: bytes) -> int | None:
    """The orientation of the main picture, None where it is missing or cannot be read."""
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return None
    with suppress(struct.error):
        (directory,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, directory)
        for entry in range(directory + 2, directory + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", exif, entry)
            if tag == _ORIENTATION:
                return int(struct.unpack_from(order + {1: "B", 4: "I"}.get(kind, "H"), exif, entry + 8)[0])
    return None


def _load(image: ImageFile.ImageFile, content: bytes, reduction: int) -> None:
    """Decode the pixels, all of them, or of a JPEG those of a smaller picture."""
    mode, interlaced = image.mode, int("interlace" in image.info)
    tiles: list[Any] = list(image.tile)
    lenient = ImageFile.LOAD_TRUNCATED_IMAGES
    if reduction > 1:
        # Of the steps that there are, Pillow takes the last that leaves this size.
        image.draft("RGB", (max(1, image.width // reduction), max(1, image.height // reduction)))
    image.load()
    if lenient or ImageFile.LOAD_TRUNCATED_IMAGES:
        # Somebody told Pillow, for the whole process, to fill in what is missing. So decode once more, where damage is
        # an error all the same. What is left out below never fills in.
        for codec, box, offset, args in tiles if image.format not in {"WEBP", "AVIF", *_EXTRAS} else []:
            if codec in {"libtiff", "bmp_rle"}:
                continue
            data: bytes | memoryview = memoryview(content)[offset:]
            arguments: tuple[Any, ...] = args if isinstance(args, tuple) else (args,)
            if codec == "zip":
                data = b"".join(content[start:end] for kind, start, end in png_chunks(content) if kind == b"IDAT")
                arguments = (*arguments, interlaced)
            size = (box[2] - box[0], box[3] - box[1])
            Image.frombytes("L" if codec == "gif" else mode, size, data, codec, arguments)


def _to_rgb(
    image: Image.Image, facts: Facts, transparent: object, depth: int, background: tuple[int, int, int]
) -> Image.Image:
    """The picture in RGB, over `background` where it is transparent."""
    # Only what stands before the pixels counts, as in the facts.
    image.info.pop("transparency", None)
    alpha = None
    if image.mode in _ALPHA_MODES or (image.mode == "P" and facts.alpha):
        if image.mode == "P":
            image.info["transparency"] = transparent
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
    elif facts.alpha:
        alpha = _opaque_except(image, transparent, depth)
    if image.mode.startswith("I"):
        image = _high_byte(image)
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    if alpha is None:
        return rgb
    canvas = Image.new("RGB", rgb.size, background)
    canvas.paste(rgb, mask=alpha)
    return canvas


def _opaque_except(image: Image.Image, transparent: object, depth: int) -> Image.Image:
    """The alpha of a picture in which one colour is transparent; `depth` is the bits per channel it is written in."""
    pixels = np.asarray(image.convert("L") if image.mode == "1" else image)
    colour = np.array(transparent)
    if image.mode == "RGB":
        opaque = (pixels != colour >> (depth - 8)).any(axis=2)
    else:
        # The decoder stretches greys of 2 and 4 bits to 0..255, but not this one.
        opaque = pixels != colour * {2: 85, 4: 17}.get(depth, 1)
    return Image.fromarray(opaque.astype(np.uint8) * 255)


def _high_byte(image: Image.Image) -> Image.Image:
    """Greys of 16 bits as greys of 8."""
    greys = np.asarray(image)
    if greys.min() < 0 or greys.max() > np.iinfo(np.uint16).max:
        raise RefusedError("its greys are not within 0 to 65535, so nothing says what white is; convert it to 16 bits")
    return Image.fromarray((greys >> 8).astype(np.uint8))
