"""Trainers of transformers and of TRL that take their batches from `feed.loader()`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import transformers
import trl

from tests.loops.plain import EVERY, loss_of, model
from tests.loops.ranks import Job


class Noted:
    """What both trainers are made of here: their batches come from the loader, and the job is told of each."""

    job: Job
    loader: Any
    accelerator: Any
    epoch = 0

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(self.loader) if self.job.options.get("prepare") else self.loader

    def training_step(self, trained: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        self.job.saw(self.epoch, {name: part for name, part in batch.items() if name != "labels"})
        return super().training_step(trained, batch, *rest, **more)  # type: ignore[misc]


class PictureTrainer(Noted, transformers.Trainer):
    """The Trainer of transformers, for a model of pictures."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return loss_of(model, inputs)


class TextTrainer(Noted, trl.SFTTrainer):
    """TRL's trainer, for a model of language: the batch needs labels, and nothing that its model does not take."""

    def get_batch_samples(self, batches: Any, *rest: Any) -> Any:
        return super().get_batch_samples(map(labelled, batches), *rest)

    def compute_loss(self, model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        tokens = {name: inputs["tokens"][name] for name in ("input_ids", "attention_mask")}
        return super().compute_loss(model, {**tokens, "labels": inputs["labels"]}, *rest, **more)


def labelled(batch: Any) -> dict[str, Any]:
    """A batch with the tokens that its model is to foretell."""
    tokens = batch["tokens"]
    return {**batch, "labels": tokens["input_ids"].masked_fill(tokens["attention_mask"] == 0, -100)}


class Notes(transformers.TrainerCallback):
    """Tells a trainer which epoch it is in, keeps the loader's state, and marks checkpoints that all ranks have."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.epoch = int(state.epoch)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            (folder / "feed.json").write_text(json.dumps(self.trainer.loader.state_dict()))
            (folder / "whole").touch()
        self.trainer.accelerator.wait_for_everyone()


def hf_trainer(job: Job) -> None:
    """`transformers.Trainer` with its own checkpoints.

    With the option `state`, the loader is also told where it stood; with `prepare`, accelerate takes it.
    """
    arguments = transformers.TrainingArguments(**_arguments(job))
    _train(job, PictureTrainer(model=model(), args=arguments, callbacks=[Notes()]))


def sft_trainer(job: Job) -> None:
    """`trl.SFTTrainer`: it wants a dataset when it is made, and takes its batches from the loader."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=384, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    with job.feed() as feed:
        rows = feed.as_hf_dataset("tokens")
    trainer = TextTrainer(
        model=transformers.LlamaForCausalLM(config),
        args=trl.SFTConfig(**_arguments(job)),
        train_dataset=rows,
        processing_class=transformers.AutoTokenizer.from_pretrained(job.store.parent / "text", local_files_only=True),
        callbacks=[Notes()],
    )
    _train(job, trainer)


def _arguments(job: Job) -> dict[str, Any]:
    return {
        "output_dir": str(job.folder),
        "num_train_epochs": job.epochs,
        "per_device_train_batch_size": job.batch_size,
        "save_steps": EVERY,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        **{name: value for name, value in job.options.items() if name not in ("prepare", "state")},
    }


def _train(job: Job, trainer: Any) -> None:
    trainer.job, trainer.loader = job, job.feed().loader()
    assert trainer.accelerator.num_processes == job.ranks
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, Notes):
            callback.trainer = trainer
    whole = [mark.parent for mark in job.folder.glob("checkpoint-*/whole")]
    found = max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)
    if found:
        job.resumed(int(found.name.split("-")[1]))
        if job.options.get("state"):
            trainer.loader.load_state_dict(json.loads((found / "feed.json").read_text()))
    trainer.train(resume_from_checkpoint=str(found) if found else None)


def guide(job: Job) -> None:
    """A script of a guide as it stands: all ranks have their checkpoints in one folder, and pictures of their own."""
    folder = job.folder / f"rank-{job.rank}"
    folder.mkdir(exist_ok=True)
    (job.folder / "out").mkdir(exist_ok=True)
    if not (folder / "out").exists():
        (folder / "out").symlink_to(job.folder / "out")
    os.chdir(folder)
    step = transformers.Trainer.training_step

    def noted(trainer: Any, trained: Any, batch: Any, *rest: Any, **more: Any) -> Any:
        # Floats count epochs: after the last batch of the first one there is 1.0.
        shown = {name: part for name, part in batch.items() if name != "labels"}
        job.saw(int(trainer.state.epoch or 0), {"sample": [], **shown})
        return step(trainer, trained, batch, *rest, **more)

    transformers.Trainer.training_step = noted
    exec(compile(job.options["code"], "guide", "exec"), {"__name__": "__main__"})
