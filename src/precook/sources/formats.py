"""File formats of pictures and videos: which one a file is in, and whether all of the file is there.

A plan refuses a file that was cut off before anything is encoded, so this is told from the structure of the file, not
from its pixels. Pillow could say it only by decoding: for a JPEG of 1536 x 1024 pixels that takes 6.6 ms and this 6 us,
for a PNG 49 ms and 24 us, and its `verify()` notices no cut in a JPEG, BMP, TIFF or GIF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

SUFFIXES = ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "avif", "bmp", "tif", "tiff", "gif")
"""Ends of the names of picture files; a file is taken for what its first bytes announce."""
EXTRA_SUFFIXES = {"heic": "HEIF", "heif": "HEIF", "hif": "HEIF", "jxl": "JXL"}
"""The same of formats that an extra reads: such files are pictures where that is installed."""
VIDEO_SUFFIXES = ("mp4", "m4v", "mov", "mkv", "webm", "avi")
"""Ends of the names of video files; they, too, are taken for what their first bytes announce."""

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
_HEIF_BRANDS = ([b"heic"], [b"heix"], [b"heim"], [b"heis"], [b"mif1"])
_MOVIE_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"moof", b"wide", b"free", b"skip", b"pnot"})
"""What an MP4 or QuickTime file may begin with."""
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
"""What a Matroska file begins with, and what holds all of its tracks."""


def file_format(content: bytes) -> str | None:
    """The format that the first bytes announce, by Pillow's name for it; None where it is none that we read.

    >>> file_format(b"GIF89a..."), file_format(b"GIF of a cat")
    ('GIF', None)
    """
    for name, signatures in _SIGNATURES.items():
        if content.startswith(signatures):
            return name
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "WEBP"
    if is_heif(content):
        return "HEIF"
    return "AVIF" if {b"avif", b"avis"} & set(media_brands(content)) else None


def why_cut_off(content: bytes) -> str | None:
    r"""What of a picture file is missing, None where its structure shows no gap; any bytes may be given.

    A file is cut off even if what it lost holds no pixels, like a PNG without its last chunk: nobody knows what else
    was there.

    >>> why_cut_off(b"\xff\xd8\xff\xe0\x00\x10JFIF")
    'it ends inside its header'
    """
    check = _CHECKS.get(file_format(content) or "")
    return check(content) if check else None


def video_format(content: bytes) -> str | None:
    r"""The container that the first bytes announce, by FFmpeg's name for it; None where it is none that we read.

    >>> video_format(b"\0\0\0\x20ftypisom"), video_format(b"\0\0\0\x20ftypavif"), video_format(b"RIFF....AVI ")
    ('mov', None, 'avi')
    """
    if content.startswith(_EBML):
        return "matroska"
    if content.startswith(b"RIFF") and content[8:12] == b"AVI ":
        return "avi"
    if content[4:8] in _MOVIE_BOXES and file_format(content) is None:
        return "mov"
    return None


def why_video_cut_off(content: bytes) -> str | None:
    """What of a video, or of an animated GIF or WebP, is missing; None where its structure shows no gap."""
    check = {"mov": _movie, "matroska": _matroska, "avi": _webp}.get(video_format(content) or "")
    if check is None:
        check = _whole_gif if file_format(content) == "GIF" else why_cut_off
    return check(content)


def is_heif(content: bytes) -> bool:
    """Whether an ISO media file holds pictures, as HEIC does, and neither a film nor an AVIF."""
    brands = media_brands(content)
    return brands[:1] in _HEIF_BRANDS and not {b"avif", b"avis"} & set(brands)


def media_brands(content: bytes) -> list[bytes]:
    """What an ISO media file (AVIF, HEIC, MP4) says it is, the main brand first; nothing for other files."""
    if content[4:8] != b"ftyp":
        return []
    box = content[8 : min(_big(content[:4]), 4096)]
    return [box[:4], *(box[start : start + 4] for start in range(8, len(box), 4))]


def png_chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of the data of each whole chunk, up to the last one."""
    position = len(_PNG_SIGNATURE)
    while position + _PNG_FRAME <= len(content):
        kind, start = content[position + 4 : position + 8], position + 8
        end = start + _big(content[position : position + 4])
        if end + 4 > len(content):
            return
        yield kind, start, end
        if kind == b"IEND":
            return
        position = end + 4


def _jpeg(content: bytes) -> str | None:
    position = 2
    # Whatever stands between segments is skipped, as decoders do.
    while (position := content.find(b"\xff", position) + 1) and position < len(content):
        marker = content[position]
        if marker == _JPEG_PADDING:
            continue
        position += 1
        if marker in _JPEG_WITHOUT_LENGTH:
            continue
        length = _big(content[position : position + _JPEG_LENGTH])
        if position + max(length, _JPEG_LENGTH) > len(content):
            break
        if length < _JPEG_LENGTH:
            return None  # damaged, which is for the decoder to say
        position += length
        if marker == _JPEG_SCAN:
            # Pixels never hold this pair. A thumbnail's end lies in the header; behind the picture there may be a film.
            return None if content.rfind(b"\xff\xd9", position) >= 0 else "it ends inside its pixels"
    return "it ends inside its header"


def _png(content: bytes) -> str | None:
    position = len(_PNG_SIGNATURE)
    for kind, _, end in png_chunks(content):
        if kind == b"IEND":
            return None
        position = end + 4
    kind = content[position + 4 : position + 8]
    if not kind:
        return "its end is missing"
    return f"it ends inside its {kind.decode()} chunk" if kind.isalpha() else None  # damaged, for the decoder to say


def _webp(content: bytes) -> str | None:
    return _bytes_missing(8 + _little(content[4:8]) - len(content))


def _gif(content: bytes) -> str | None:
    if len(content) < _GIF_HEADER:
        return "it ends inside its header"
    for end in _gif_frames(content):
        return "it ends inside its first frame" if end is not None and end > len(content) else None
    return "it ends before its first frame"


def _whole_gif(content: bytes) -> str | None:
    """What is missing of all frames of a GIF, not of its first alone."""
    if why := _gif(content):
        return why
    ends = list(_gif_frames(content))
    return None if ends[-1] is None else f"it ends inside or behind frame {len(ends)}, and its end is missing"


def _gif_frames(content: bytes) -> Iterator[int | None]:
    """Where each frame ends, which may be behind the end of the file; None for what ends all of them."""
    position = _GIF_HEADER + _gif_colour_table(content[10])
    while position < len(content):
        block = content[position : position + 1]
        if block == b";":
            yield None
            return
        if block == b"!":
            position = _gif_blocks_end(content, position + 2)
        elif block == b",":
            flags = content[position + 9] if position + 9 < len(content) else 0
            position = _gif_blocks_end(content, position + 11 + _gif_colour_table(flags))
            yield position
        else:
            position += 1


def _gif_colour_table(flags: int) -> int:
    """Bytes of the colour table that these flags announce."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _gif_blocks_end(content: bytes, start: int) -> int:
    """Where the blocks from `start` on end; more than there is if the file ends inside of one."""
    if start >= len(content):
        return len(content) + 1
    position = start
    while position < len(content):
        size = content[position]
        position += 1 + size
        if not size:
            break
    # Where just the closing zero is missing, the pixels may be all there: the decoder will tell.
    return position


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
        directory, count, entry = number(content[8:16]), 8, 20
    else:
        directory, count, entry = number(content[4:8]), 2, 12
    if directory >= len(content):
        return "its directory is missing"
    # Where the next directory is stands behind the entries; nobody needs that.
    end = directory + count + entry * number(content[directory : directory + count])
    return "it ends inside its directory" if end > len(content) else None


def _avif(content: bytes) -> str | None:
    position = 0
    needed = {b"meta", b"mdat"}
    # Behind these two anything may follow.
    while needed and position + _BOX_HEADER <= len(content):
        size = _big(content[position : position + 4])
        if size == 1:
            size = _big(content[position + 8 : position + 16])
        if size < _BOX_HEADER:
            return None  # up to the end of the file, or damaged
        needed.discard(content[position + 4 : position + 8])
        position += size
    return _bytes_missing(position - len(content))


def _movie(content: bytes) -> str | None:
    position = 0
    seen = set()
    while position + _BOX_HEADER <= len(content):
        size = _big(content[position : position + 4])
        if size == 1:
            size = _big(content[position + 8 : position + 16])
        seen.add(content[position + 4 : position + 8])
        if size < _BOX_HEADER:
            position = len(content)  # up to the end of the file, or damaged
        position += size
    if position > len(content) and size >= _BOX_HEADER:
        return _bytes_missing(position - len(content))
    return None if b"moov" in seen else "the table of its frames is missing"


def _matroska(content: bytes) -> str | None:
    start = len(_EBML)
    size, start = _ebml_size(content, start)
    start += size or 0
    if content[start : start + 4] != _SEGMENT:
        return "it ends inside its header" if start + 4 > len(content) else None  # damaged, for the decoder to say
    size, start = _ebml_size(content, start + len(_SEGMENT))
    return None if size is None else _bytes_missing(start + size - len(content))


def _ebml_size(content: bytes, start: int) -> tuple[int | None, int]:
    """A size of EBML and where what it counts begins; None where it was not known when the file was begun."""
    first = content[start] if start < len(content) else 0
    length = 9 - first.bit_length()
    bits = 7 * length
    size = _big(content[start : start + length]) & ((1 << bits) - 1)
    return (None if size == (1 << bits) - 1 else size), start + length


def _bytes_missing(count: int) -> str | None:
    return f"its last {count} bytes are missing" if count > 0 else None


def _big(field: bytes) -> int:
    return int.from_bytes(field, "big")


def _little(field: bytes) -> int:
    return int.from_bytes(field, "little")


_SIGNATURES: dict[str, bytes | tuple[bytes, ...]] = {
    "JPEG": b"\xff\xd8\xff",
    "PNG": _PNG_SIGNATURE,
    "GIF": (b"GIF87a", b"GIF89a"),
    "BMP": b"BM",
    "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    "JXL": (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n"),
}
_CHECKS: dict[str, Callable[[bytes], str | None]] = {
    "JPEG": _jpeg,
    "PNG": _png,
    "WEBP": _webp,
    "GIF": _gif,
    "BMP": _bmp,
    "TIFF": _tiff,
    "AVIF": _avif,
    "HEIF": _avif,
}
