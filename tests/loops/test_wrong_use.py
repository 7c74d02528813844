"""Loops that would share a feed's batches out once more: real libraries on two ranks say so, and see nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
for library in ("accelerate", "pytorch_lightning"):
    pytest.importorskip(library, reason=f"{library} is not installed")

import pytorch_lightning as lightning  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from accelerate.data_loader import prepare_data_loader  # noqa: E402
from accelerate.utils import DataLoaderConfiguration  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from tests.loops.ranks import Job, train  # noqa: E402
from tests.loops.with_lightning import Module  # noqa: E402
from tests.support.feeds import everything, images  # noqa: E402


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built dataset."""
    with everything(images(tmp_path_factory.mktemp("loops"), 12), encoders={"pixels": {"uses": "image"}}) as owner:
        owner.build()
        return Path(owner.store_path)


def own_loader(job: Job) -> DataLoader[Any]:
    """A DataLoader over the batches of this rank."""
    feed = job.feed()
    return DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(0))


def prepared(job: Job) -> None:
    """Accelerate takes every other batch of those that it is given."""
    for batch in Accelerator(cpu=True).prepare(own_loader(job)):
        job.saw(0, batch)


def dispatched(job: Job) -> None:
    """The first rank reads for all of them, and has only its own batches."""
    configured = DataLoaderConfiguration(dispatch_batches=True)
    for batch in Accelerator(cpu=True, dataloader_config=configured).prepare(own_loader(job)):
        job.saw(0, batch)


def prepared_by_hand(job: Job) -> None:
    """The function below `Accelerator.prepare`, which does not ask whether something is prepared."""
    Accelerator(cpu=True)
    for batch in prepare_data_loader(job.feed().loader()):
        job.saw(0, batch)


class Parts(Module):
    """A module with a DataLoader of its own."""

    def train_dataloader(self) -> Any:
        return own_loader(self.job)


def fitted(job: Job) -> None:
    """Lightning puts a distributed sampler into the DataLoader, unless it is told not to."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", enable_checkpointing=False, **quiet
    )
    trainer.fit(Parts(job))


@pytest.mark.parametrize("loop", [prepared, dispatched, prepared_by_hand, fitted])
def test_batches_that_are_shared_out_twice_are_refused(
    store: Path, tmp_path: Path, loop: Callable[[Job], None]
) -> None:
    """Half of the samples would never be seen: the error says who shares them out, and names `feed.loader()`."""
    ended = train(loop, Job(store, tmp_path, ranks=2), fails=True)
    assert "FeedError: the batches of a feed are shared out among 2 ranks by the feed alone" in ended.output
    assert "feed.loader()" in ended.output
    assert not any(ended.seen)
