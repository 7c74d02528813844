"""How picture files become pixels, and what is refused."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps
from PIL.PngImagePlugin import PngInfo

from precook.sources import pictures
from precook.sources.formats import file_format, png_chunks, why_cut_off
from precook.sources.pictures import Facts, RefusedError, check_pixels, decode, decode_mask, read_facts
from precook.values import Pixels
from tests.support.pictures import (
    HEIGHT,
    KINDS,
    WIDTH,
    chunk,
    every_kind,
    exif,
    needs_avif,
    picture,
    png,
    reason,
    save,
    scene,
    tiff,
)

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".avif", ".bmp", ".tif", ".tiff", ".gif"}


# Every kind


@every_kind
def test_the_announced_size_is_the_size_of_the_pixels(content: bytes) -> None:
    """What a header says about a picture's size is what decoding gives, upright."""
    facts = read_facts(content)
    pixels = decode(content)
    assert pixels.shape == (facts.height, facts.width, 3)
    assert decode_mask(content).shape == (facts.height, facts.width)
    assert {facts.width, facts.height} == {WIDTH, HEIGHT}


@every_kind
def test_pixels_are_ours_to_write_to(content: bytes) -> None:
    """Decoded pixels are plain bytes in row order that a tensor can take over without a copy or a warning."""
    pixels = decode(content)
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable


@every_kind
def test_transparency_is_announced_exactly_where_the_background_shows(content: bytes) -> None:
    """The header says whether the background decides pixels."""
    facts = read_facts(content)
    changed = bool((decode(content, background=(0, 0, 0)) != decode(content, background=(255, 255, 255))).any())
    assert facts.alpha == changed


@every_kind
def test_opaque_pixels_are_those_that_pillow_converts(content: bytes) -> None:
    """Palettes, greys, 1-bit, CMYK, Lab and YCbCr become the RGB that Pillow makes of them."""
    if not read_facts(content).alpha:
        image = Image.open(io.BytesIO(content))
        if not image.mode.startswith("I"):
            assert (decode(content) == np.asarray(ImageOps.exif_transpose(image).convert("RGB"))).all()


@every_kind
def test_a_picture_decodes_alike_in_many_threads(content: bytes) -> None:
    """A pool of threads gets the same pixels as one thread."""
    expected = decode(content)
    with ThreadPoolExecutor(8) as pool:
        assert all((pixels == expected).all() for pixels in pool.map(decode, [content] * 16))


# Colours


def test_grey_becomes_three_equal_channels() -> None:
    """A greyscale file keeps its values, in each channel."""
    grey = scene()[..., 0]
    assert (decode(save(Image.fromarray(grey), "PNG")) == grey[..., None]).all()


def test_one_bit_becomes_black_and_white() -> None:
    """The two values of a 1-bit file are 0 and 255."""
    content = png(1, 0, [b"\xa0"], 4)
    assert decode(content)[0, :, 0].tolist() == [255, 0, 255, 0]


@pytest.mark.parametrize("make", [lambda image: save(image, "PNG"), lambda image: save(image, "TIFF")])
def test_sixteen_bit_grey_keeps_its_high_byte(make: Callable[[Image.Image], bytes]) -> None:
    """Of 16 bits the high byte stays: 255 is still black, 65535 is white."""
    values = np.array([[0, 255, 256, 511, 32768, 65279, 65280, 65535]], np.uint16)
    assert decode(make(Image.fromarray(values)))[0, :, 0].tolist() == [0, 0, 1, 1, 128, 254, 255, 255]


def test_big_endian_sixteen_bit_grey_keeps_its_high_byte() -> None:
    """The byte order of a TIFF does not matter."""
    values = np.array([[0, 255, 256, 65535]], ">u2")
    assert decode(save(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == [0, 0, 1, 255]


def test_sixteen_bit_colour_keeps_its_high_bytes() -> None:
    """A PNG of 16 bits per channel loses the low bytes, alpha included."""
    assert decode(png(16, 2, [bytes.fromhex("00ff0100ffff")], 1)).tolist() == [[[0, 1, 255]]]
    content = png(16, 6, [bytes.fromhex("00ff0100ffff80ff")], 1)
    assert decode(content, background=(0, 0, 0)).tolist() == [[[0, (128 + 127) // 255, 128]]]


@pytest.mark.parametrize("value", [65536, -1])
def test_greys_beyond_sixteen_bits_are_refused(value: int) -> None:
    """Where nothing says what white is, nothing is guessed."""
    assert "0 to 65535" in reason(save(Image.fromarray(np.array([[0, value]], np.int32)), "TIFF"))


def test_a_grey_of_32_bits_within_the_range_of_16_is_taken_as_16() -> None:
    """A 32-bit file whose values all fit into 16 bits is read like a 16-bit one."""
    assert decode(save(Image.fromarray(np.array([[0, 65535]], np.int32)), "TIFF"))[0, :, 0].tolist() == [0, 255]


def test_floating_point_pixels_are_refused_by_their_header() -> None:
    """A file of floats is refused before it is decoded, with the way out."""
    with pytest.raises(RefusedError, match=r"floating-point numbers.*convert it to 8 or 16 bits"):
        read_facts(save(picture("F"), "TIFF"))


@pytest.mark.parametrize(
    ("content", "why"),
    [(tiff(12, 1, bytes(6), 4, 1), "12 bits"), (tiff(16, 0, bytes(8), 4, 1), "0 means white")],
)
def test_greys_that_pillow_does_not_scale_are_refused(content: bytes, why: str) -> None:
    """12-bit and inverted 16-bit TIFFs would come out black or as negatives, so they are refused."""
    assert why in reason(content)


def test_white_is_zero_in_eight_bits_is_read_upright() -> None:
    """A TIFF that counts from white down shows its true greys."""
    assert decode(tiff(8, 0, bytes([0, 255, 10, 200]), 4, 1))[0, :, 0].tolist() == [255, 0, 245, 55]


@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_colour_profiles_change_nothing(name: str) -> None:
    """The same pixels with and without an ICC profile decode alike."""
    plain = save(picture("RGB"), name)
    assert (decode(save(picture("RGB"), name, icc_profile=b"profile" * 99)) == decode(plain)).all()


@pytest.mark.parametrize("name", ["GIF animated", "PNG animated", "WEBP animated", "MPO"])
def test_of_several_frames_the_first_is_taken(name: str) -> None:
    """Animations and a phone's pairs of pictures count as their first picture."""
    distance = np.abs(decode(KINDS[name]).astype(int) - scene())
    assert distance.mean() < np.abs(decode(KINDS[name])[::-1, ::-1].astype(int) - scene()).mean() / 2


# Transparency


@given(background=st.tuples(*[st.integers(0, 255)] * 3))
def test_alpha_mixes_in_exact_integers(background: tuple[int, int, int]) -> None:
    """Each channel is colour and background weighted by alpha, divided by 255 and rounded to the nearest."""
    colour, alpha = np.mgrid[:256, :256].astype(np.uint8)
    content = save(Image.fromarray(np.stack([colour, 255 - colour, alpha, alpha], axis=2)), "PNG", compress_level=1)
    colours = np.stack([colour, 255 - colour, alpha], axis=2).astype(int)
    weight = alpha[..., None].astype(int)
    expected = (colours * weight + np.array(background) * (255 - weight) + 127) // 255
    assert (decode(content, background=background) == expected).all()


TRANSPARENT = [
    pytest.param(png(8, 0, [bytes([5, 6])], 2, chunk(b"tRNS", b"\0\5")), id="grey"),
    pytest.param(png(4, 0, [b"\x5a"], 2, chunk(b"tRNS", b"\0\5")), id="grey of 4 bits"),
    pytest.param(png(2, 0, [b"\x60"], 2, chunk(b"tRNS", b"\0\1")), id="grey of 2 bits"),
    pytest.param(png(1, 0, [b"\x40"], 2, chunk(b"tRNS", b"\0\0")), id="1 bit"),
    pytest.param(png(16, 0, [b"\5\1\5\2"], 2, chunk(b"tRNS", b"\5\1")), id="grey of 16 bits"),
    pytest.param(png(8, 2, [bytes([5, 6, 7, 5, 6, 8])], 2, chunk(b"tRNS", bytes([0, 5, 0, 6, 0, 7]))), id="colour"),
    pytest.param(
        png(16, 2, [bytes([5, 9, 6, 9, 7, 9, 5, 9, 6, 9, 8, 9])], 2, chunk(b"tRNS", bytes([5, 9, 6, 9, 7, 9]))),
        id="colour of 16 bits",
    ),
    pytest.param(
        png(8, 3, [bytes([1, 0])], 2, chunk(b"PLTE", bytes(range(6))), chunk(b"tRNS", b"\xff\0")), id="one of a palette"
    ),
]


@pytest.mark.parametrize("content", TRANSPARENT)
def test_the_transparent_colour_shows_the_background(content: bytes) -> None:
    """Where a PNG names one transparent colour, those pixels and no others become background."""
    assert read_facts(content).alpha
    pixels = decode(content, background=(77, 88, 99))
    assert pixels[0, 0].tolist() == [77, 88, 99]
    assert pixels[0, 1].tolist() != [77, 88, 99]


@pytest.mark.parametrize("colour", [0, 3])
def test_transparency_behind_the_pixels_does_not_count(colour: int) -> None:
    """A transparent colour that comes after the pixels, where it must not stand, changes nothing, without a warning."""
    content = png(8, colour, [bytes([1, 0])], 2, *[chunk(b"PLTE", bytes(range(6)))] * (colour == 3))
    late = content[:-12] + chunk(b"tRNS", bytes([10, 20])) + content[-12:]
    assert not read_facts(late).alpha
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of somebody's garbage, which goes at any moment
        assert (decode(late) == decode(content)).all()


# Orientation


def unturned(upright: Pixels, orientation: int) -> Pixels:
    """What a camera stores that says `orientation`, for this upright picture."""
    ways: dict[int, Callable[[Pixels], Pixels]] = {
        2: lambda pixels: pixels[:, ::-1],
        3: lambda pixels: pixels[::-1, ::-1],
        4: lambda pixels: pixels[::-1],
        5: lambda pixels: pixels.swapaxes(0, 1),
        6: np.rot90,
        7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
        8: lambda pixels: np.rot90(pixels, -1),
    }
    return np.ascontiguousarray(ways.get(orientation, lambda pixels: pixels)(upright))


def turned_file(name: str, orientation: int, upright: Pixels) -> bytes:
    image = Image.fromarray(unturned(upright, orientation))
    if name == "TIFF":
        return save(image, name, tiffinfo={0x0112: orientation})
    if name == "TIFF deflate":
        return save(image, "TIFF", compression="tiff_adobe_deflate", tiffinfo={0x0112: orientation})
    data = exif(orientation, order="<>"[orientation % 2])
    if name == "JPEG":
        return save(image, name, exif=b"Exif\0\0" + data, quality=95, subsampling=0)
    if name == "AVIF":
        return save(image, name, exif=data, quality=100)
    return save(image, name, exif=data, **({"lossless": True} if name == "WEBP" else {}))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    "name", ["JPEG", "PNG", "WEBP", "TIFF", "TIFF deflate", pytest.param("AVIF", marks=needs_avif)]
)
def test_pictures_stand_upright(name: str, orientation: int) -> None:
    """Each of the eight orientations of EXIF is undone, in facts and pixels."""
    upright = np.kron(np.arange(0, 240, 20, dtype=np.uint8).reshape(3, 4, 1), np.ones((8, 8, 3), np.uint8))
    content = turned_file(name, orientation, upright)
    assert read_facts(content) == Facts(32, 24, orientation=orientation, alpha=False)
    assert np.abs(decode(content).astype(int) - upright).max() <= (0 if name not in {"JPEG", "AVIF"} else 8)
    assert np.abs(decode_mask(content).astype(int) - upright[..., 0]).max() <= (
        0 if name not in {"JPEG", "AVIF"} else 8
    )


@pytest.mark.parametrize("orientation", [0, 9, 65535])
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_nonsensical_orientation_is_upright(name: str, orientation: int) -> None:
    """An orientation outside of 1 to 8 counts as none."""
    content = turned_file(name, orientation, scene())
    assert read_facts(content) == Facts(WIDTH, HEIGHT, orientation=1, alpha=False)
    assert decode(content).shape == (HEIGHT, WIDTH, 3)


def test_orientation_behind_the_pixels_of_a_png_counts() -> None:
    """A PNG may carry its EXIF after the pixels; it is found there without decoding them."""
    content = save(picture("RGB"), "PNG")
    late = content[:-12] + chunk(b"eXIf", exif(6)) + content[-12:]
    assert read_facts(late) == Facts(HEIGHT, WIDTH, orientation=6, alpha=False)
    assert (decode(late) == np.rot90(decode(content), -1)).all()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("XML:com.adobe.xmp", '<x tiff:Orientation="6"/>'),
        ("Raw profile type exif", f"\nexif\n      50\n{exif(6).hex()}\n"),
    ],
)
def test_orientation_in_the_text_of_a_png_counts(name: str, text: str) -> None:
    """Where a PNG has no EXIF chunk, XMP and the text form of EXIF are heard."""
    info = PngInfo()
    info.add_itxt(name, text)
    content = save(picture("RGB"), "PNG", pnginfo=info)
    assert read_facts(content).orientation == 6
    assert (decode(content) == np.rot90(scene(), -1)).all()


def test_xmp_in_a_tiff_turns_it_once() -> None:
    """A TIFF whose orientation stands only in its XMP is turned once, whatever Pillow did as it loaded it."""
    pixels = scene()[:, :HEIGHT]
    content = save(Image.fromarray(pixels), "TIFF", tiffinfo={700: b'<x tiff:Orientation="6"/>'})
    turns = 0 if read_facts(content).orientation == 1 else -1
    assert (decode(content) == np.rot90(pixels, turns)).all()


@given(
    junk=st.binary(max_size=200), order=st.sampled_from([b"", b"II*\0\x08\0\0\0", b"MM\0*\0\0\0\x08", b"Exif\0\0II*\0"])
)
def test_broken_exif_is_no_reason_to_refuse(junk: bytes, order: bytes) -> None:
    """Whatever EXIF holds, the picture is read, with the size that its orientation gives."""
    content = save(picture("RGB"), "PNG")
    content = content[:-12] + chunk(b"eXIf", order + junk) + content[-12:]
    facts = read_facts(content)
    assert decode(content).shape == (facts.height, facts.width, 3)


def test_exif_in_no_known_byte_order_is_not_heard() -> None:
    """EXIF that begins unlike EXIF says nothing about the orientation."""
    content = save(picture("RGB"), "PNG")
    content = content[:-12] + chunk(b"eXIf", b"XX" + exif(6, order=">")[2:]) + content[-12:]
    assert read_facts(content).orientation == 1


# What is refused


def test_an_empty_file_is_refused_as_that() -> None:
    """A file of 0 bytes says so."""
    assert reason(b"") == "empty file"


@pytest.mark.parametrize("content", [b"a cat\n", b"\0" * 100, b"\x89PNG", b"BN", b"ftyp", b"\0"])
def test_what_is_no_picture_is_refused(content: bytes) -> None:
    """A text file named .png is no picture."""
    assert reason(content).startswith("not a picture: ")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (save(picture("RGB"), "PPM"), "PPM"),
        (save(picture("RGBA"), "ICO"), "ICO"),
        (b"8BPS\0\1" + bytes(20), "PSD"),
        (b"\0\0\0\x18ftyphevc\0\0\0\0msf1hevc", "HEIC"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp41", "a video"),
    ],
)
def test_another_format_is_refused_by_name(content: bytes, name: str) -> None:
    """A picture in a format that is not read is named, with what to convert it to."""
    assert f"looks like {name}; convert it to JPEG, PNG" in reason(content)


def test_a_header_is_read_without_decoding() -> None:
    """Facts come from the header alone: pixels that cannot be decoded are found out later."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 9, 5, 8, 2, 0, 0, 0))
    content = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"no pixels") + chunk(b"IEND", b"")
    assert read_facts(content) == Facts(9, 5, orientation=1, alpha=False)
    assert reason(content).startswith("damaged: ")


def test_a_damaged_header_of_a_png_is_refused() -> None:
    """A changed byte in a PNG's palette is found by its checksum."""
    content = bytearray(KINDS["PNG P"])
    content[content.index(b"PLTE") + 4] ^= 1
    assert reason(bytes(content)) == "damaged: the checksum of its b'PLTE' chunk is wrong"


def bomb(width: int, height: int) -> bytes:
    """A small PNG that announces a large picture."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


def test_a_large_picture_is_a_fact_and_no_warning() -> None:
    """169 million pixels are announced in silence, in threads too; what to do about it is the caller's setting."""
    content = bomb(13000, 13000)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with ThreadPoolExecutor(4) as pool:
            facts = set(pool.map(read_facts, [content] * 8)).pop()
    # Python's own remarks about files that some garbage held come at any moment.
    assert not [one for one in heard if one.category is not ResourceWarning]
    assert (facts.width, facts.height) == (13000, 13000)
    with pytest.raises(RefusedError, match=r"^13000 x 13000 pixels are more than the 100000000 allowed$"):
        check_pixels(facts, 100_000_000)


def test_the_limit_itself_is_allowed() -> None:
    """A picture of exactly the allowed number of pixels passes, one more does not."""
    facts = Facts(30, 20, orientation=1, alpha=False)
    check_pixels(facts, 600)
    with pytest.raises(RefusedError):
        check_pixels(facts, 599)


@pytest.mark.parametrize(("width", "height"), [(20000, 20000), (2**31 - 1, 2**31 - 1)])
def test_a_decompression_bomb_is_refused(width: int, height: int) -> None:
    """What Pillow takes for an attack is refused by its header."""
    with pytest.raises(RefusedError, match=f"^{width} x {height} pixels are more than the [0-9]+ that Pillow allows$"):
        read_facts(bomb(width, height))


def test_a_frame_larger_than_its_screen_is_refused_as_a_bomb() -> None:
    """A GIF that hides a huge frame behind a small screen is refused for its pixels."""
    content = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
    with pytest.raises(RefusedError, match=r"^too many pixels: "):
        read_facts(content + b"\2\1\0\0;")


def test_nonsense_in_a_directory_is_refused() -> None:
    """A TIFF that writes a place as text is damaged."""
    assert reason(tiff(8, 1, bytes(8), 4, 2, offset_type=2)).startswith(("damaged: ", "not a readable TIFF: "))


@needs_avif
def test_nonsense_in_a_box_is_refused() -> None:
    """An AVIF without a picture, or whose clock stands still, is refused."""
    assert reason(b"\0\0\0\x14ftypavif\0\0\0\0avif").startswith("cut off: ")
    content = save(picture("RGB"), "AVIF", save_all=True, append_images=[picture("RGB").rotate(180)])
    clock = content.index(b"mdhd") + (24 if content[content.index(b"mdhd") + 4] else 16)
    assert reason(content[:clock] + bytes(4) + content[clock + 4 :]).startswith("damaged: ")


def test_a_text_bomb_is_refused() -> None:
    """A PNG whose text unpacks to megabytes is refused without unpacking it."""
    info = PngInfo()
    info.add_text("comment", "a" * 3_000_000, zip=True)
    content = save(picture("RGB"), "PNG", pnginfo=info)
    with pytest.raises(RefusedError, match=r"(?i)^not a readable PNG: decompressed data too large"):
        read_facts(content)


def test_without_avif_in_pillow_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Pillow that cannot read AVIF is named as the cause, with the next step."""
    monkeypatch.delitem(pictures._READERS, "AVIF", raising=False)
    content = b"\0\0\0\x14ftypavif\0\0\0\0avif"
    assert reason(content) == "the installed Pillow cannot read AVIF: install a newer one, or convert the file"


def hidden_damage() -> dict[str, bytes]:
    """Files that end as they should and miss pixels all the same."""
    jpeg = KINDS["JPEG RGB"]
    while (table := jpeg.find(b"\xff\xdb")) >= 0:
        jpeg = jpeg[:table] + jpeg[table + 2 + int.from_bytes(jpeg[table + 2 : table + 4], "big") :]
    broken = bytearray(KINDS["PNG RGB"])
    middle = broken.index(b"IDAT") + 40
    broken[middle : middle + 20] = bytes(20)
    (start, end) = next((start, end) for kind, start, end in png_chunks(KINDS["PNG RGB"]) if kind == b"IDAT")
    short = chunk(b"IDAT", KINDS["PNG RGB"][start : end - 60])
    gif = KINDS["GIF P"]
    checksum = bytearray(KINDS["PNG P transparent"])
    checksum[checksum.index(b"tRNS") + 6] ^= 0xFF
    return {
        "JPEG without its tables": jpeg,
        "PNG broken": bytes(broken),
        "PNG short": KINDS["PNG RGB"][: start - 8] + short + chunk(b"IEND", b""),
        "PNG checksum": bytes(checksum),
        "GIF": gif[:-60] + b"\0;",
        "TIFF": KINDS["TIFF RGB"][:-60],
    }


DAMAGE = hidden_damage()


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
def test_missing_pixels_are_never_filled_in(content: bytes, lenient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged pixels are refused, even where somebody told Pillow to fill them in."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", lenient)
    assert reason(content).startswith(("cut off: ", "damaged: "))


@every_kind
def test_a_lenient_pillow_changes_no_whole_picture(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody told Pillow to fill in missing pixels, whole files decode as ever."""
    expected = decode(content)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert (decode(content) == expected).all()


# Hostile bytes


def survive(content: bytes) -> None:
    """Read bytes as a picture: they are used or refused, with one short printable line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            facts = read_facts(content)
            check_pixels(facts, 1_000_000)
            assert decode(content).shape == (facts.height, facts.width, 3)
            assert why_cut_off(content) is None
    except RefusedError as error:
        assert str(error).isprintable()
        assert 0 < len(str(error)) < 300


SIGNATURES = sorted({content[:size] for content in KINDS.values() for size in (4, 12, 30, 60)})


@given(start=st.sampled_from([b"", *SIGNATURES]), rest=st.binary(max_size=300))
def test_any_bytes_are_a_picture_or_refused(start: bytes, rest: bytes) -> None:
    """No bytes make reading fail otherwise than by refusing them."""
    survive(start + rest)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8),
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_changed_bytes_are_a_picture_or_refused(kind: str, flips: list[tuple[float, int]], keep: float) -> None:
    """Changed and missing bytes in a real file make reading fail no otherwise than by refusing them."""
    content = bytearray(KINDS[kind])
    for where, change in flips:
        content[int(where * len(content))] ^= change
    survive(bytes(content[: int(keep * len(content))]))


# Masks


def test_a_grey_mask_keeps_its_values() -> None:
    """Luminance of grey is the grey itself, all 256 of them."""
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert (decode_mask(save(Image.fromarray(values), "PNG")) == values).all()


def test_a_mask_drawn_in_colour_counts_by_luminance() -> None:
    """Colours weigh as they do in Pillow's luminance: 299 red, 587 green, 114 blue."""
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)
    assert decode_mask(save(Image.fromarray(colours), "PNG")).tolist() == [[76, 150, 29]]


def test_a_transparent_mask_is_black_where_nothing_is_painted() -> None:
    """White strokes on a transparent layer mask what they cover."""
    layer = np.array([[[255, 255, 255, 255], [255, 255, 255, 100], [255, 255, 255, 0]]], np.uint8)
    assert decode_mask(save(Image.fromarray(layer), "PNG")).tolist() == [[255, 100, 0]]


# Real files


@pytest.fixture
def real_images() -> list[Path]:
    """Whatever picture files the folder in PRECOOK_TEST_IMAGES holds."""
    folder = os.environ.get("PRECOOK_TEST_IMAGES")
    if not folder:
        pytest.skip("PRECOOK_TEST_IMAGES names no folder with pictures")
    return sorted(file for file in Path(folder).rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def test_real_pictures_are_read_as_pillow_reads_them(real_images: list[Path]) -> None:
    """What Pillow decodes in full is decoded alike, and the rest is refused with a reason."""
    assert real_images
    for file in real_images:
        content = file.read_bytes()
        try:
            with Image.open(io.BytesIO(content)) as image:
                upright = ImageOps.exif_transpose(image)
        except (OSError, SyntaxError, ValueError):
            assert reason(content), file
            continue
        if file_format(content) is None:
            assert "looks like" in reason(content), file
            continue
        facts = read_facts(content)
        pixels = decode(content)
        assert (facts.width, facts.height) == upright.size == pixels.shape[1::-1], file
        if not facts.alpha and not upright.mode.startswith("I"):
            assert (pixels == np.asarray(upright.convert("RGB"))).all(), file
