"""Picture files of every format and mode, made small for tests."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, features

from precook.sources.pictures import RefusedError, decode
from precook.values import Pixels

AVIF = "avif" in features.modules and bool(features.check("avif"))
WIDTH, HEIGHT = 37, 20


def scene() -> Pixels:
    """Colours that are nowhere the same twice, with hard edges and some noise."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    rgb = np.stack([x * 255 // (WIDTH - 1), y * 255 // (HEIGHT - 1), (x + y) * 4], axis=2).astype(np.uint8)
    rgb[3:8, 5:20] = np.random.default_rng(0).integers(0, 256, (5, 15, 3))
    return rgb


def picture(mode: str) -> Image.Image:
    image = Image.fromarray(scene())
    if mode in {"I;16", "I;16B", "I", "F"}:
        grey = np.asarray(image.convert("L")).astype(np.uint16) * 257
        return Image.fromarray(
            grey if mode == "I;16" else grey.astype({"I": np.int32, "F": np.float32}.get(mode, ">u2"))
        )
    image.putalpha(Image.fromarray(scene()[..., 0]))
    return image.convert("RGB").convert(mode) if mode == "LAB" else image.convert(mode)


def save(image: Image.Image, name: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, name, **options)
    return file.getvalue()


def exif(orientation: int, *, order: str = "<") -> bytes:
    """EXIF with a description and an orientation, in either byte order."""
    head = b"II*\0" if order == "<" else b"MM\0*"
    entries = [(0x010E, 2, 4, b"cat\0"), (0x0112, 3, 1, struct.pack(order + "HH", orientation, 0))]
    packed = b"".join(struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries)
    return head + struct.pack(order + "IH", 8, len(entries)) + packed + bytes(4)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth: int, colour: int, rows: list[bytes], width: int, *chunks: bytes) -> bytes:
    """A PNG of exactly these bytes, for depths that Pillow does not write."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + pixels + chunk(b"IEND", b"")


def interlaced(pixels: Pixels) -> bytes:
    """A PNG whose pixels come in seven passes."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = [b"\0" + row.tobytes() for top, left, down, right in passes for row in pixels[top::down, left::right]]
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 1)
    data = zlib.compress(b"".join(row for row in rows if len(row) > 1))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def tiff(bits: int, photometric: int, rows: bytes, width: int, height: int, *, offset_type: int = 4) -> bytes:
    """An uncompressed greyscale TIFF, for kinds that Pillow does not write."""
    entries = [
        *((256, 3, width), (257, 3, height), (258, 3, bits), (259, 3, 1), (262, 3, photometric)),
        *((273, offset_type, 8), (277, 3, 1), (278, 3, height), (279, 4, len(rows))),
    ]
    packed = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\0" + struct.pack("<I", 8 + len(rows)) + rows + struct.pack("<H", len(entries)) + packed + bytes(4)


def kinds() -> dict[str, bytes]:
    """A whole file of every format and mode that Pillow writes."""
    rgb = picture("RGB")
    files = {
        "JPEG RGB": save(rgb, "JPEG"),
        "JPEG L progressive": save(picture("L"), "JPEG", progressive=True),
        "JPEG CMYK": save(picture("CMYK"), "JPEG"),
        "JPEG exif": save(rgb, "JPEG", exif=b"Exif\0\0" + exif(6)),
        "MPO": save(rgb, "MPO", save_all=True, append_images=[rgb.rotate(180)]),
        "WEBP RGB": save(rgb, "WEBP"),
        "WEBP RGBA lossless": save(picture("RGBA"), "WEBP", lossless=True),
        "WEBP animated": save(rgb, "WEBP", save_all=True, append_images=[rgb.rotate(180)]),
        "GIF P": save(rgb.quantize(16), "GIF"),
        "GIF L": save(picture("L"), "GIF"),
        "GIF transparent": save(rgb.quantize(16), "GIF", transparency=3),
        "GIF animated": save(rgb.quantize(16), "GIF", save_all=True, append_images=[rgb.rotate(180).quantize(16)]),
        "PNG P transparent": save(rgb.quantize(16), "PNG", transparency=bytes(range(0, 160, 10))),
        "PNG animated": save(rgb, "PNG", save_all=True, append_images=[rgb.rotate(180)]),
        "PNG interlaced": interlaced(scene()),
        "TIFF RGB jpeg": save(rgb, "TIFF", compression="jpeg"),
        "TIFF 1 group4": save(picture("1"), "TIFF", compression="group4"),
    }
    files |= {f"PNG {mode}": save(picture(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")}
    files |= {f"BMP {mode}": save(picture(mode), "BMP") for mode in ("1", "L", "P", "RGB", "RGBA")}
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I;16B", "I"):
        if mode != "YCbCr":  # Pillow before 13 cannot read what it writes
            files[f"TIFF {mode}"] = save(picture(mode), "TIFF")
        if mode != "I;16B":
            files[f"TIFF {mode} deflate"] = save(picture(mode), "TIFF", compression="tiff_adobe_deflate")
    if AVIF:
        files["AVIF RGB"] = save(rgb, "AVIF")
        files["AVIF RGBA"] = save(picture("RGBA"), "AVIF")
    return files


KINDS = kinds()
every_kind = pytest.mark.parametrize("content", KINDS.values(), ids=KINDS.keys())
needs_avif = pytest.mark.skipif(not AVIF, reason="this Pillow does not read AVIF")


def reason(content: bytes) -> str:
    """Why a file is refused, by its header or by its pixels."""
    with pytest.raises(RefusedError) as refusal:
        decode(content)
    return str(refusal.value)
