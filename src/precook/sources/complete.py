"""Is a picture file whole? What its structure says, without decoding a pixel.

A file that ends inside one of its own parts was cut off: by a broken download, a full disk, a killed copy. Where only
the decoder can know (the pixels of a TIFF, the last code of a GIF), nothing is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_FRAME = 12
"""Bytes of a chunk around its data: length, kind and checksum."""

_JPEG_PADDING = 0xFF
_JPEG_SCAN = 0xDA
_JPEG_LENGTH = 2
_JPEG_WITHOUT_LENGTH = frozenset({0x00, 0x01, 0xC8, *range(0xD0, 0xDA), *range(0xF0, 0xFE)})
"""Escaped bytes, restarts, start, end, and extensions that nobody uses."""

_GIF_HEADER = 13

_BMP_HEADERS = frozenset({12, 40, 52, 56, 64, 108, 124})
_BMP_OS2 = 12
"""The size of the header with short sides, and without signs and compression."""
_BMP_DEPTHS = frozenset({1, 4, 8, 16, 24, 32})
_BMP_UNCOMPRESSED = frozenset({0, 3})

_BOX_HEADER = 8


def why_cut_off(content: bytes) -> str | None:
    r"""What of a picture file is missing, None where its structure shows no gap; any bytes may be given.

    A file is cut off even if what it lost holds no pixels, like a PNG without its last chunk: nobody knows what else
    was there.

    >>> why_cut_off(b"\xff\xd8\xff\xe0\x00\x10JFIF")
    'it ends inside its header'
    """
    walk = _WALKS.get(file_format(content) or "")
    return walk(content) if walk else None


def file_format(content: bytes) -> str | None:
    """The format that the first bytes announce, by Pillow's name for it; None where it is none that we read.

    >>> file_format(b"GIF89a..."), file_format(b"GIF of a cat")
    ('GIF', None)
    """
    if content.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if content.startswith(_PNG_SIGNATURE):
        return "PNG"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if content.startswith(b"BM"):
        return "BMP"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "WEBP"
    if content.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "TIFF"
    return "AVIF" if {b"avif", b"avis"} & set(brands(content)) else None


def brands(content: bytes) -> list[bytes]:
    """What an ISO media file (AVIF, HEIC, MP4) says it is, the main brand first; nothing for other files."""
    if content[4:8] != b"ftyp":
        return []
    box = content[8 : min(_big(content[:4]), 4096)]
    return [box[:4], *(box[at : at + 4] for at in range(8, len(box), 4))]


def png_chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of the data of each whole chunk, up to the last one."""
    at = len(_PNG_SIGNATURE)
    while at + _PNG_FRAME <= len(content):
        kind, start = content[at + 4 : at + 8], at + 8
        end = start + _big(content[at : at + 4])
        if end + 4 > len(content):
            return
        yield kind, start, end
        if kind == b"IEND":
            return
        at = end + 4


def _jpeg(content: bytes) -> str | None:
    at = 2
    # Whatever stands between segments is skipped, as decoders do.
    while (at := content.find(b"\xff", at) + 1) and at < len(content):
        marker = content[at]
        if marker == _JPEG_PADDING:
            continue
        at += 1
        if marker in _JPEG_WITHOUT_LENGTH:
            continue
        length = _big(content[at : at + _JPEG_LENGTH])
        if at + max(length, _JPEG_LENGTH) > len(content):
            break
        if length < _JPEG_LENGTH:
            return None  # damaged, which is for the decoder to say
        at += length
        if marker == _JPEG_SCAN:
            # Pixels never hold this pair. A thumbnail's end lies in the header; behind the picture there may be a film.
            return None if content.rfind(b"\xff\xd9", at) >= 0 else "it ends inside its pixels"
    return "it ends inside its header"


def _png(content: bytes) -> str | None:
    at = len(_PNG_SIGNATURE)
    for kind, _, end in png_chunks(content):
        if kind == b"IEND":
            return None
        at = end + 4
    kind = content[at + 4 : at + 8]
    if not kind:
        return "its end is missing"
    return f"it ends inside its {kind.decode()} chunk" if kind.isalpha() else None  # damaged, for the decoder to say


def _webp(content: bytes) -> str | None:
    return _missing(8 + _little(content[4:8]) - len(content))


def _gif(content: bytes) -> str | None:
    if len(content) < _GIF_HEADER:
        return "it ends inside its header"
    at = _GIF_HEADER + _gif_colours(content[10])
    while at < len(content):
        block = content[at : at + 1]
        if block == b";":
            return None
        if block == b"!":
            at = _gif_blocks_end(content, at + 2)
        elif block == b",":
            flags = content[at + 9] if at + 9 < len(content) else 0
            end = _gif_blocks_end(content, at + 11 + _gif_colours(flags))
            return "it ends inside its first frame" if end > len(content) else None
        else:
            at += 1
    return "it ends before its first frame"


def _gif_colours(flags: int) -> int:
    """Bytes of the colour table that these flags announce."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _gif_blocks_end(content: bytes, at: int) -> int:
    """Where the blocks from `at` on end; more than there is if the file ends inside of one."""
    if at >= len(content):
        return len(content) + 1
    while at < len(content):
        size = content[at]
        at += 1 + size
        if not size:
            break
    # Where just the closing zero is missing, the pixels may be all there: the decoder will tell.
    return at


def _bmp(content: bytes) -> str | None:
    header = _little(content[14:18])
    if len(content) < 14 + (header if header in _BMP_HEADERS else 4):
        return "it ends inside its header"
    if header not in _BMP_HEADERS:
        return None
    if header == _BMP_OS2:
        width, height, depth, compression = _little(content[18:20]), _little(content[20:22]), _little(content[24:26]), 0
    else:
        width, height = _little(content[18:22]), abs(int.from_bytes(content[22:26], "little", signed=True))
        depth, compression = _little(content[28:30]), _little(content[30:34])
    end = _little(content[10:14]) or 14 + header
    if compression in _BMP_UNCOMPRESSED and depth in _BMP_DEPTHS and width and height:
        # Rows are padded to four bytes; nobody needs the padding of the last one.
        end += (width * depth + 31) // 32 * 4 * (height - 1) + (width * depth + 7) // 8
    return "it ends inside its pixels" if end > len(content) else None


def _tiff(content: bytes) -> str | None:
    number = _little if content.startswith(b"II") else _big
    if b"+" in content[2:4]:  # BigTIFF
        at, count, entry = number(content[8:16]), 8, 20
    else:
        at, count, entry = number(content[4:8]), 2, 12
    if at >= len(content):
        return "its directory is missing"
    # Where the next directory is stands behind the entries; nobody needs that.
    end = at + count + entry * number(content[at : at + count])
    return "it ends inside its directory" if end > len(content) else None


def _avif(content: bytes) -> str | None:
    at = 0
    kinds = {b"meta", b"mdat"}
    # Behind these two anything may follow.
    while kinds and at + _BOX_HEADER <= len(content):
        size = _big(content[at : at + 4])
        if size == 1:
            size = _big(content[at + 8 : at + 16])
        if size < _BOX_HEADER:
            return None  # up to the end of the file, or damaged
        kinds.discard(content[at + 4 : at + 8])
        at += size
    return _missing(at - len(content))


def _missing(count: int) -> str | None:
    return f"its last {count} bytes are missing" if count > 0 else None


def _big(field: bytes) -> int:
    return int.from_bytes(field, "big")


def _little(field: bytes) -> int:
    return int.from_bytes(field, "little")


_WALKS: dict[str, Callable[[bytes], str | None]] = {
    "JPEG": _jpeg,
    "PNG": _png,
    "WEBP": _webp,
    "GIF": _gif,
    "BMP": _bmp,
    "TIFF": _tiff,
    "AVIF": _avif,
}
