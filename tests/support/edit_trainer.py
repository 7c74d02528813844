"""A stand-in for qwen-image-finetune: what its dataset, its cache step and its collation were seen to do.

The dataset gives the manager every call that the real one does, in its order; `cache` and `train` are the two
processes. Encoders are sums over pixels and letters, so that everything a result depends on shows in it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

HASHES = {
    "image_latents": "image_hash",
    "control_latents": "controls_sum_hash",
    "prompt_embeds": "prompt_hash",
    "prompt_embeds_mask": "prompt_hash",
    "empty_prompt_embeds": "prompt_hash",
    "empty_prompt_embeds_mask": "prompt_hash",
}
"""Which hash the trainer names each embedding by."""


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class EditDataset:
    """Its ImageDataset: samples of a target, control pictures and a prompt."""

    def __init__(self, manager: Any, samples: list[dict[str, Any]], *, size: int = 32, dropout: float = 0.0) -> None:
        self.samples = samples
        self.size = size
        self.dropped = dropout > 0
        self.cache_manager = manager
        self.cache_exists = manager.exist(manager.store.path)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        data = dict(self.samples[index])
        data["file_hashes"] = self._file_hashes(data)
        for name in ("image", "control"):
            data[name] = self._pixels(data[name])
        if "controls" in data:
            data["controls"] = [self._pixels(path) for path in data["controls"]]
        data["cached"] = False
        if self.cache_exists:
            data = self.cache_manager.load_cache(data, self.dropped, ["empty_prompt_embeds", "prompt_embeds_mask"])
            data["cached"] = True
        controls = data.pop("controls", [])
        for number, control in enumerate(controls, 1):
            data[f"control_{number}"] = control
        data["n_controls"] = len(controls)
        return data

    def _pixels(self, path: Path) -> torch.Tensor:
        with Image.open(path) as picture:
            small = picture.convert("RGB").resize((self.size, self.size))
        return torch.from_numpy(np.asarray(small, np.float32) / 255).permute(2, 0, 1)

    def _file_hashes(self, data: dict[str, Any]) -> dict[str, str]:
        get_hash = self.cache_manager.get_hash
        image, control, prompt = get_hash(data["image"]), get_hash(data["control"]), md5(data["prompt"])
        further = [get_hash(path) for path in data.get("controls", ())]
        return {
            "image_hash": image,
            "control_hash": control,
            "prompt_hash": prompt,
            "empty_prompt_hash": md5("empty"),
            "control_prompt_hash": get_hash(data["control"], data["prompt"]),
            **{f"control_{number}_hash": one for number, one in enumerate(further, 1)},
            "controls_sum_hash": "".join([control, *further]),
            "main_hash": image + control + prompt,
        }


class EditEncoders:
    """Its VAE and its text encoder, which sees the control picture; both count what they are asked for."""

    def __init__(self, vae: float = 1.0) -> None:
        self.vae = vae
        self.asked: Counter[str] = Counter()

    def latents(self, pixels: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([(self.vae * one).unfold(1, 8, 8).unfold(2, 8, 8).mean((3, 4)).flatten(1).T for one in pixels])

    def prompt(self, prompt: str, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        letters = torch.tensor([ord(letter) for letter in f"<{prompt}>"], dtype=torch.bfloat16)
        return torch.stack([letters, letters * 0 + pixels.mean()], 1), torch.ones(len(letters), dtype=torch.int64)

    def all(self, sample: dict[str, Any]) -> dict[str, torch.Tensor]:
        controls = [sample["control"], *(sample[f"control_{number}"] for number in range(1, sample["n_controls"] + 1))]
        embeds, mask = self.prompt(sample["prompt"], sample["control"])
        empty, empty_mask = self.prompt("", sample["control"])
        return {
            "image_latents": self.latents([sample["image"]]),
            "control_latents": self.latents(controls),
            "prompt_embeds": embeds,
            "prompt_embeds_mask": mask,
            "empty_prompt_embeds": empty,
            "empty_prompt_embeds_mask": empty_mask,
        }

    def functions(self) -> dict[Any, Any]:
        """For `cache_dataset`: each encoder on its own."""

        def made(name: str, *types: str) -> Any:
            def encode(samples: list[Any]) -> list[Any]:
                self.asked[name] += len(samples)
                results = [self.all(sample) for sample in samples]
                if len(types) == 1:
                    return [result[types[0]] for result in results]
                return [tuple(result[one.removeprefix("empty_")] for one in types) for result in results]

            return encode

        groups: dict[str, tuple[str, ...]] = {
            "image": ("image_latents",),
            "control": ("control_latents",),
            "prompt": ("prompt_embeds", "prompt_embeds_mask"),
            "empty": ("empty_prompt_embeds", "empty_prompt_embeds_mask"),
        }
        return {types: made(name, *types) for name, types in groups.items()}


def cache(dataset: EditDataset, encoders: EditEncoders) -> None:
    """Its cache step: everything is encoded, whatever is cached, and saved from batches of one."""
    for sample in (dataset[row] for row in range(len(dataset))):
        hashes = {name: [value] for name, value in sample["file_hashes"].items()}
        dataset.cache_manager.save_cache_embedding(encoders.all(sample), HASHES, hashes)


def expected(encoders: EditEncoders, sample: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What training is to read of a sample: what the trainer's own files hold of it alone."""
    return {name: tensor.half() for name, tensor in encoders.all(sample).items() if not name.startswith("empty_")}


def write_old_cache(folder: Path, dataset: EditDataset, encoders: EditEncoders) -> Path:
    """What its own manager leaves in a folder."""
    (folder / "metadata").mkdir(parents=True)
    for sample in (dataset[row] for row in range(len(dataset))):
        hashes = sample["file_hashes"]
        for name, tensor in encoders.all(sample).items():
            (folder / name).mkdir(exist_ok=True)
            torch.save(tensor.half(), folder / name / f"{hashes[HASHES[name]]}.pt")
        listed = {"version": "2.0", **{name: hashes[kind] for name, kind in HASHES.items()}}
        (folder / "metadata" / f"{hashes['main_hash']}.json").write_text(json.dumps(listed))
    return folder
