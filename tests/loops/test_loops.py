"""Every training loop that people have sees what `feed.epoch` says, also when it is killed and resumed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("accelerate", "pytorch_lightning", "torchdata"):
    pytest.importorskip(library, reason=f"{library} is not installed")

from tests.loops.plain import EVERY, stateful  # noqa: E402
from tests.loops.ranks import EPOCHS, Job, Kill, expected, train  # noqa: E402
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
    loop(stateful),
    loop(stateful, workers=2),
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
    """Killed in the second epoch's first batch, and again anywhere: each time the very next batches come."""
    job = Job(store, tmp_path, ranks=ranks, options=options)
    whole = expected(job)
    steps, total = len(whole[0]) // EPOCHS, len(whole[0])
    draws = random.Random(f"{SEED} {function.__name__} {ranks} {options}")
    at = 0
    for batches in (steps + 1, draws.randrange(EVERY + 1, total - steps), None):
        kill = None if batches is None else Kill(draws.randrange(ranks), batches)
        ended = train(function, Job(**{**vars(job), "kill": kill}))
        assert ended.resumed == at
        for rank, seen in enumerate(ended.seen):
            assert seen == whole[rank][at : at + len(seen)]
            assert kill or at + len(seen) == total
        at += 0 if batches is None else (batches - 1) // EVERY * EVERY
