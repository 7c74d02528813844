"""Which format a picture file is in, and whether all of it is there."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook.sources.formats import why_cut_off
from precook.sources.pictures import RefusedError, decode, read_facts
from tests.support.pictures import (
    KINDS,
    every_kind,
    exif,
    needs_avif,
    picture,
    reason,
    save,
    scene,
)


@every_kind
def test_a_whole_file_is_not_called_cut_off(content: bytes) -> None:
    """No gap is seen where there is none, nor where something else follows the picture."""
    assert why_cut_off(content) is None
    assert why_cut_off(content + b"\0\0\0\x18ftypmp42 a film") is None
    assert (decode(content + b"a film") == decode(content)).all()


@given(kind=st.sampled_from(sorted(KINDS)), data=st.data())
def test_a_cut_file_is_refused_or_complete(kind: str, data: st.DataObject) -> None:
    """Wherever a file is cut, it gives its pixels in full or none at all."""
    content = KINDS[kind]
    part = content[: data.draw(st.integers(0, len(content) - 1))]
    try:
        pixels = decode(part)
    except RefusedError:
        return
    assert (pixels == decode(content)).all()


CUTS = {
    "JPEG RGB": ["it ends inside its header", "it ends inside its pixels"],
    "PNG RGB": ["it ends inside its IDAT chunk", "its end is missing"],
    "WEBP RGB": ["its last 7 bytes are missing"],
    "GIF P": ["it ends inside its header", "it ends before its first frame", "it ends inside its first frame"],
    "BMP RGB": ["it ends inside its header", "it ends inside its pixels"],
    "TIFF RGB deflate": ["its directory is missing"],
    "TIFF L deflate": ["its directory is missing", "it ends inside its directory"],
}


@pytest.mark.parametrize("kind", CUTS)
def test_a_header_tells_that_a_file_was_cut_off(kind: str) -> None:
    """A cut is found from the structure of the file, and the reason says where it ends."""
    content = KINDS[kind]
    found = set()
    for length in range(len(content)):
        if why := why_cut_off(content[:length]):
            found.add(why)
            with pytest.raises(RefusedError, match=f"^cut off: {why}$"):
                read_facts(content[:length])
    assert found >= set(CUTS[kind])


@needs_avif
def test_a_cut_avif_is_found_by_its_boxes() -> None:
    """The boxes of an AVIF say how long it is."""
    content = KINDS["AVIF RGB"]
    assert why_cut_off(content[:-7]) == "its last 7 bytes are missing"


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_picture() -> None:
    """A JPEG that holds a whole thumbnail and half of its own pixels is cut off."""
    thumbnail = KINDS["JPEG RGB"]
    content = save(picture("RGB"), "JPEG", exif=b"Exif\0\0" + exif(1) + thumbnail)
    assert thumbnail in content
    assert why_cut_off(content[:-20]) == "it ends inside its pixels"
    assert reason(content[:-20]) == "cut off: it ends inside its pixels"


def test_a_png_without_its_last_chunk_is_cut_off() -> None:
    """All pixels may be there, but nobody knows what else was: an orientation, say."""
    assert reason(KINDS["PNG RGB"][:-12]) == "cut off: its end is missing"
    assert reason(KINDS["PNG RGB"][:-1]) == "cut off: it ends inside its IEND chunk"


def test_garbage_between_chunks_is_not_called_a_cut() -> None:
    """What is no chunk at all is damage, and the decoder says whether it matters."""
    assert why_cut_off(KINDS["PNG RGB"][:-12] + b"\x7f\xff\xff\xff\xff\xfe\xfd\xfc....") is None


def rle(width: int, height: int, data: bytes) -> bytes:
    """A BMP in run-length encoding, which states no size of its pixels."""
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, 0, 0, 0, 2, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + 40 + 8) + header + bytes([0, 0, 0, 0, 9, 8, 7, 0]) + data


def test_a_compressed_bmp_is_whole_with_its_last_pixel() -> None:
    """Sizes of zero in a BMP's header mean nothing; only the decoder knows where run lengths end."""
    content = rle(40, 2, bytes([40, 1, 0, 0, 40, 0, 0, 1]))
    assert why_cut_off(content) is None
    assert decode(content)[:, 0].tolist() == [[0, 0, 0], [7, 8, 9]]
    assert reason(content[:-5]).startswith("cut off: ")


def test_a_bmp_may_lack_the_padding_of_its_last_row() -> None:
    """What no decoder needs is not missed."""
    assert why_cut_off(KINDS["BMP RGB"][:-1]) is None
    assert (decode(KINDS["BMP RGB"][:-1]) == scene()).all()
    assert why_cut_off(KINDS["BMP RGB"][:-2]) == "it ends inside its pixels"


@pytest.mark.parametrize("height", [2, -2])
@pytest.mark.parametrize("offset", [0, 54])
def test_a_bmp_may_run_from_the_top_and_not_say_where_its_pixels_are(height: int, offset: int) -> None:
    """A negative height is the order of the rows; no place for the pixels means right behind the header."""
    header = struct.pack("<IiiHHIIiiII", 40, 1, height, 1, 24, 0, 0, 0, 0, 0, 0)
    content = b"BM" + struct.pack("<IHHI", 0, 0, 0, offset) + header + bytes([1, 2, 3, 0, 4, 5, 6, 0])
    assert why_cut_off(content) is None
    assert decode(content)[:, 0].tolist() == [[6, 5, 4], [3, 2, 1]][:: 1 if height > 0 else -1]
    assert why_cut_off(content[:-2]) == "it ends inside its pixels"
