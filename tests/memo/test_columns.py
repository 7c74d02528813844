"""Segments: rows are found again exactly, and damage is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from precook.memo import columns
from precook.memo.columns import Kind, Segment, append, cut, dump, load, make_segment, merge
from precook.memo.memo import Memory
from precook.values import Bytes
from tests.support.memos import ALONE, OTHER, PLAIN, SLOTTED, Row, keys_of, numbers, some_rows, values_of


def collide(patch: pytest.MonkeyPatch) -> None:
    real = columns._hashes
    patch.setattr(columns, "_hashes", lambda kind, keys: real(kind, keys) % np.uint64(3))


def find(found: list[Segment], keys: Bytes) -> list[int | None]:
    """The newest value of each key in several segments, the newest segment last."""
    answers: list[int | None] = [None] * len(keys)
    for segment in found:
        for at, row in enumerate(segment.find(keys).tolist()):
            if row >= 0:
                answers[at] = numbers(segment.values[[row]])[0]
    return answers


batches = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2**32 - 1)), max_size=12), max_size=8
)
ALL_KEYS = [(slot, rest) for slot in range(6) for rest in range(5)]


@pytest.mark.parametrize("kind", [PLAIN, SLOTTED])
@pytest.mark.parametrize("collisions", [False, True])
@given(batches=batches, merges=st.lists(st.booleans(), min_size=8, max_size=8))
@example(batches=[], merges=[False] * 8)
@example(batches=[[]], merges=[True] * 8)
@example(batches=[[(0, 0, 1), (1, 0, 2), (0, 0, 3)]], merges=[False] * 8)
def test_segments_answer_like_a_dict(
    kind: Kind, collisions: bool, batches: list[list[Row]], merges: list[bool]
) -> None:
    """Whatever is put in, in one segment or many, merged or not: the newest value of a key comes out, absent keys none.

    Where only the newest key of a slot is to be kept, an older one may be forgotten, but never gets another's value.
    """
    if kind.slot:
        batches = [[(slot, rest, 10 * slot + rest) for slot, rest, _ in batch] for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        if collisions:
            collide(patch)
        kept: list[Segment] = []
        stacked: list[Segment] = []
        memory = Memory(None)
        model: dict[tuple[int, int], int] = {}
        newest: dict[int, int] = {}
        for batch, join in zip(batches, merges, strict=False):
            made = make_segment(kind, keys_of(batch), values_of(batch))
            kept.append(made)
            if join and len(kept) > 1:
                newer = kept.pop()
                kept.append(merge(kind, kept.pop(), newer))
            append(stacked, made)
            memory.remember(kind, keys_of(batch), values_of(batch))
            for slot, rest, value in batch:
                model[slot, rest] = value
                newest[slot] = rest
        keys = keys_of(ALL_KEYS)
        reread = [load(kind, *dump(segment)) for segment in kept]
        assert None not in reread
        known, values = memory.recall(kind, keys)
        recalled = [value if yes else None for yes, value in zip(known, numbers(values), strict=True)]
        for answers in (find(kept, keys), find(stacked, keys), find(reread, keys), recalled):  # type: ignore[arg-type]
            for (slot, rest), answer in zip(ALL_KEYS, answers, strict=True):
                forgettable = kind.slot and newest.get(slot) != rest
                assert answer == model.get((slot, rest)) or (forgettable and answer is None)


def test_only_the_newest_key_of_a_slot_stays() -> None:
    """A file that changes a thousand times is remembered once."""
    kept: list[Segment] = []
    for version in range(1000):
        append(kept, make_segment(SLOTTED, keys_of([(1, version)]), values_of([(1, version, version)])))
    assert sum(segment.rows for segment in kept) <= 2
    assert find(kept, keys_of([(1, 999)])) == [999]


def test_there_are_few_segments_however_often_something_is_added() -> None:
    """A look-up after a day of learning passes through a handful of segments, not thousands."""
    memory = Memory(None)
    for number in range(2000):
        memory.remember(PLAIN, keys_of([(number, 0)]), values_of([(number, 0, number)]))
    assert len(memory._loaded(PLAIN)) <= 12
    known, values = memory.recall(PLAIN, keys_of([(number, 0) for number in range(2001)]))
    assert known.tolist() == [True] * 2000 + [False]
    assert numbers(values) == [*range(2000), 0]


def test_every_flipped_byte_and_every_cut_of_a_segment_is_noticed() -> None:
    """No change to the bytes that were kept goes unseen."""
    parts = dump(make_segment(PLAIN, keys_of(some_rows(5)), values_of(some_rows(5))))
    assert load(PLAIN, *parts) is not None
    for number, part in enumerate(parts):
        for at in range(len(part)):
            flipped = bytearray(part)
            flipped[at] ^= 0x10
            assert load(PLAIN, *parts[:number], bytes(flipped), *parts[number + 1 :]) is None
            assert load(PLAIN, *parts[:number], part[:at], *parts[number + 1 :]) is None
        assert load(PLAIN, *parts[:number], part + b"\0", *parts[number + 1 :]) is None
        for value in (None, 5, "text", 0.5):
            assert load(PLAIN, *parts[:number], value, *parts[number + 1 :]) is None


def test_a_segment_is_never_taken_for_one_of_another_kind() -> None:
    """Also where both have rows of the same width: the checksum covers the kind."""
    parts = dump(make_segment(PLAIN, keys_of(some_rows(5)), values_of(some_rows(5))))
    assert load(OTHER, *parts) is None
    assert load(Kind("plain", key=8, value=2), *parts) is None


def test_an_empty_segment_comes_back() -> None:
    """No rows are rows too, and keys alone need no values."""
    empty = load(PLAIN, *dump(make_segment(PLAIN, keys_of([]), values_of([]))))
    assert empty is not None
    assert empty.find(keys_of(ALL_KEYS)).tolist() == [-1] * len(ALL_KEYS)
    alone = load(ALONE, *dump(make_segment(ALONE, keys_of(some_rows(3)), np.zeros((3, 0), np.uint8))))
    assert alone is not None
    assert (alone.find(keys_of(some_rows(3))) >= 0).all()


@given(count=st.integers(0, 40), nbytes=st.integers(1, 200))
def test_pieces_of_a_segment_hold_all_of_it(count: int, nbytes: int) -> None:
    """A segment too large for one row is kept in pieces that answer for their keys."""
    whole = make_segment(PLAIN, keys_of(some_rows(count)), values_of(some_rows(count)))
    pieces = list(cut(whole, nbytes))
    assert all(piece.rows * 20 <= max(nbytes, 20) for piece in pieces)
    assert find(pieces, keys_of(some_rows(count))) == list(range(count))
