"""Loops of Lightning's `Trainer`."""

from __future__ import annotations

import logging
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from tests.loops.plain import EVERY, loss_of, model
from tests.loops.ranks import Job


class Module(lightning.LightningModule):
    """A module that makes its feed in `train_dataloader`, when there are ranks, and again whenever it is asked."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.model = model()

    def train_dataloader(self) -> Any:
        return self.job.feed().loader()

    def training_step(self, batch: Any, _: int) -> Any:
        self.job.saw(self.current_epoch, batch)
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def lightninged(job: Job) -> None:
    """`Trainer.fit`, resumed from its own checkpoints; `options` are of the Trainer.

    With `given` the loader is made before `fit`. `each_epoch` saves after every epoch instead of after so many batches.
    """
    options = dict(job.options)
    given, each_epoch = options.pop("given", False), options.pop("each_epoch", False)
    options.setdefault("max_steps", -1 if each_epoch else 10**6)  # as the guide says
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    module = Module(job)
    found = max(job.folder.glob("*.ckpt"), key=lambda path: int(path.stem), default=None)
    if found:
        job.resumed(int(found.stem))
    trainer = lightning.Trainer(
        max_epochs=job.epochs,
        accelerator="cpu",
        devices=job.ranks,
        strategy="ddp" if job.ranks > 1 else "auto",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(
                job.folder,
                filename="{step}",
                auto_insert_metric_name=False,
                **{"every_n_epochs": 1} if each_epoch else {"every_n_train_steps": EVERY},
                save_top_k=-1,
                enable_version_counter=False,
            )
        ],
        **options,
    )
    trainer.fit(module, train_dataloaders=job.feed().loader() if given else None, ckpt_path=found)


class ModuleOfParts(Module):
    """A module with a DataLoader over the parts of a feed."""

    def train_dataloader(self) -> Any:
        feed = self.job.feed()
        return DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(0))


def lightninged_parts(job: Job) -> None:
    """`Trainer.fit` over the parts of a feed, which Lightning wants to share out among ranks itself."""
    lightning.Trainer(
        accelerator="cpu", devices=job.ranks, strategy="ddp", max_epochs=1, logger=False, enable_checkpointing=False
    ).fit(ModuleOfParts(job))
