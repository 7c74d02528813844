"""Small real datasets and models for tests of plans."""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

import precook
from precook.fs.trust import file_system_time

OWN_ENCODER = """\
class Own:
    input = 'text'
    def identity(self): return 1
    def load(self, device): pass
    def encode(self, batch): return [item.text for item in batch]
    def unload(self): pass
"""
"""The source of an encoder of somebody's own."""


class Words:
    """A user's text encoder."""

    input = "text"

    def __init__(self, version: object = 1) -> None:
        self.version = version

    def identity(self) -> object:
        return {"version": self.version}

    def load(self, device: str) -> None:
        pass

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return [len(item.text or "") for item in batch]

    def unload(self) -> None:
        pass


class Pixels(Words):
    """A user's encoder of pictures, which keeps them as they are."""

    input = "image"

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        return [item.image for item in batch]


class Watched:
    """A user's encoder that keeps count of what it is asked to do; `make` says what comes of an item."""

    def __init__(
        self,
        input_: Any = "text",
        make: Callable[[precook.Item], Any] | None = None,
        *,
        identity: object = 1,
        on_batch: Callable[[list[precook.Item]], object] | None = None,
    ) -> None:
        self.input = input_
        self.make = make or content
        self.on_batch = on_batch
        self.identified = identity
        self.loads = self.unloads = 0
        self.batches: list[list[precook.Item]] = []

    @property
    def items(self) -> list[precook.Item]:
        """Everything that was to be encoded, each time that it was."""
        return [item for batch in self.batches for item in batch]

    def identity(self) -> object:
        return self.identified

    def load(self, device: str) -> None:
        self.loads += 1

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        self.batches.append(batch)
        if self.on_batch is not None:
            self.on_batch(batch)
        return [self.make(item) for item in batch]

    def unload(self) -> None:
        self.unloads += 1


class Gated:
    """A user's encoder for other processes: it logs each item, says so on stdout, and goes on at a line on stdin."""

    def __init__(self, input: str, log: str) -> None:  # noqa: A002 - the protocol's word
        self.input = input
        self.log = log

    def identity(self) -> object:
        return {"input": self.input}

    def load(self, device: str) -> None:
        pass

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        made = [content(item) for item in batch]
        with open(self.log, "ab", buffering=0) as log:
            log.write(b"".join(precook.digest(one.tobytes()).hex.encode() + b"\n" for one in made))
        print("batch", len(batch), flush=True)
        sys.stdin.readline()  # at the end of the input, too, it goes on
        return made

    def unload(self) -> None:
        pass


def content(item: precook.Item) -> Any:
    """The item itself, as an array: so that an entry tells what it was made of."""
    if item.text is not None:
        return np.frombuffer(item.text.encode(), np.uint8)
    return item.image if item.image is not None else item.mask


def picture(path: Path, seed: int, size: tuple[int, int] = (96, 64), **options: Any) -> Path:
    """A picture of random colours, different for every seed."""
    rng = random.Random(seed)
    width, height = size
    small = np.array([[[rng.randrange(256) for _ in range(3)] for _ in range(4)] for _ in range(4)], np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST).save(path, **options)
    return path


def dataset(folder: Path, count: int = 3, *, lines: int = 1) -> Path:
    """Pictures p0.png, p1.png, … with captions beside them."""
    for number in range(count):
        picture(folder / f"p{number}.png", number)
        caption = [f"picture {number}, line {line}" for line in range(lines)]
        (folder / f"p{number}.txt").write_text("\n".join(caption) + "\n")
    return folder


def vae_folder(folder: Path, seed: int = 0) -> Path:
    """A model folder as diffusers writes it: a config and safetensors weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"_class_name": "AutoencoderKL", "latent_channels": 4, "block_out_channels": [32, 64]}
    (folder / "config.json").write_text(json.dumps(config))
    weights = np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)
    save_file({"encoder.conv_in.weight": weights}, folder / "diffusion_pytorch_model.safetensors")
    return folder


def text_folder(folder: Path, vocabulary: dict[str, int] | None = None, seed: int = 0) -> Path:
    """A model folder as transformers writes it: config, weights and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "clip_text_model", "hidden_size": 8}))
    weights = np.random.default_rng(seed).normal(size=(8, 8)).astype(np.float32)
    save_file({"embed.weight": weights}, folder / "model.safetensors")
    model = {"type": "WordLevel", "vocab": vocabulary or {"a": 0, "cat": 1, "[UNK]": 2}, "unk_token": "[UNK]"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


def project(base: Path, **changes: Any) -> precook.Project:
    """A project over `base/data` with a picture encoder and a text encoder; top-level sections can be replaced."""
    sections: dict[str, Any] = {
        "dataset": "test",
        "concepts": [{"name": "things", "path": "data"}],
        "image": {"resolutions": [64], "step": 16},
        "encoders": {"pixels": {"uses": "image"}, "words": Words()},
        **changes,
    }
    return precook.Project(base=base, **sections)


def build(project: precook.Project) -> Counter[str]:
    """Store something for every missing entry and freeze the dataset; how many entries of each encoder that took."""
    plan = project.plan()
    made: Counter[str] = Counter()
    with project.store.writer() as writer:
        for entry in plan.missing:
            writer.put(entry.key, {"x": np.arange(4)}, recipe=plan.encoders[entry.encoder].wants.encoding.recipe)
            made[entry.encoder] += 1
    project.plan().freeze()
    return made


def missing(plan: precook.Plan) -> Counter[str]:
    """How many entries of each encoder are missing."""
    return Counter(entry.encoder for entry in plan.missing)


def reasons(plan: precook.Plan) -> Counter[tuple[str, str]]:
    """Why, by encoder."""
    return Counter(
        (entry.encoder, why.reason.value) for entry, why in zip(plan.missing, plan.missing.reasons(), strict=True)
    )


def keep_times(path: Path, content: bytes) -> None:
    """Replace a file's content in place and give it its old times back, as `cp -p` would."""
    status = os.stat(path)
    # Its change time is another one only when the file system's clock has moved.
    while file_system_time(path.parent) <= status.st_ctime_ns:
        pass
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
