"""Geometry: docs/concepts/geometry.md word for word, and how pictures of every size are cut."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from precook import ConfigError, digest
from precook.config import sections
from precook.config.sections import ImageSettings, Resolution
from precook.identity.canonical import canonical
from precook.sources.geometry import (
    COLUMNS,
    MAX_BUCKETS,
    RESAMPLINGS,
    Cuts,
    Geometry,
    buckets,
    cut_rows,
    nearest,
    shown_crops,
)
from precook.sources.pictures import Facts, RefusedError, check_pixels

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "geometry.md").read_text(encoding="utf-8")
MOST = 178_956_970
"""The largest `max_pixels` there is."""

Size = tuple[int, int]


def square(side: int) -> Resolution:
    return Resolution(side, side, exact=False)


def settings(**fields: Any) -> ImageSettings:
    return ImageSettings.model_validate_json(json.dumps(fields))


def name(number: int) -> bytes:
    """The digest of some picture, the same in every run."""
    return digest(f"picture {number}").bytes


def cut(
    sizes: Iterable[Size], image: ImageSettings, digests: Iterable[bytes] | None = None, variation: int = 0
) -> Cuts:
    """Cut pictures for the first resolution; without digests they are all different ones."""
    pictures = list(sizes)
    names = [name(number) for number in range(len(pictures))] if digests is None else list(digests)
    return cut_rows(
        np.array(pictures, np.int64).reshape(-1, 2),
        np.frombuffer(b"".join(names), np.uint8).reshape(-1, 32),
        image,
        resolution=image.sizes[0],
        variation=variation,
    )


def one(size: Size, image: ImageSettings, *, picture: int = 0, variation: int = 0) -> Geometry:
    cuts = cut([size], image, [name(picture)], variation)
    assert cuts.refused == {}
    return Geometry.of(cuts.rows[0])


def told(cuts: Cuts, row: int) -> object:
    """What became of a picture: its geometry, or why it is refused."""
    return cuts.refused[row] if row in cuts.refused else Geometry.of(cuts.rows[row])


def table(heading: str) -> list[str]:
    """The rows of the table under a line of the page."""
    return PAGE.split(f"{heading}\n\n", 1)[1].split("\n\n", 1)[0].splitlines()[2:]


def fitted(size: Size, choices: list[Size], crop: str) -> tuple[Size, Size]:
    """The size that a picture gets, and the one that it is scaled to, by exact arithmetic."""
    target = choices[slow_nearest(size, choices)]
    scale = max(Fraction(target[0], size[0]), Fraction(target[1], size[1]))
    middle_square = crop == "center" and len(choices) == 1 and target[0] == target[1]
    half = Fraction(0 if middle_square else 1, 2)
    return target, (int(size[0] * scale + half), int(size[1] * scale + half))


@st.composite
def pictures(draw: st.DrawFn) -> Size:
    """Sizes as pictures have them, and every other one up to the most pixels that are ever allowed."""
    short = draw(st.integers(1, 40) | st.integers(300, 3000) | st.integers(1, 13_377))
    long = draw(st.integers(short, min(MOST // short, 40 * short)) | st.integers(short, MOST // short))
    return draw(st.sampled_from([(short, long), (long, short)]))


@st.composite
def images(draw: st.DrawFn, **fields: Any) -> ImageSettings:
    """Settings of every kind, of which some are given."""
    step = draw(st.sampled_from([1, 2, 7, 8, 64, 512]) | st.integers(1, 65_536))
    times = st.integers(1, min(12, 65_536 // step))
    side = draw(times) * step + draw(st.integers(0, step - 1))
    exact = f"{draw(times) * step}x{draw(times) * step}"
    chosen = {
        "resolutions": [draw(st.sampled_from([min(side, 65_536), exact]))],
        "step": step,
        "crop": draw(st.sampled_from(["center", "random"])),
        "flip": draw(st.sampled_from(["none", "random", "always"])),
        "resampling": draw(st.sampled_from(RESAMPLINGS)),
        "upscale": draw(st.sampled_from(["allow", "refuse"])),
        "extreme_aspect": draw(st.sampled_from(["crop", "refuse"])),
        "max_aspect": draw(st.sampled_from([1.0, 1.15, 2.0, 4.0, 1e300]) | st.floats(1, 10)),
        "max_pixels": draw(st.sampled_from([1, 65_536, 89_478_485, MOST])),
        "seed": draw(st.integers(0, 2**63 - 1)),
    }
    return settings(**(chosen | fields))


TORCHVISION = """
64 640x480 85x64 10,0 | 64 1001x1500 64x95 0,16 | 64 1500x1001 95x64 16,0 | 64 333x500 64x96 0,16
64 1024x683 95x64 16,0 | 64 1920x1080 113x64 24,0 | 64 256x257 64x64 0,0 | 64 37x53 64x91 0,14 | 64 7x5 89x64 12,0
512 480x640 512x682 0,85 | 512 1500x1001 767x512 128,0 | 512 500x333 768x512 128,0 | 512 683x1024 512x767 0,128
512 4032x3024 682x512 85,0 | 512 257x256 514x512 1,0 | 512 100x99 517x512 2,0 | 512 799x600 681x512 84,0
512 512x512 512x512 0,0 | 512 7x5 716x512 102,0 | 512 1080x1920 512x910 0,199 | 512 53x37 733x512 110,0
1024 1001x1500 1024x1534 0,255 | 1024 500x333 1537x1024 256,0 | 1024 683x1024 1024x1535 0,256
1024 100x99 1034x1024 5,0 | 1024 37x53 1024x1466 0,221 | 1024 799x600 1363x1024 170,0 | 1024 7x5 1433x1024 204,0
1024 2048x1367 1534x1024 255,0 | 1024 1365x1024 1365x1024 170,0
"""
"""What torchvision 0.29's `Resize(side)` and `CenterCrop(side)` do with pictures of some sizes: side, picture, the size
that it is scaled to, left and top of the box."""

LENIENT = {"upscale": "allow", "extreme_aspect": "crop", "max_pixels": MOST}
"""Whatever can be cut is."""


# Other libraries


@pytest.mark.parametrize("case", re.split(r" \| |\n", TORCHVISION.strip()))
@pytest.mark.parametrize("form", ["exact", "only"])
def test_one_square_for_all_is_cut_as_torchvision_cuts(case: str, form: str) -> None:
    """The centre of a square that every picture gets is the one that training scripts cut, to the pixel."""
    side, source, scaled, box = case.split(" ")
    size = (int(source.split("x")[0]), int(source.split("x")[1]))
    fields = {"resolutions": [f"{side}x{side}"]} if form == "exact" else {"resolutions": [int(side)], "max_aspect": 1.0}
    found = one(size, settings(**fields))
    assert ("x".join(map(str, found.scaled)), ",".join(map(str, found.crop))) == (scaled, box)


def test_a_random_square_is_scaled_as_any_other_size() -> None:
    """No other library cuts it in the same place, so there is nothing to be equal to: its keys stay."""
    middle, anywhere = (one((1001, 1500), settings(resolutions=["64x64"], crop=crop)) for crop in ("center", "random"))
    assert (middle.scaled, anywhere.scaled) == ((64, 95), (64, 96))


@pytest.mark.parametrize(
    ("rounding", "size", "resolution", "scaled", "crop"),
    [
        ("nearest", (77, 101), "64x64", (64, 84), (0, 10)),
        ("nearest", (131, 88), "64x64", (95, 64), (16, 0)),
        ("nearest", (133, 64), "32x32", (66, 32), (17, 0)),
        ("down", (77, 101), "64x64", (64, 83), (0, 10)),
        ("down", (101, 77), "96x64", (96, 73), (0, 4)),
        ("auto", (77, 101), "64x64", (64, 83), (0, 10)),
        ("auto", (101, 77), "96x64", (96, 73), (0, 4)),
    ],
)
def test_a_scaled_side_is_rounded_as_asked(
    rounding: str, size: Size, resolution: str, scaled: Size, crop: Size
) -> None:
    """Down as torchvision does, or to the nearest as scripts with buckets do; halves of what is cut off go to even."""
    found = one(size, settings(resolutions=[resolution], step=32, rounding=rounding))
    assert (found.scaled, found.crop) == (scaled, crop)


@given(pictures(), images(**LENIENT, rounding="nearest", crop="center"))
def test_the_nearest_side_is_what_python_rounds_to(size: Size, image: ImageSettings) -> None:
    """In double precision, as a script computes it, and the box lies where torchvision's `center_crop` puts it."""
    cuts = cut([size], image)
    assume(not cuts.refused)
    found = Geometry.of(cuts.rows[0])
    factor = max(found.target[0] / size[0], found.target[1] / size[1])
    assert found.scaled == (round(size[0] * factor), round(size[1] * factor))
    assert found.crop == tuple(
        round((side - target) / 2) for side, target in zip(found.scaled, found.target, strict=True)
    )


def test_pictures_of_other_sizes_are_cut_as_ever() -> None:
    """Buckets and oblong sizes keep their rounding: nobody's entries are missing because squares have changed."""
    found = one((1500, 1001), settings(resolutions=["512x448"]))
    assert (found.scaled, found.crop) == ((671, 448), (79, 0))
    found = one((1500, 1400), settings(resolutions=[512]))
    assert (found.scaled, found.crop, found.target) == ((549, 512), (18, 0), (512, 512))


def test_what_a_model_is_told_of_a_mirrored_cut_counts_from_the_other_side() -> None:
    """The offset is that in the picture as it is shown, as if it had been mirrored before it was cut."""
    plain = one((1000, 500), settings(resolutions=["64x64"], crop="random"))
    mirrored = one((1000, 500), settings(resolutions=["64x64"], crop="random", flip="always"))
    assert plain.scaled == mirrored.scaled == (128, 64)
    assert plain.crop == mirrored.crop
    assert (plain.shown_crop, mirrored.shown_crop) == ((0, plain.crop[0]), (0, 64 - plain.crop[0]))
    assert plain.crop[0] not in {0, 32, 64}


@given(pictures(), images(**LENIENT))
def test_rows_and_geometries_tell_the_same_crop(size: Size, image: ImageSettings) -> None:
    """What stands in a batch is what an encoder was given."""
    cuts = cut([size], image)
    assume(not cuts.refused)
    assert tuple(shown_crops(cuts.rows)[0].tolist()) == Geometry.of(cuts.rows[0]).shown_crop


# The page


@pytest.mark.parametrize("row", table("Sizes, from the tallest to the widest:"))
def test_the_sizes_on_the_page_hold(row: str) -> None:
    """Every list of sizes comes out as the page shows it: or pictures get other targets, and everything is a miss."""
    side, step, aspect, sizes = row.strip("| ").split(" | ")
    found = buckets(square(int(side)), step=int(step), max_aspect=float(aspect))
    assert ", ".join(f"{width}x{height}" for width, height in found) == sizes


GEOMETRIES = table("in canonical form; settings that are not shown have their defaults:")


@pytest.mark.parametrize("row", GEOMETRIES)
def test_the_geometries_on_the_page_hold(row: str) -> None:
    """Every geometry comes out as the page shows it, byte for byte: or kept entries are never found again."""
    match = re.fullmatch(r"\| [^|]+ \| (\d+)x(\d+) \| `(.+)` \| (\d+) \| `(.+)` \|", row)
    assert match is not None, row
    width, height, fields, variation, form = match.groups()
    image = settings(**json.loads(fields))
    cuts = cut([(int(width), int(height))], image, [digest("a cat").bytes], int(variation))
    assert cuts.refused == {}
    assert canonical(Geometry.of(cuts.rows[0]).form).decode() == form


def test_the_page_has_its_vectors() -> None:
    """The tables are there, and each of their geometries shows something else."""
    assert len(table("Sizes, from the tallest to the widest:")) >= 6
    assert len(set(GEOMETRIES)) == len({row.rsplit("|", 2)[1] for row in GEOMETRIES}) >= 10


@pytest.mark.parametrize(
    ("row", "size", "fields"),
    [
        (0, (511, 600), {"upscale": "refuse", "max_aspect": 1.0}),
        (1, (5000, 1000), {"extreme_aspect": "refuse"}),
        (2, (20_000, 10), {"extreme_aspect": "refuse", "upscale": "refuse"}),
        (3, (10_000, 10_000), {}),
    ],
)
def test_the_reasons_are_those_on_the_page(row: int, size: Size, fields: dict[str, Any]) -> None:
    """Whoever looks a reason up finds it, and of several reasons the page's last one is given."""
    rows = table("Where several reasons apply, the lowest in this table is given.")
    assert len(rows) == 4
    assert f"`{cut([size], settings(**fields)).refused[0]}`" == rows[row].strip("| ").rsplit(" | ", 1)[1]


def test_the_limit_on_the_page_is_that_in_the_code() -> None:
    """The most sizes there may be cannot change unnoticed."""
    assert f"at most {MAX_BUCKETS:,} sizes" in PAGE


def test_resamplings_keep_their_places() -> None:
    """Remembered rows hold a resampling by its place, so the config's words and their order are fixed."""
    assert get_args(sections.Resampling) == RESAMPLINGS
    assert RESAMPLINGS == ("nearest", "area", "bilinear", "bicubic", "lanczos", "draft")
    assert [row.split("`")[1] for row in table("## Resampling")] == [*RESAMPLINGS]


# Sizes


def slow_buckets(side: int, step: int, aspect: Fraction) -> list[Size]:
    """The sizes, by trying every multiple of step as a width and as a height."""
    sizes = {(side // step * step,) * 2}
    for a in range(step, side * side // step + 1, step):
        fit = max(b for b in range(0, side * side // a + 1, step))
        if fit and max(a, fit) <= aspect * min(a, fit):
            sizes |= {(a, fit), (fit, a)}
    return sorted(sizes, key=lambda size: Fraction(*size))


@given(
    step=st.integers(1, 9),
    times=st.integers(1, 6),
    rest=st.integers(0, 8),
    aspect=st.decimals(1, 8, places=2) | st.just(10**300),
)
def test_every_side_goes_with_the_largest_other_side(step: int, times: int, rest: int, aspect: Any) -> None:
    """Each width has the largest height, each height the largest width, none is missing, and they are in order."""
    side = step * times + rest % step
    expected = slow_buckets(side, step, Fraction(aspect))
    assert buckets(square(side), step=step, max_aspect=float(aspect)) == expected


@st.composite
def sides(draw: st.DrawFn) -> tuple[int, int]:
    """A step, and a resolution of some steps."""
    step = draw(st.integers(1, 100) | st.integers(1, 65_536))
    side = draw(st.integers(1, 40)) * step + draw(st.integers(0, step - 1))
    return step, min(side, 65_536)


@given(step_and_side=sides(), aspect=st.floats(1, 20) | st.floats(1, 1e308) | st.sampled_from([1.0, 1.5, 4.0]))
@example(step_and_side=(1, 65_536), aspect=4.0)
@example(step_and_side=(65_536, 65_536), aspect=1e308)
@example(step_and_side=(1, 1), aspect=1.0)
def test_every_size_is_within_its_limits(step_and_side: tuple[int, int], aspect: float) -> None:
    """Multiples of step, no more area than the square, no more elongated than allowed except for the square itself."""
    step, side = step_and_side
    sizes = buckets(square(side), step=step, max_aspect=aspect)
    own = side // step * step
    assert (own, own) in sizes
    assert all(width % step == height % step == 0 for width, height in sizes)
    assert all(0 < width * height <= side * side for width, height in sizes)
    assert all(Fraction(max(size), min(size)) <= Fraction(str(aspect)) for size in sizes if size != (own, own))
    assert sizes == [(width, height) for height, width in reversed(sizes)]
    ratios = [Fraction(*size) for size in sizes]
    assert ratios == sorted(set(ratios)), "two share an aspect ratio, or they are out of order"


def test_an_exact_resolution_has_one_size() -> None:
    """A width and height that are written out are used whatever step and max_aspect say."""
    assert buckets(Resolution(4096, 64, exact=True), step=64, max_aspect=1.0) == [(4096, 64)]


def test_max_aspect_is_the_number_that_was_written() -> None:
    """1.15 allows 23:20, though 1.15 * 100 is less than 115 in floating point."""
    assert 1.15 * 100 < 115
    assert (115, 100) in buckets(square(108), step=5, max_aspect=1.15)
    assert (115, 100) not in buckets(square(108), step=5, max_aspect=1.1499999)


@pytest.mark.parametrize(
    ("side", "step", "aspect"), [(65_536, 1, 1e308), (65_536, 64, 1e308), (65_536, 1, 10.0), (13_000, 1, 1e9)]
)
def test_too_many_sizes_are_an_error_with_a_next_step(side: int, step: int, aspect: float) -> None:
    """Settings that would give billions of sizes are refused at once, with what to change."""
    with pytest.raises(ConfigError, match=rf"^image\.resolutions: {side} with step {step} .* more than") as caught:
        buckets(square(side), step=step, max_aspect=aspect)
    assert caught.value.hint == "raise image.step, or lower image.max_aspect"


# The nearest size


def slow_nearest(size: Size, choices: list[Size]) -> int:
    """The nearest choice by the page's rule, in fractions."""

    def rank(number: int) -> tuple[Fraction, int, Fraction]:
        width, height = choices[number]
        own, its = Fraction(*size), Fraction(width, height)
        return max(own, its) / min(own, its), -width * height, -its

    return min(range(len(choices)), key=rank)


@given(sizes=st.lists(pictures(), max_size=5), image=images())
def test_the_nearest_size_is_chosen(sizes: list[Size], image: ImageSettings) -> None:
    """No other size has an aspect ratio nearer to the picture's, whatever its size."""
    choices = buckets(image.sizes[0], step=image.step, max_aspect=image.max_aspect)
    found = nearest(np.array(sizes, np.int64).reshape(-1, 2), choices)
    assert found.tolist() == [slow_nearest(size, choices) for size in sizes]


@given(
    size=st.tuples(st.integers(1, 13_377), st.integers(1, 13_377)),
    apart=st.tuples(st.integers(1, 60), st.integers(1, 60)).map(lambda pair: (pair[0], sum(pair))),
    larger=st.tuples(st.integers(1, 3), st.integers(1, 3)),
)
def test_halfway_the_larger_area_wins_then_the_wider(size: Size, apart: Size, larger: Size) -> None:
    """A picture between two sizes goes by the rule, and one pixel more or less makes it go to the nearer one."""
    (width, height), (few, many) = size, apart
    tall = (width * few * larger[0], height * many * larger[0])
    wide = (width * many * larger[1], height * few * larger[1])
    near = [(width, height), (width + 1, height), (width, height + 1), (13_377 * width, 13_377 * height)]
    near += [(13_377 * width + 1, 13_377 * height), (13_377 * width, 13_377 * height + 1)]
    found = nearest(np.array(near, np.int64), [tall, wide]).tolist()
    assert found == [int(larger[0] <= larger[1]), 1, 0] * 2
    assert found == [slow_nearest(size, [tall, wide]) for size in near]


def test_halfway_between_two_real_sizes() -> None:
    """6:1 lies halfway between 512x128 and 576x64, and the larger of them is chosen, lying and standing."""
    choices = buckets(square(256), step=64, max_aspect=9.0)
    found = nearest(np.array([(6000, 1000), (6001, 1000), (6, 1), (1, 6), (1000, 6001)]), choices)
    assert [choices[row] for row in found] == [(512, 128), (576, 64), (512, 128), (128, 512), (64, 576)]


# Scaling and crop


@given(size=pictures(), image=images(**LENIENT), variation=st.integers(0, 999))
def test_the_picture_is_scaled_to_cover_its_target(size: Size, image: ImageSettings, variation: int) -> None:
    """The scaled picture covers the target, one side fits exactly, and the other keeps the shape to a pixel at most."""
    cuts = cut([size], image, variation=variation)
    assume(not cuts.refused)
    made = Geometry.of(cuts.rows[0])
    assert made.source == size
    assert all(scaled >= target for scaled, target in zip(made.scaled, made.target, strict=True))
    fits = [side for side in (0, 1) if made.scaled[side] == made.target[side]]
    assert fits
    assert any(
        abs(Fraction(made.target[side] * size[1 - side], size[side]) - made.scaled[1 - side])
        <= (Fraction(1, 2) if made.target[0] != made.target[1] else 1)
        for side in fits
    )


@given(size=pictures(), image=images(**LENIENT), variation=st.integers(0, 999))
def test_the_box_lies_inside_of_the_scaled_picture(size: Size, image: ImageSettings, variation: int) -> None:
    """Whatever is drawn, no part of the box lies outside."""
    cuts = cut([size], image, variation=variation)
    assume(not cuts.refused)
    made = Geometry.of(cuts.rows[0])
    for side in (0, 1):
        assert 0 <= made.crop[side] <= made.scaled[side] - made.target[side]


@pytest.mark.parametrize(
    ("size", "scaled"),
    [((3, 2), (96, 64)), ((64, 64), (64, 64)), ((128, 3), (2731, 64)), ((1, 1), (64, 64)), ((41, 128), (32, 100))],
)
def test_scaled_sides_are_rounded(size: Size, scaled: Size) -> None:
    """The side that does not fit exactly is rounded to the nearest whole number."""
    assert one(size, settings(resolutions=["32x64"], step=32)).scaled == scaled


def test_half_a_pixel_becomes_one() -> None:
    """A scaled side that lies exactly between two whole numbers gets the larger one, lying and standing."""
    assert one((7, 6), settings(resolutions=["2x3"], step=1)).scaled == (4, 3)
    assert one((6, 7), settings(resolutions=["3x2"], step=1)).scaled == (3, 4)
    assert one((13, 6), settings(resolutions=["2x3"], step=1)).scaled == (7, 3)


def test_a_centred_box_leaves_as_much_on_both_sides() -> None:
    """The odd pixel stays at the right or at the bottom, and neither digest, variation nor seed matters."""
    for number in range(20):
        image = settings(resolutions=["64x128"], seed=number)
        assert one((99, 128), image, picture=number, variation=number).crop == (17, 0)
        assert one((64, 163), image, picture=number, variation=number).crop == (0, 17)


# Draws


def test_every_place_is_drawn_and_none_is_preferred() -> None:
    """Boxes of many pictures begin at every place there is, about equally often, both ways."""
    image = settings(resolutions=["64x64"], crop="random")
    for size, side in (((85, 64), 0), ((64, 85), 1)):
        rows = cut([size] * 4400, image).rows
        counts = np.bincount(rows[:, 4 + side], minlength=22)
        assert len(counts) == 22
        assert ((counts - 200) ** 2 / 200).sum() < 21 + 5 * 42**0.5
        assert not rows[:, 5 - side].any()


def test_about_half_of_all_pictures_are_mirrored() -> None:
    """A random flip is a fair coin; none and always are what they say."""
    mirrored = {word: cut([(64, 64)] * 2000, settings(flip=word)).rows[:, 8] for word in ("none", "random", "always")}
    assert 900 < mirrored["random"].sum() < 1100
    assert not mirrored["none"].any()
    assert mirrored["always"].all()


@pytest.mark.parametrize(("variation", "seed"), [(1, 0), (0, 1), (999, 0), (0, 2**63 - 1)])
def test_another_variation_or_seed_draws_anew(variation: int, seed: int) -> None:
    """Of pictures with 1000 places few keep theirs, and about half are mirrored otherwise."""
    sizes = [(1063, 64)] * 500
    fields: dict[str, Any] = {"resolutions": ["64x64"], "crop": "random", "flip": "random"}
    first = cut(sizes, settings(**fields)).rows
    other = cut(sizes, settings(**fields, seed=seed), variation=variation).rows
    assert (first[:, 4] == other[:, 4]).sum() < 10
    assert 200 < (first[:, 8] == other[:, 8]).sum() < 300
    assert (first[:, [0, 1, 2, 3, 6, 7, 9]] == other[:, [0, 1, 2, 3, 6, 7, 9]]).all()


@given(
    sizes=st.lists(pictures(), min_size=1, max_size=6),
    image=images(),
    variation=st.integers(0, 999),
    places=st.lists(st.integers(0, 5), max_size=8),
)
def test_a_cut_does_not_depend_on_the_others(
    sizes: list[Size], image: ImageSettings, variation: int, places: list[int]
) -> None:
    """Adding, removing and reordering pictures changes nobody's geometry nor reason; equal pictures are cut alike."""
    together = cut(sizes, image, variation=variation)
    places = [place % len(sizes) for place in places]
    others = cut([sizes[place] for place in places], image, [name(place) for place in places], variation)
    assert [told(others, row) for row in range(len(places))] == [told(together, place) for place in places]


def test_nothing_is_cut_from_nothing() -> None:
    """A concept without pictures is no error, whatever the settings."""
    for fields in ({}, {"crop": "random", "flip": "random", "upscale": "refuse", "extreme_aspect": "refuse"}):
        cuts = cut([], settings(**fields))
        assert cuts.rows.shape == (0, COLUMNS)
        assert cuts.refused == {}


# The value


PAIRS = st.tuples(st.integers(0, 3), st.integers(0, 3))
PARTS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("source", "scaled", "crop", "target"), PAIRS),
    "flip": st.booleans(),
    "resampling": st.sampled_from(RESAMPLINGS),
}


@given(first=st.builds(Geometry, **PARTS), part=st.sampled_from(list(PARTS)), changed=st.data())
def test_equal_forms_are_equal_geometries(first: Geometry, part: str, changed: st.DataObject) -> None:
    """Whatever part of a geometry differs, the form that stands in keys differs, and nothing else makes it differ."""
    second = dataclasses.replace(first, **{part: changed.draw(PARTS[part])})
    assert (canonical(first.form) == canonical(second.form)) == (first == second)
    assert len({first, second}) == (1 if first == second else 2)


@given(size=pictures(), image=images(**LENIENT), variation=st.integers(0, 999))
def test_a_row_and_its_geometry_agree(size: Size, image: ImageSettings, variation: int) -> None:
    """A geometry's form holds the row's numbers, as plain data, and reading it back as JSON changes nothing."""
    cuts = cut([size], image, variation=variation)
    assume(not cuts.refused)
    assert (cuts.rows.dtype, cuts.rows.shape) == (np.int32, (1, COLUMNS))
    row = cuts.rows[0].tolist()
    form: dict[str, Any] = Geometry.of(cuts.rows[0]).form
    assert json.loads(canonical(form)) == form
    numbers = [*form["source"], *form["scaled"], *form["crop"], *form["target"], int(form["flip"])]
    assert [*numbers, RESAMPLINGS.index(form["resampling"])] == row
    assert form["resampling"] == image.resampling
    assert Geometry.of(row) == Geometry.of(cuts.rows[0])


# What is refused


@example(sizes=[(3091, 2116)], image=settings(resolutions=[6], step=2, max_aspect=1.0, crop="random"))
@given(sizes=st.lists(pictures(), max_size=5), image=images())
def test_pictures_are_refused_for_their_reasons_only(sizes: list[Size], image: ImageSettings) -> None:
    """Enlarging, elongation and too many pixels are refused if the settings say so, and nothing else is."""
    choices = buckets(image.sizes[0], step=image.step, max_aspect=image.max_aspect)
    cuts = cut(sizes, image)
    longest = max(Fraction(max(choice), min(choice)) for choice in choices)
    for row, (width, height) in enumerate(sizes):
        target, scaled = fitted((width, height), choices, image.crop)
        expected = ""
        if image.upscale == "refuse" and (target[0] > width or target[1] > height):
            expected = "image.upscale is refuse"
        if image.extreme_aspect == "refuse" and Fraction(max(width, height), min(width, height)) > longest:
            expected = "image.extreme_aspect is refuse"
        if scaled[0] * scaled[1] > image.max_pixels:
            expected = f"image.max_pixels, {image.max_pixels}"
        if width * height > image.max_pixels:
            expected = f"more than the {image.max_pixels} allowed"
        assert (row in cuts.refused) == bool(expected)
        assert cuts.refused.get(row, "").endswith(expected)
        if not expected:
            assert Geometry.of(cuts.rows[row]).scaled == scaled


def test_a_refused_picture_leaves_the_others_alone() -> None:
    """Each refused picture has its own reason, and those between them are cut."""
    image = settings(upscale="refuse", extreme_aspect="refuse")
    sizes = [(1024, 1024), (100, 100), (768, 1024), (9000, 900), (512, 512), (MOST // 2, 1)]
    cuts = cut(sizes, image)
    assert {row: reason.split(",")[0] for row, reason in cuts.refused.items()} == {
        1: "too small for 512x512",
        3: "more elongated than 1024x256",
        5: "to cover 1024x256 it would be scaled to 22906492160x256",
    }
    assert [told(cuts, row) for row in (0, 2, 4)] == [one(sizes[row], image, picture=row) for row in (0, 2, 4)]


@pytest.mark.parametrize(
    ("size", "grows"),
    [((512, 64), False), ((512, 9000), False), ((511, 100), True), ((9000, 63), True), ((1, 1), True)],
)
def test_upscale_refuses_what_grows(size: Size, grows: bool) -> None:
    """A picture that just covers its target is cut, and one that lacks a pixel is enlarged or refused."""
    assert one(size, settings(resolutions=["512x64"])).target == (512, 64)
    assert bool(cut([size], settings(resolutions=["512x64"], upscale="refuse")).refused) == grows


@pytest.mark.parametrize(
    ("resolution", "size", "refused"),
    [
        (512, (4000, 1000), False),
        (512, (4001, 1000), True),
        (512, (1000, 4001), True),
        ("768x512", (600, 600), False),
        ("768x512", (1000, 1500), False),
        ("768x512", (1501, 1000), True),
        ("768x512", (1000, 1501), True),
        ("512x768", (1501, 1000), True),
        ("512x512", (513, 512), True),
    ],
)
def test_extreme_aspect_refuses_what_is_more_elongated(resolution: int | str, size: Size, refused: bool) -> None:
    """A picture is refused if it is longer in shape than the most elongated size, lying or standing."""
    image = settings(resolutions=[resolution], extreme_aspect="refuse")
    assert bool(cut([size], image).refused) == refused


@pytest.mark.parametrize("size", [(2**32 - 1, 2**32 - 1), (2**31, 1), (1, 2**32 - 1), (MOST + 1, 1), (2**31, 2**31)])
def test_a_picture_that_claims_billions_of_pixels_is_refused(size: Size) -> None:
    """Whatever a file's head claims, it is refused and does not wrap around into a small number."""
    image = settings(resolutions=["64x64"], crop="random", max_pixels=MOST)
    cuts = cut([(64, 64), size, (70, 64)], image)
    with pytest.raises(RefusedError) as caught:
        check_pixels(Facts(*size, orientation=1, alpha=False), MOST)
    assert cuts.refused == {1: str(caught.value)}, "in the words of those who look before"
    assert cuts.rows[1].tolist() == [0] * COLUMNS
    assert told(cuts, 2) == one((70, 64), image, picture=2)


@pytest.mark.parametrize("resolution", [65_536, "65536x65536", "65536x1", "1x65536", "1x1"])
@pytest.mark.parametrize("size", [(MOST, 1), (1, MOST), (1, 1), (13_377, 13_377)])
def test_the_largest_numbers_do_not_overflow(resolution: int | str, size: Size) -> None:
    """The longest pictures at the largest resolutions are refused or cut as exact arithmetic says."""
    image = settings(resolutions=[resolution], step=1, max_aspect=1.001, crop="random", max_pixels=MOST)
    choices = buckets(image.sizes[0], step=1, max_aspect=1.001)
    target, scaled = fitted(size, choices, image.crop)
    found = told(cut([size], image), 0)
    if scaled[0] * scaled[1] > MOST:
        scaling = f"to cover {target[0]}x{target[1]} it would be scaled to {scaled[0]}x{scaled[1]}"
        assert found == f"{scaling}, more pixels than image.max_pixels, {MOST}"
    else:
        assert isinstance(found, Geometry)
        assert (found.target, found.scaled) == (target, scaled)
