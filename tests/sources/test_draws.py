"""Draws: docs/concepts/geometry.md word for word, and that they belong to a picture, not to its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook import digest
from precook.sources.draws import Purpose, draw, pick
from precook.values import Bytes

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "geometry.md").read_text(encoding="utf-8")
VECTORS = re.findall(r"^\| `(.+)` \| (\d) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
WORDS = st.integers(0, 2**63 - 1) | st.integers(0, 9)
DIGESTS = st.binary(min_size=32, max_size=32)


def rows(digests: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def some(count: int) -> Bytes:
    """Bytes as real files have them, the same in every run."""
    return rows([digest(f"picture {number}").bytes for number in range(count)])


def surprise(seen: Any, cells: int) -> float:
    """How many standard deviations chi-square lies from what evenly spread numbers give: mostly within 3."""
    expected = len(seen) / cells
    chi_square = float(((np.bincount(seen, minlength=cells) - expected) ** 2).sum() / expected)
    return abs(chi_square - (cells - 1)) / (2 * (cells - 1)) ** 0.5


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """What the page's Python block defines: the same arithmetic in plain Python."""
    scope: dict[str, Any] = {}
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(block[1], scope)
    return scope


# The page


@pytest.mark.parametrize("vector", VECTORS, ids=" ".join)
def test_the_vectors_of_the_page_hold(vector: tuple[str, ...]) -> None:
    """Every line of the table holds, on every machine, for ever: or crops that were kept are never found again."""
    content, (purpose, number, seed, bits, picked) = eval(vector[0], {"digest": digest}), map(int, vector[1:])
    drawn = draw(rows([content]), Purpose(purpose), number=number, seed=seed)
    assert drawn.tolist() == [bits]
    assert pick(drawn, 1000).tolist() == [picked]


def test_the_page_has_all_its_vectors() -> None:
    """Every row of the table is read and checked; a row that does not parse would go unseen."""
    table = PAGE.split("Draws:\n\n", 1)[1].split("\n\n", 1)[0]
    assert len(table.splitlines()) - 2 == len(VECTORS) >= 8


def test_the_page_lists_every_purpose() -> None:
    """A purpose cannot be added, or get another number, without the page."""
    table = PAGE.split("| purpose | for |", 1)[1].split("\n\n", 1)[0]
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [*Purpose]
    names = ["LEFT", "TOP", "FLIP", "LINES"]
    names += ["RESOLUTION", "VARIATION", "CAPTION", "SAMPLES", "DROPOUT", "ORDER", "STEPS", "NOISE"]
    names += ["TAG_ORDER", "TAG_DROPOUT", "START"]
    assert [purpose.name for purpose in Purpose] == names
    assert [*Purpose] == list(range(1, len(names) + 1))


@given(
    digests=st.lists(DIGESTS, max_size=4),
    purpose=st.sampled_from(Purpose),
    number=WORDS,
    seed=WORDS,
    count=st.integers(1, 2**32),
)
def test_the_arithmetic_of_the_page_gives_the_same_draws(
    page: dict[str, Any], digests: list[bytes], purpose: Purpose, number: int, seed: int, count: int
) -> None:
    """Somebody who follows the page draws what we draw, up to the largest seed and count."""
    drawn = draw(rows(digests), purpose, number=number, seed=seed)
    expected = [page["draw"](content, purpose, number, seed) for content in digests]
    assert drawn.tolist() == expected
    assert pick(drawn, count).tolist() == [page["pick"](bits, count) for bits in expected]
    assert pick(drawn, np.full(len(digests), count)).tolist() == pick(drawn, count).tolist()


# Where a digest stands


@given(digests=st.lists(DIGESTS, min_size=1, max_size=6), chosen=st.data())
def test_a_draw_does_not_depend_on_the_others(digests: list[bytes], chosen: st.DataObject) -> None:
    """Adding, removing and reordering pictures changes nobody's draw, and equal digests draw alike."""
    places = chosen.draw(st.lists(st.integers(0, len(digests) - 1), max_size=8))
    together = draw(rows(digests), Purpose.LEFT, number=2, seed=3)
    others = draw(rows([digests[place] for place in places]), Purpose.LEFT, number=2, seed=3)
    assert others.tolist() == together[places].tolist()


def test_a_digest_may_lie_anywhere_in_memory() -> None:
    """Columns of a wider table, every second row, and another order in memory draw as their copies do."""
    wide = np.concatenate([np.full((20, 3), 7, np.uint8), some(20), np.zeros((20, 5), np.uint8)], axis=1)
    expected = draw(some(20)[::2].copy(), Purpose.TOP, number=0, seed=0).tolist()
    for inside in (wide[::2, 3:35], np.asfortranarray(wide)[::2, 3:35]):
        assert draw(inside, Purpose.TOP, number=0, seed=0).tolist() == expected


def test_nothing_draws_nothing() -> None:
    """No pictures, no draws, no error."""
    drawn = draw(some(0), Purpose.FLIP, number=0, seed=0)
    assert drawn.shape == (0,)
    assert pick(drawn, 2).shape == (0,)


# How they are spread


@pytest.mark.parametrize("count", [2, 3, 22, 257])
@pytest.mark.parametrize("purpose", Purpose)
def test_every_number_is_drawn_about_equally_often(purpose: Purpose, count: int) -> None:
    """Ten thousand pictures leave no place out and prefer none."""
    picked = pick(draw(some(10_000), purpose, number=0, seed=0), count)
    assert set(picked.tolist()) == set(range(count))
    assert surprise(picked, count) < 5


def test_every_number_is_drawn_about_equally_often_from_one_picture() -> None:
    """The variations of one picture are spread as evenly as pictures are."""
    bits = np.concatenate([draw(some(1), Purpose.LEFT, number=number, seed=0) for number in range(4000)])
    assert surprise(pick(bits, 16), 16) < 5


@pytest.mark.parametrize(
    "other",
    [
        {"purpose": Purpose.TOP, "number": 0, "seed": 0},
        {"purpose": Purpose.LEFT, "number": 1, "seed": 0},
        {"purpose": Purpose.LEFT, "number": 0, "seed": 1},
        {"purpose": Purpose.LEFT, "number": 0, "seed": 2**63 - 1},
    ],
    ids=str,
)
def test_other_purposes_numbers_and_seeds_draw_anew(other: dict[str, Any]) -> None:
    """Neither top, nor the next variation, nor another seed can be told from left: all pairs are about as frequent."""
    first = pick(draw(some(10_000), Purpose.LEFT, number=0, seed=0), 8)
    second = pick(draw(some(10_000), **other), 8)
    assert surprise(first * 8 + second, 64) < 5


def test_number_and_seed_are_told_apart() -> None:
    """Variation 1 with seed 2 is not variation 2 with seed 1."""
    drawn = {
        (number, seed): draw(some(1), Purpose.LEFT, number=number, seed=seed)[0]
        for number in range(9)
        for seed in range(9)
    }
    assert len(set(drawn.values())) == 81


def test_every_bit_of_a_digest_counts() -> None:
    """A digest that differs in one bit, wherever that is, has a draw that differs in about half of its bits."""
    alike = np.repeat(some(1), 256, axis=0)
    for bit in range(256):
        alike[bit, bit // 8] ^= 1 << bit % 8
    changed = draw(alike, Purpose.LEFT, number=0, seed=0) ^ draw(some(1), Purpose.LEFT, number=0, seed=0)
    counts = np.array([bits.bit_count() for bits in changed.tolist()])
    assert counts.min() >= 12
    assert abs(counts.mean() - 32) < 1
