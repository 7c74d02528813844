"""Loops of diffusers' LoRA scripts, as `bench/loops.py` has them, on accelerate's `Accelerator`."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from bench.loops import LOOPS

from tests.loops.plain import EVERY
from tests.loops.ranks import Job

SIDE = 64


def diffused(job: Job) -> None:
    """A script's loop: everything is prepared, the first process saves, and the epoch follows from the step."""
    (kind,) = [loop for loop in LOOPS if loop.family == job.options["family"]]
    accelerator = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    script = kind(Path(job.options["model"]), SIDE)
    trained = script.adapted()
    parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    trained, optimizer, loader = accelerator.prepare(trained, torch.optim.AdamW(parameters), job.feed().loader())
    step = epoch = 0
    checkpoints = sorted(job.folder.glob("checkpoint-*"), key=_step)
    if checkpoints:
        accelerator.load_state(str(checkpoints[-1]))
        step = _step(checkpoints[-1])
        epoch = step // len(loader)
        job.resumed(step)
    for epoch in range(epoch, job.epochs):  # noqa: B020 - from where it stands
        for batch in loader:
            with accelerator.accumulate(trained):
                job.saw(epoch, batch)
                accelerator.backward(script.loss(trained, script.take(batch)))
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            if step % EVERY == 0 and accelerator.is_main_process:
                accelerator.save_state(str(job.folder / f"checkpoint-{step}"))


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])
