"""Loops on accelerate's `Accelerator`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from tests.loops.plain import EVERY, loss_of, model
from tests.loops.ranks import Job


def accelerated(job: Job) -> None:
    """A loop as accelerate's examples have it; `options` are of the Accelerator, and how the loop is resumed.

    `resume` is what restores the loader: `state` (what `load_state` does by itself), `skip` (`skip_first_batches`
    alone) or `both`. Without `prepare` the loader is registered for checkpointing instead. `each_epoch` saves after
    every epoch instead of after so many batches; without `calls` nobody calls `set_epoch`.
    """
    options = dict(job.options)
    resume, prepare, calls = options.pop("resume", "state"), options.pop("prepare", True), options.pop("calls", True)
    accumulate, each_epoch = options.pop("accumulate", 1), options.pop("each_epoch", False)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=accumulate, dataloader_config=DataLoaderConfiguration(**options)
    )
    assert accelerator.num_processes == job.ranks
    loader = job.feed().loader()
    trained = model()
    trained, optimizer = accelerator.prepare(trained, torch.optim.SGD(trained.parameters(), lr=0.01))
    if prepare:
        loader = accelerator.prepare(loader)
    elif resume != "skip":
        accelerator.register_for_checkpointing(loader)
    epoch = batches = 0
    found = latest(job.folder)
    if found:
        accelerator.load_state(str(found))
        batches = int(found.name.split("-")[1])
        epoch = batches // len(loader) if resume == "skip" else loader.state_dict()["epoch"]
        job.resumed(batches)
    for epoch in range(epoch, job.epochs):  # noqa: B020 - from where it stands
        if calls:
            loader.set_epoch(epoch)
        active = loader
        if found and resume != "state":
            active = accelerator.skip_first_batches(loader, batches % len(loader))
        found = None
        for batch in active:
            with accelerator.accumulate(trained):
                job.saw(epoch, batch, synced=accelerator.sync_gradients)
                accelerator.backward(loss_of(trained, batch))
                optimizer.step()
                optimizer.zero_grad()
            batches += 1
            if batches % EVERY == 0 and not each_epoch:
                keep(accelerator, job.folder / f"checkpoint-{batches}")
        if each_epoch:
            keep(accelerator, job.folder / f"checkpoint-{batches}")


def keep(accelerator: Any, folder: Path) -> None:
    """Save a checkpoint; a mark says that it is whole on every rank."""
    accelerator.save_state(str(folder))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "whole").touch()
    accelerator.wait_for_everyone()


def latest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole."""
    found = [mark.parent for mark in folder.glob("checkpoint-*/whole")]
    return max(found, key=lambda path: int(path.name.split("-")[1])) if found else None


def prepared_by_hand(job: Job) -> None:
    """The function below `Accelerator.prepare`, which does not ask whether something is prepared: shared out twice."""
    Accelerator(cpu=True)
    for batch in prepare_data_loader(job.feed().loader()):
        job.saw(0, batch)


def prepared_parts(job: Job) -> None:
    """A DataLoader over the parts of a feed that knows its rank, prepared: shared out twice."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**job.options))
    feed = job.feed()
    for batch in accelerator.prepare(DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(0))):
        job.saw(0, batch)
