"""Every training loop that people have sees what `feed.epoch` says, also when it is killed and resumed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("accelerate", "pytorch_lightning", "torchdata"):
    pytest.importorskip(library, reason=f"{library} is not installed")

from tests.loops.plain import EVERY, plain, stateful  # noqa: E402
from tests.loops.ranks import EPOCHS, Job, Kill, expected, train  # noqa: E402
from tests.loops.with_accelerate import accelerated, prepared_by_hand, prepared_parts  # noqa: E402
from tests.loops.with_lightning import lightninged, lightninged_parts  # noqa: E402
from tests.support.feeds import everything, images  # noqa: E402

SEED = os.environ.get("PRECOOK_LOOPS_SEED", "0")
"""Decides where loops are killed."""
COUNT = 23
"""Samples of two sizes, neither of which comes out even in batches for two ranks."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built dataset."""
    folder = tmp_path_factory.mktemp("loops")
    with everything(images(folder, COUNT)) as owner:
        owner.build()
        return Path(owner.store_path)


def loop(function: Callable[[Job], None], ranks: int = 1, **options: Any) -> Any:
    words = [function.__name__, *(f"{name}={value}" for name, value in options.items()), f"{ranks}"]
    return pytest.param(function, ranks, options, id="-".join(words))


LOOPS = [
    loop(plain),
    loop(plain, workers=2),
    loop(plain, 2),
    loop(stateful),
    loop(stateful, workers=2),
    loop(accelerated),
    loop(accelerated, prepare=False),
    loop(accelerated, resume="skip"),
    loop(accelerated, resume="both", calls=False),
    loop(accelerated, 2),
    loop(accelerated, 2, calls=False),
    loop(accelerated, 2, prepare=False),
    loop(accelerated, 2, resume="skip"),
    loop(accelerated, 2, resume="both"),
    loop(accelerated, 2, dispatch_batches=True),
    loop(accelerated, 2, use_stateful_dataloader=True),
    loop(accelerated, 2, accumulate=4),
    loop(lightninged),
    loop(lightninged, reload_dataloaders_every_n_epochs=1),
    loop(lightninged, 2),
    loop(lightninged, 2, given=True),
    loop(lightninged, 2, reload_dataloaders_every_n_epochs=1),
    loop(lightninged, 2, use_distributed_sampler=False),
]


@pytest.mark.parametrize(("function", "ranks", "options"), LOOPS)
def test_three_epochs_show_what_the_feed_says(
    store: Path, tmp_path: Path, function: Callable[[Job], None], ranks: int, options: dict[str, Any]
) -> None:
    """Every sample once in each epoch, each epoch in another order, the same batches as `feed.epoch` has."""
    job = Job(store, tmp_path, ranks=ranks, options=options)
    ended = train(function, job)
    assert ended.seen == expected(job)
    orders = []
    for epoch in range(EPOCHS):
        shown = [name for seen in ended.seen for number, names, _ in seen if number == epoch for name in names]
        assert len(shown) == len(set(shown)) == COUNT
        orders.append(shown)
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize(("function", "ranks", "options"), LOOPS)
def test_a_killed_loop_goes_on_with_the_batches_that_are_left(
    store: Path, tmp_path: Path, function: Callable[[Job], None], ranks: int, options: dict[str, Any]
) -> None:
    """Killed anywhere in the first two epochs, and again with the first batch of the third: the next batches come."""
    job = Job(store, tmp_path, ranks=ranks, options=options)
    steps = len(expected(job)[0]) // EPOCHS
    draws = random.Random(f"{SEED} {function.__name__} {ranks} {options}")
    # An epoch's end once, not twice in a row: Lightning's own count of epochs is off then.
    places = [place for place in range(EVERY + 1, 2 * steps) if (place - 1) // EVERY * EVERY % steps]
    resume(function, job, [draws.choice(places), 2 * steps + 1], draws)


def resume(function: Callable[[Job], None], job: Job, kills: list[int], draws: random.Random) -> None:
    """Kill a loop when it has seen so many batches, and resume it, until it ends; see that the right batches come."""
    whole = expected(job)
    at = 0
    for place in (*kills, None):
        kill = None if place is None else Kill(draws.randrange(job.ranks), place - at)
        ended = train(function, replace(job, kill=kill))
        assert ended.resumed == at
        for rank, seen in enumerate(ended.seen):
            assert seen == whole[rank][at : at + len(seen)]
            assert kill or at + len(seen) == len(whole[rank])
        at = at if place is None else (place - 1) // EVERY * EVERY


def test_lightning_resumes_inside_an_epoch_without_max_steps(store: Path, tmp_path: Path) -> None:
    """Where no run went on from an epoch's last step before, it needs no `max_steps`."""
    job = Job(store, tmp_path, options={"max_steps": -1})
    steps = len(expected(job)[0]) // EPOCHS
    resume(lightninged, job, [2 * EVERY + 1, steps + 2 * EVERY + 1], random.Random(SEED))


def test_lightning_that_leaves_an_epoch_out_is_told(store: Path, tmp_path: Path) -> None:
    """With `max_steps` it takes a checkpoint saved after an epoch for one inside, and leaves the next one early."""
    options = {"each_epoch": True, "max_steps": 10**6}
    train(lightninged, Job(store, tmp_path, epochs=1, options=options))
    ended = train(lightninged, Job(store, tmp_path, options=options), fails=True)
    assert "FeedError: epoch 1 was left after 1 of 12 batches" in ended.output
    assert "without max_steps" in ended.output


def test_gradients_are_synchronised_at_the_end_of_an_epoch(store: Path, tmp_path: Path) -> None:
    """Two ranks that accumulate over four of six batches take a step with the fourth and with the last."""
    job = Job(store, tmp_path, ranks=2, options={"accumulate": 4})
    for lines in train(accelerated, job).lines:
        assert [line["synced"] for line in lines] == EPOCHS * [False, False, False, True, False, True]


def test_batches_that_count_all_ranks_are_refused(store: Path, tmp_path: Path) -> None:
    """`split_batches=True` means batches that are split among ranks; a feed's are those of one rank, and it says so."""
    ended = train(accelerated, Job(store, tmp_path, ranks=2, options={"split_batches": True}), fails=True)
    assert "FeedError" in ended.output
    assert "split_batches" in ended.output
    assert not any(ended.seen)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (prepared_parts, {}),
        (prepared_parts, {"dispatch_batches": True}),
        (prepared_by_hand, {}),
        (lightninged_parts, {}),
    ],
)
def test_parts_that_would_be_shared_out_twice_are_refused(
    store: Path, tmp_path: Path, function: Callable[[Job], None], options: dict[str, Any]
) -> None:
    """Ranks of the feed and of what prepares its DataLoader: an error names the loader, and no batch is lost unseen."""
    ended = train(function, Job(store, tmp_path, ranks=2, options=options), fails=True)
    assert "FeedError: the batches of a feed are shared out among 2 ranks by the feed alone" in ended.output
    assert "feed.loader()" in ended.output
    assert not any(ended.seen)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.parametrize(
    ("function", "options"),
    [(plain, {}), (accelerated, {}), (accelerated, {"each_epoch": True}), (lightninged, {"each_epoch": True})],
)
def test_other_ranks_take_over_at_an_epochs_start(
    store: Path, tmp_path: Path, function: Callable[[Job], None], options: dict[str, Any], before: int, after: int
) -> None:
    """A loop that ended after an epoch goes on with another number of ranks: the epochs as those ranks have them."""
    job = Job(store, tmp_path, ranks=before, epochs=1, options=options)
    assert train(function, job).seen == expected(job)
    job = replace(job, ranks=after, epochs=EPOCHS)
    rest = [[seen for seen in of_rank if seen[0]] for of_rank in expected(job)]
    assert train(function, job).seen == rest


@pytest.mark.parametrize("function", [plain, accelerated, lightninged])
def test_other_ranks_inside_an_epoch_are_refused(store: Path, tmp_path: Path, function: Callable[[Job], None]) -> None:
    """What is left of an epoch is shared out among the ranks that began it: others are told, and see nothing."""
    train(function, Job(store, tmp_path, ranks=2, kill=Kill(1, 4)))
    ended = train(function, Job(store, tmp_path), fails=True)
    assert "FeedError: the state was taken inside epoch 0 of another feed" in ended.output
    assert not any(ended.seen)


def test_lightning_takes_no_other_ranks_after_a_last_batch(store: Path, tmp_path: Path) -> None:
    """In a checkpoint of an epoch's last batch Lightning has counted its batches: with other ranks, it would leave out
    as many of the next epoch. It is told so instead.
    """
    train(lightninged, Job(store, tmp_path, ranks=2, kill=Kill(0, 7)))
    ended = train(lightninged, Job(store, tmp_path), fails=True)
    assert "FeedError: the state was taken with the last batch of epoch 0 of another feed" in ended.output
    assert "ModelCheckpoint(every_n_epochs=1)" in ended.output
    assert not any(ended.seen)
