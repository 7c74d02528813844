"""Ranks: which process a feed is for, where nobody says it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import precook
from precook.feed.ranks import find_ranks
from tests.support.feeds import everything, images

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing, and an accelerate that tests before have not set up."""
    monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of one, as torchrun makes it of two."""
    file = tmp_path / "group"
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class TestFindRanks:
    """Who is believed."""

    def test_the_environment_says_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """RANK and WORLD_SIZE, as torchrun and accelerate set them."""
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert (find_ranks(None, None).rank, find_ranks(None, None).count) == (1, 2)

    def test_who_gives_them_is_believed(self, monkeypatch: pytest.MonkeyPatch, group: None) -> None:
        """What is given counts before everything else."""
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert (find_ranks(2, 3).rank, find_ranks(2, 3).count) == (2, 3)
        find_ranks(2, 3).check()

    def test_a_process_group_counts_before_the_environment(self, monkeypatch: pytest.MonkeyPatch, group: None) -> None:
        """Whoever has made a process group has read the environment as he wants it read."""
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert (find_ranks(None, None).rank, find_ranks(None, None).count) == (0, 1)

    @pytest.mark.parametrize(
        ("rank", "count", "reason"),
        [
            ("1", None, "has RANK and no WORLD_SIZE"),
            (None, "2", "has WORLD_SIZE and no RANK"),
            ("2", "2", "rank 2 is not one of 2"),
            ("-1", "2", "rank -1 is not one of 2"),
            ("one", "2", "RANK is 'one'"),
            ("0", "", "WORLD_SIZE ''"),
        ],
    )
    def test_nonsense_in_the_environment_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, rank: str | None, count: str | None, reason: str
    ) -> None:
        """Half of it, or what is no rank: never taken for one process alone."""
        for name, value in (("RANK", rank), ("WORLD_SIZE", count)):
            if value is not None:
                monkeypatch.setenv(name, value)
        with pytest.raises(precook.FeedError, match=reason):
            find_ranks(None, None)

    @pytest.mark.parametrize(("rank", "count"), [(0, None), (None, 2), (2, 2), (0.5, 2)])
    def test_ranks_that_make_no_sense_are_refused(self, rank: int | None, count: int | None) -> None:
        """One without the other, too."""
        with pytest.raises(precook.FeedError):
            find_ranks(rank, count)

    def test_torch_is_not_imported_to_ask(self) -> None:
        """Where nobody has loaded torch there is no process group, and asking for one costs nothing."""
        script = "import sys, precook.feed.ranks as ranks; ranks.find_ranks(None, None); print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


def test_processes_that_meet_after_the_feed_was_made_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Each would show everything: no epoch begins, however batches are asked for, and the error says what to do."""
    owner = everything(images(tmp_path), encoders={"pixels": {"uses": "image"}})
    owner.build()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    feed = owner.feed(batch_size=2)
    given = owner.feed(batch_size=2, rank=1, world_size=2)
    loader = feed.loader()
    request.getfixturevalue("group")
    for ask in (
        lambda: feed.epoch(0),
        lambda: next(iter(loader)),
        lambda: next(iter(feed.batch_sampler(0))),
        lambda: pickle.loads(pickle.dumps(feed)).epoch(0),
    ):
        with pytest.raises(precook.FeedError, match="rank 0 of 1 now, and was rank 1 of 2") as caught:
            ask()
        assert "world_size=" in caught.value.hint
    assert len(list(given.epoch(0))) == len(given)


def test_accelerate_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where accelerate is set up and torch has no process group, as on one process alone or on a TPU."""
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.setitem(sys.modules, "accelerate.state", accelerate.state)
    accelerate.Accelerator(cpu=True)
    state = accelerate.state.PartialState()
    assert (find_ranks(None, None).rank, find_ranks(None, None).count) == (0, 1)
    monkeypatch.setattr(state, "process_index", 1)
    monkeypatch.setattr(state, "num_processes", 4)
    assert (find_ranks(None, None).rank, find_ranks(None, None).count) == (1, 4)
