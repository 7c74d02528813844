"""What an epoch shows, in which order, to whom."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precook.feed.content import FeedContent
from precook.feed.sampler import Last, Schedule, draw_items, schedule, share_out
from tests.support.feeds import content

samples = st.lists(st.tuples(st.sampled_from(["cats", "dogs"]), st.integers(0, 40)), min_size=1, max_size=40)
shapes = st.fixed_dictionaries(
    {
        "sizes": st.integers(1, 4),
        "resolutions": st.integers(1, 3),
        "variations": st.integers(1, 3),
        "lines": st.integers(0, 3),
        "pick": st.sampled_from(["one", "each"]),
    }
)
seeds = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 1000)


def batches(plan: Schedule, rank: int = 0) -> list[list[int]]:
    return [plan.batch(step, rank).tolist() for step in range(plan.steps)]


def shown(data: FeedContent, plan: Schedule) -> Counter[bytes]:
    """How often each sample is shown, over all ranks."""
    members = [member for rank in range(plan.ranks) for batch in batches(plan, rank) for member in batch]
    return Counter(data.ids[plan.items.samples[member]].tobytes() for member in members)


@given(samples, shapes, seeds, epochs, st.integers(1, 5))
def test_an_epoch_shows_every_sample_once(
    given_: list[tuple[str, int]], shape: dict[str, Any], seed: int, epoch: int, size: int
) -> None:
    """With `pick: one` each sample is shown once, with `pick: each` once at each resolution."""
    data = content(given_, **shape)
    times = shape["resolutions"] if shape["pick"] == "each" else 1
    plan = schedule(data, seed=seed, epoch=epoch, batch_size=size)
    assert shown(data, plan) == Counter({one.tobytes(): times for one in data.ids})
    if shape["pick"] == "each":
        cuts = plan.items.cuts
        assert len(set(cuts.tolist())) == len(cuts), "each resolution once"


@given(samples, shapes, seeds, epochs, st.integers(1, 5), st.sampled_from(["keep", "drop", "wrap"]))
def test_batches_never_mix_sizes(
    given_: list[tuple[str, int]], shape: dict[str, Any], seed: int, epoch: int, size: int, last: Last
) -> None:
    """All items of a batch have one size; without picture encoders any may meet."""
    data = content(given_, **shape)
    plan = schedule(data, seed=seed, epoch=epoch, batch_size=size, last=last)
    for batch in batches(plan):
        assert 1 <= len(batch) <= size
        assert len({tuple(data.sizes[plan.items.cuts[member]].tolist()) for member in batch}) == 1
    texts = schedule(content(given_, pictures=False, **shape), seed=seed, epoch=epoch, batch_size=size)
    assert texts.steps == -(-len(texts.items) // size)


@given(samples, shapes, seeds, epochs, st.integers(1, 4), st.integers(1, 4))
def test_ranks_share_an_epoch(
    given_: list[tuple[str, int]], shape: dict[str, Any], seed: int, epoch: int, size: int, ranks: int
) -> None:
    """Ranks have as many batches, of the same picture size at each step, and cover the epoch together.

    They share no item, except where a size has fewer items than there are batches to fill.
    """
    data = content(given_, **shape)
    plan = schedule(data, seed=seed, epoch=epoch, batch_size=size, ranks=ranks)
    alone = schedule(data, seed=seed, epoch=epoch, batch_size=size)
    assert set(shown(data, plan)) == set(shown(data, alone))
    for step in range(plan.steps):
        sizes = {
            tuple(data.sizes[plan.items.cuts[member]].tolist())
            for rank in range(ranks)
            for member in plan.batch(step, rank)
        }
        assert len(sizes) == 1
    per_size = Counter(tuple(data.sizes[cut].tolist()) for cut in plan.items.cuts)
    if all(count >= ranks for count in per_size.values()) and (
        size > 1 or not any(c % ranks for c in per_size.values())
    ):
        members = [member for rank in range(ranks) for batch in batches(plan, rank) for member in batch]
        assert len(members) == len(set(members)) == len(plan.items)


@given(st.integers(0, 60), st.integers(1, 5), st.integers(1, 5))
def test_batches_are_as_full_as_they_can_be(count: int, size: int, ranks: int) -> None:
    """Kept remainders make no step more than needed, wrapped ones full batches, dropped ones lose less than a step."""
    members = np.arange(count)
    sizes, filled = share_out(members, size, ranks, "keep")
    assert len(sizes) == math.ceil(count / (size * ranks)) * ranks
    assert sizes.sum() == len(filled)
    assert set(filled.tolist()) == set(range(count))
    assert not len(sizes) or sizes.min() >= 1
    assert not len(sizes) or sizes.max() <= size
    sizes, filled = share_out(members, size, ranks, "wrap")
    assert (sizes == size).all()
    assert set(filled.tolist()) == set(range(count))
    assert max(Counter(filled.tolist()).values(), default=0) <= -(-size * ranks // max(count, 1)) + 1
    sizes, filled = share_out(members, size, ranks, "drop")
    assert (sizes == size).all()
    assert count - len(filled) < size * ranks
    assert len(set(filled.tolist())) == len(filled)


@given(samples, shapes, seeds, epochs)
def test_the_order_follows_from_seed_and_epoch(
    given_: list[tuple[str, int]], shape: dict[str, Any], seed: int, epoch: int
) -> None:
    """The same seed and epoch give the same batches, in whatever order the samples were found."""
    first = schedule(content(given_, **shape), seed=seed, epoch=epoch, batch_size=3)
    again = schedule(content(list(given_), **shape), seed=seed, epoch=epoch, batch_size=3)
    assert batches(first) == batches(again)
    assert first.items.cuts.tolist() == again.items.cuts.tolist()


def test_epochs_and_seeds_differ() -> None:
    """Another epoch, or another seed, is another order."""
    data = content([("cats", number) for number in range(50)])
    orders = {
        tuple(map(tuple, batches(schedule(data, seed=seed, epoch=epoch, batch_size=4))))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


@given(samples, shapes, seeds, epochs, st.tuples(st.sampled_from(["cats", "dogs"]), st.integers(41, 60)))
def test_one_more_sample_changes_no_other_draw(
    given_: list[tuple[str, int]], shape: dict[str, Any], seed: int, epoch: int, more: tuple[str, int]
) -> None:
    """SCENARIOS A9: resolution, variation, caption and dropout of all others stay, and so does their relative order."""
    before, after = content(given_, **shape), content([*given_, more], **shape)

    def drawn(data: FeedContent) -> dict[bytes, list[Any]]:
        items = draw_items(data, seed=seed, epoch=epoch, dropout=0.3)
        found: dict[bytes, list[Any]] = {}
        for at, sample in enumerate(items.samples.tolist()):
            first = int(data.cuts.begins[data.resolutions.begins[sample]])
            line = int(items.lines[at])
            line -= int(data.lines.begins[sample]) if line >= 0 else 0
            found.setdefault(data.ids[sample].tobytes(), []).append((int(items.cuts[at]) - first, line))
        return found

    def order(data: FeedContent) -> dict[tuple[int, ...], list[bytes]]:
        plan = schedule(data, seed=seed, epoch=epoch, batch_size=1000)
        return {
            tuple(data.sizes[plan.items.cuts[batch[0]]].tolist()): [
                data.ids[plan.items.samples[member]].tobytes() for member in batch
            ]
            for batch in batches(plan)
        }

    old, new = drawn(before), drawn(after)
    assert {name: new[name] for name in old} == old
    others = set(old)
    for size, names in order(before).items():
        assert [name for name in order(after)[size] if name in others] == names


@given(
    st.integers(1, 60),
    st.floats(0, 3).map(lambda value: round(value, 2)),
    seeds,
    st.integers(0, 5),
)
def test_repeats_show_their_share(count: int, repeats: float, seed: int, epoch: int) -> None:
    """An epoch shows floor(pictures * repeats), each picture as often as the next one or once more."""
    data = content([("cats", number) for number in range(count)], shares={"cats": {"repeats": repeats}})
    items = draw_items(data, seed=seed, epoch=epoch)
    assert len(items) == math.floor(Fraction(str(repeats)) * count)
    times = Counter(items.samples.tolist())
    assert all(times[sample] in (math.floor(repeats), math.floor(repeats) + 1) for sample in range(count))


def test_29_percent_of_100_are_29() -> None:
    """`repeats` is the decimal number that was written, not the nearest binary one."""
    data = content([("cats", number) for number in range(100)], shares={"cats": {"repeats": 0.29}})
    assert len(draw_items(data, seed=0, epoch=0)) == 29


@pytest.mark.parametrize("wanted", [1, 7, 20, 45])
def test_samples_are_drawn_anew_each_epoch(wanted: int) -> None:
    """`samples: 7` shows seven of the whole concept, others in each epoch; more than there are repeat evenly."""
    data = content(
        [("cats", number) for number in range(20)] + [("dogs", 0)], shares={"cats": {"repeats": 1.0, "samples": wanted}}
    )
    chosen = []
    for epoch in range(20):
        items = draw_items(data, seed=0, epoch=epoch)
        cats = [sample for sample in items.samples.tolist() if data.names[data.concepts[sample]] == "cats"]
        assert len(cats) == wanted
        assert max(Counter(cats).values()) == -(-wanted // 20)
        chosen.append(tuple(cats))
    if wanted % 20:
        assert len(set(chosen)) > 10
        assert len({sample for epoch in chosen for sample in epoch}) > min(wanted + 3, 19)


def test_every_turn_of_an_epoch_draws_anew() -> None:
    """A sample that is shown four times gets more than one of its variations and captions."""
    data = content([("cats", 3)], variations=8, lines=8, shares={"cats": {"repeats": 4.0}})
    items = draw_items(data, seed=0, epoch=0)
    assert len(set(items.cuts.tolist())) > 1
    assert len(set(items.lines.tolist())) > 1


@settings(max_examples=20)
@given(seeds, st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_dropout_swaps_in_the_empty_prompt_as_often_as_asked(seed: int, rate: float) -> None:
    """The share of items without their caption is near the rate, and exactly none or all at its ends."""
    data = content([("cats", number) for number in range(400)])
    dropped = float((draw_items(data, seed=seed, epoch=1, dropout=rate).lines < 0).mean())
    assert abs(dropped - rate) <= (0.15 if 0 < rate < 1 else 0)


def test_draws_use_everything_there_is() -> None:
    """Over some epochs every resolution, variation and caption of a picture is drawn."""
    data = content([("cats", 5)], resolutions=3, variations=4, lines=5)
    cuts, lines = set(), set()
    for epoch in range(200):
        items = draw_items(data, seed=0, epoch=epoch)
        cuts |= set(items.cuts.tolist())
        lines |= set(items.lines.tolist())
    assert len(cuts) == 12
    assert lines == set(range(5))


def test_who_meets_whom_changes_from_epoch_to_epoch() -> None:
    """The items of a batch are not neighbours forever: within one size they are shuffled anew."""
    data = content([("cats", number) for number in range(40)])
    meetings = []
    for epoch in range(3):
        plan = schedule(data, seed=0, epoch=epoch, batch_size=4)
        meetings.append({frozenset(plan.items.samples[batch].tolist()) for batch in batches(plan)})
    assert not meetings[0] & meetings[1]
    assert not meetings[1] & meetings[2]


def test_batches_of_different_sizes_are_mixed() -> None:
    """An epoch does not show all of one size first, and the sizes come in another order in the next."""
    data = content([("cats", number) for number in range(120)], sizes=3)

    def sizes(epoch: int) -> list[int]:
        plan = schedule(data, seed=0, epoch=epoch, batch_size=4)
        return [int(data.sizes[plan.items.cuts[batch[0]]][0]) for batch in batches(plan)]

    changes = sum(one != other for one, other in zip(sizes(0), sizes(0)[1:], strict=False))
    assert changes > 10
    assert sizes(0) != sizes(1)


def test_equal_pictures_are_drawn_alike_wherever_they_lie() -> None:
    """Draws belong to the picture: in another concept, among other samples, it has the same cut and caption line."""
    alone = content([("cats", 3)], resolutions=3, variations=5, lines=7)
    among = content([("dogs", number) for number in range(8)], resolutions=3, variations=5, lines=7)
    (place,) = np.flatnonzero((among.images == alone.images[0]).all(axis=1))
    for epoch in range(20):
        one, other = draw_items(alone, seed=1, epoch=epoch), draw_items(among, seed=1, epoch=epoch)
        (at,) = np.flatnonzero(other.samples == place)
        assert one.cuts[0] == other.cuts[at] - 15 * place
        assert one.lines[0] == other.lines[at] - 7 * place
