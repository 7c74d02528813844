"""Loops that people write themselves: on one process, on the ranks of `torchrun`, and with torchdata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.loops.ranks import Job

EVERY = 2
"""Batches between two checkpoints."""


def model() -> torch.nn.Module:
    """Something that has a gradient."""
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    """What it makes of a batch."""
    return model(batch["pixels"].float().mean((1, 2))).square().mean()  # type: ignore[no-any-return]


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint that is whole when it is there."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(checkpoint))
    partial.replace(path)


def plain(job: Job) -> None:
    """A loop over `feed.loader()`; with several ranks the model is wrapped in DistributedDataParallel."""
    trained = model()
    if job.ranks > 1:
        torch.distributed.init_process_group("gloo")
        trained = DistributedDataParallel(trained)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    loader = job.feed().loader(num_workers=job.options.get("workers", 0))
    checkpoint = job.folder / "checkpoint.json"
    epoch = batches = 0
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
        loader.load_state_dict(state["loader"])
        epoch, batches = state["loader"]["epoch"], state["batches"]
        job.resumed(batches)
    for epoch in range(epoch, job.epochs):  # noqa: B020 - from where it stands
        for batch in loader:
            job.saw(epoch, batch)
            loss_of(trained, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            batches += 1
            if batches % EVERY == 0:
                if job.rank == 0:
                    save(checkpoint, {"loader": loader.state_dict(), "batches": batches})
                if job.ranks > 1:
                    torch.distributed.barrier()
    if job.rank == 0:
        save(checkpoint, {"loader": loader.state_dict(), "batches": batches})


def stateful(job: Job) -> None:
    """Torchdata's StatefulDataLoader over the parts of a feed, one for each epoch."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415 - not in every environment

    feed = job.feed()
    checkpoint = job.folder / "checkpoint.json"
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
    epoch = batches = 0
    if state:
        epoch, batches = state["epoch"], state["batches"]
        job.resumed(batches)
    for epoch in range(epoch, job.epochs):  # noqa: B020 - from where it stands
        loader = StatefulDataLoader(
            feed.dataset(), batch_sampler=feed.batch_sampler(epoch), num_workers=job.options.get("workers", 0)
        )
        if state:
            loader.load_state_dict(state["loader"])
            state = None
        for batch in loader:
            job.saw(epoch, batch)
            batches += 1
            if batches % EVERY == 0:
                save(checkpoint, {"loader": loader.state_dict(), "epoch": epoch, "batches": batches})
