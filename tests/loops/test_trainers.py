"""The Trainer of transformers and TRL's train on what `feed.epoch` says, also when they are killed and resumed."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import precook
from tests.loops.ranks import EPOCHS, Job, Kill, expected, seen, train
from tests.support.feeds import everything, images
from tests.support.pages import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("accelerate", "transformers", "datasets", "trl"):
    pytest.importorskip(library, reason=f"{library} is not installed")
import transformers  # noqa: E402

from tests.loops.plain import EVERY  # noqa: E402
from tests.loops.with_trainer import guide, hf_trainer, sft_trainer  # noqa: E402

SEED = os.environ.get("PRECOOK_LOOPS_SEED", "0")
"""Decides where loops are killed."""
COUNT = 15
"""Samples of two sizes, neither of which comes out even in batches for two ranks."""
PAGE = (ROOT / "docs" / "guides" / "trainer.md").read_text("utf-8")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built dataset of pictures and token ids, with its tokenizer beside it."""
    folder = tmp_path_factory.mktemp("trainers")
    transformers.ByT5Tokenizer(extra_ids=0).save_pretrained(folder / "text")
    tokens = {"uses": "transformers-tokens", "model": "text"}
    with everything(images(folder, COUNT), encoders={"pixels": {"uses": "image"}, "tokens": tokens}) as owner:
        owner.build()
        return Path(owner.store_path)


LOOPS = [
    pytest.param(hf_trainer, 1, {}, id="hf-1"),
    pytest.param(hf_trainer, 2, {"prepare": True, "state": True}, id="hf-prepared-state-2"),
    pytest.param(sft_trainer, 1, {"state": True}, id="trl-state-1"),
    pytest.param(sft_trainer, 2, {}, id="trl-2"),
]


@pytest.mark.parametrize(("function", "ranks", "options"), LOOPS)
def test_a_trainer_that_is_killed_sees_what_the_feed_says(
    store: Path, tmp_path: Path, function: Callable[[Job], None], ranks: int, options: dict[str, Any]
) -> None:
    """Every sample once in each of three epochs, each in another order; killed at any step, the next batches come."""
    job = Job(store, tmp_path, ranks=ranks, options=options)
    whole = expected(job)
    draws = random.Random(f"{SEED} {function.__name__} {ranks} {options}")
    kill = Kill(draws.randrange(ranks), draws.randrange(EVERY + 1, len(whole[0])))
    first = train(function, replace(job, kill=kill))
    ended = train(function, job)
    assert ended.resumed == (kill.batches - 1) // EVERY * EVERY
    for rank in range(ranks):
        assert first.seen[rank][: ended.resumed] + ended.seen[rank] == whole[rank]
        assert first.seen[rank] == whole[rank][: len(first.seen[rank])]
    shown = [
        [name for seen in whole for number, names, _ in seen if number == epoch for name in names]
        for epoch in range(EPOCHS)
    ]
    assert [len(set(names)) for names in shown] == [len(names) for names in shown] == [COUNT] * EPOCHS
    assert shown[0] != shown[1] != shown[2] != shown[0]


def test_accumulated_batches_are_those_of_the_feed(store: Path, tmp_path: Path) -> None:
    """A Trainer that takes three batches for a step, and fewer for the last of an epoch, leaves none out."""
    job = Job(store, tmp_path, options={"gradient_accumulation_steps": 3})
    assert train(hf_trainer, job).seen == expected(job)


def test_a_trainer_goes_on_after_an_epochs_last_batch(store: Path, tmp_path: Path) -> None:
    """Killed with the first batch of the second epoch: the checkpoint is of the first one, and nothing is skipped."""
    job = Job(store, tmp_path, options={"state": True})
    (whole,) = expected(job)
    steps = len(whole) // EPOCHS
    assert steps % EVERY == 0
    train(hf_trainer, replace(job, kill=Kill(0, steps + 1)))
    ended = train(hf_trainer, job)
    assert ended.resumed == steps
    assert ended.seen == [whole[steps:]]


def test_other_ranks_inside_an_epoch_are_refused(store: Path, tmp_path: Path) -> None:
    """A Trainer counts steps, which other ranks have more or fewer of in an epoch: the loader's state says so."""
    job = Job(store, tmp_path, ranks=2, options={"state": True})
    train(hf_trainer, replace(job, kill=Kill(0, EVERY + 1)))
    ended = train(hf_trainer, replace(job, ranks=1), fails=True)
    assert "FeedError: the state was taken inside epoch 0 of another feed" in ended.output
    assert not any(ended.seen)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_other_ranks_at_an_epochs_start_are_refused(store: Path, tmp_path: Path, before: int, after: int) -> None:
    """By the steps that it has counted, a Trainer would go on inside of an epoch; the loader's state knows better."""
    job = Job(store, tmp_path, ranks=before, options={"state": True})
    steps = len(expected(job)[0]) // EPOCHS
    job.options["save_steps"] = steps
    train(hf_trainer, replace(job, kill=Kill(0, steps + 1)))
    ended = train(hf_trainer, replace(job, ranks=after), fails=True)
    assert "FeedError" in ended.output
    assert "were skipped, and by the state that was loaded" in ended.output
    assert not any(ended.seen)


def blocks(title: str, kind: str) -> list[str]:
    """The blocks of a section of the guide."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{kind}\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def lines(diff: str, sign: str) -> str:
    """The lines of a change that come, or that go."""
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line.startswith((sign, " ")))


def said(job: Job, names: dict[str, str]) -> list[Any]:
    """What each rank of a script of the guide has to see: its fields, by the names that they have in a batch."""
    each = []
    for rank in range(job.ranks):
        with (
            precook.open(job.store) as store,
            store.snapshot("pets").feed(batch_size=2, seed=0, rank=rank, world_size=job.ranks) as feed,
        ):
            loaders = [
                seen(epoch, {"sample": [], **{new: batch[old] for old, new in names.items()}})
                for epoch in range(EPOCHS)
                for batch in (flat(batch) for batch in feed.epoch(epoch))
            ]
            each.append(loaders)
    return each


def flat(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with the leaves of its tokens at the top."""
    return {**batch, **{f"tokens.{name}": leaf for name, leaf in batch.get("tokens", {}).items()}}


class TestGuide:
    """The scripts of the guide, as they stand and with the lines that change, on two ranks."""

    def test_the_trainers_script_sees_what_the_feed_says(self, tmp_path: Path) -> None:
        """Two ranks of the whole script; and one process with the lines that were there before."""
        (script,), (change,) = (blocks("The lines that change", kind) for kind in ("python", "diff"))
        assert script.count(lines(change, "+")) == 1
        job = Job(tmp_path / "rank-0" / "cache", tmp_path, ranks=2, options={"code": script})
        assert train(guide, job).seen == said(job, {"pixels": "pixel_values"})
        before = script.replace(lines(change, "+"), lines(change, "-"))
        live = Job(tmp_path, tmp_path / "before", options={"code": before})
        assert len(train(guide, live).seen[0]) == EPOCHS * 5

    def test_trl_with_a_loader_sees_what_the_feed_says(self, tmp_path: Path) -> None:
        """The script for TRL with the loader's lines, on two ranks."""
        (script,), (tokens,) = (blocks("Token ids for TRL", kind) for kind in ("python", "diff"))
        assert script.count(lines(tokens, "+")) == 1
        (change,) = blocks("TRL with a loader", "diff")
        assert script.count(lines(change, "-")) == 1
        script = script.replace(lines(change, "-"), lines(change, "+"))
        job = Job(tmp_path / "rank-0" / "cache", tmp_path, ranks=2, options={"code": script})
        names = {f"tokens.{name}": name for name in ("input_ids", "attention_mask")}
        assert train(guide, job).seen == said(job, names)
