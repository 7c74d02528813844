"""Prompts as a whole pipeline makes them, by plain calls of `encode_prompt`: what stored ones are compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from precook.config.encoders import DiffusersPrompt
from precook.encode.encoder import Item
from precook.encode.prompt import PromptEncoder
from precook.encode.prompt_leaves import LeafForm, known_forms
from tests.support.pages import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

TEXTS = ("a cat", "a dog sleeps on the mat of the old house by the sea", "", "two red birds")
"""Of several lengths, the empty prompt among them."""


@dataclass(frozen=True)
class Prompt:
    """What a family's `encode_prompt` has to be told, and the names of what it returns, by their place."""

    title: str
    """The family as people call it."""
    leaves: dict[str, int]
    arguments: dict[str, Any] = field(default_factory=dict)


_ONE = {"prompt_embeds": 0}
_POOLED = {"prompt_embeds": 0, "pooled_prompt_embeds": 2}
_MASKED = {"prompt_embeds": 0, "prompt_attention_mask": 1}
_REQUIRED = {"num_images_per_prompt": 1, "do_classifier_free_guidance": True}
PROMPTS = {
    "sd": Prompt("Stable Diffusion 1 and 2", _ONE, _REQUIRED),
    "sdxl": Prompt("SDXL", _POOLED),
    "sdxl-refiner": Prompt("SDXL refiner", _POOLED),
    "sd3": Prompt("Stable Diffusion 3", _POOLED, {"prompt_2": None, "prompt_3": None}),
    "flux": Prompt("FLUX.1", {"prompt_embeds": 0, "pooled_prompt_embeds": 1, "text_ids": 2}),
    "flux2": Prompt("FLUX.2", {"prompt_embeds": 0, "text_ids": 1}),
    "flux2-klein": Prompt("FLUX.2 klein", {"prompt_embeds": 0, "text_ids": 1}),
    "qwen-image": Prompt("Qwen-Image", {"prompt_embeds": 0, "prompt_embeds_mask": 1}),
    "wan": Prompt("Wan", _ONE),
    "hunyuan-video": Prompt(
        "HunyuanVideo", {"prompt_embeds": 0, "pooled_prompt_embeds": 1, "prompt_attention_mask": 2}
    ),
    "ltx": Prompt("LTX-Video", _MASKED),
    "cogvideox": Prompt("CogVideoX", _ONE),
    "sana": Prompt("Sana", _MASKED),
    "lumina2": Prompt("Lumina 2", _MASKED),
    "chroma": Prompt("Chroma", {"prompt_embeds": 0, "text_ids": 1, "prompt_attention_mask": 2}),
    "hidream": Prompt("HiDream", {"prompt_embeds_t5": 0, "prompt_embeds_llama3": 2, "pooled_prompt_embeds": 4}),
    "pixart": Prompt("PixArt", _MASKED),
    "auraflow": Prompt("AuraFlow", _MASKED),
    "kolors": Prompt("Kolors", _POOLED),
    "z-image": Prompt("Z-Image", _ONE),
}
"""By the names of `tests.support.pipelines.FAMILIES`."""


def whole_pipeline(folder: Path) -> Any:
    """The pipeline in a folder as anybody loads it, with all its parts."""
    return diffusers.DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32, local_files_only=True)


def encode_prompt(pipeline: Any, family: str, texts: list[str], max_length: int | None = None) -> dict[str, Any]:
    """What the pipeline makes of some texts, by name; a mask that it leaves out because all is real is all ones."""
    prompt = PROMPTS[family]
    length = {} if max_length is None else {"max_sequence_length": max_length}
    with torch.inference_mode():
        values = pipeline.encode_prompt(prompt=list(texts), device=torch.device("cpu"), **prompt.arguments, **length)
    made = {name: values[place] for name, place in prompt.leaves.items()}
    if "prompt_embeds_mask" in made and made["prompt_embeds_mask"] is None:
        made["prompt_embeds_mask"] = torch.ones(made["prompt_embeds"].shape[:2], dtype=torch.int64)
    return made


def relative_difference(one: Any, other: Any) -> float:
    """How far two results lie apart, against the largest number of the second; infinite where they are not alike.

    Tensors of one shape and type, or lists of such.
    """
    if isinstance(one, list) or isinstance(other, list):
        if type(one) is not type(other) or len(one) != len(other):
            return float("inf")
        return max(relative_difference(left, right) for left, right in zip(one, other, strict=True))
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else float("inf")
    # By their bits first: a zero with a sign is not the one without.
    if torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)):
        return 0.0
    return max(float((one - other).abs().max()), 1e-45) / float(other.abs().max())


def difference_together(folder: Path) -> float:
    """How far prompts that are encoded in one batch lie from those that are encoded alone, at most."""
    encoder = PromptEncoder(DiffusersPrompt(uses="diffusers-prompt", model="unused"), folder)
    encoder.load("cpu")
    items = [Item(text=text) for text in TEXTS]
    trees: Any = encoder.encode(items)
    alone: Any = [encoder.encode([item])[0] for item in items]
    return max(
        relative_difference(tree[name], leaf)
        for tree, other in zip(trees, alone, strict=True)
        for name, leaf in other.items()
    )


# The table of docs/reference/models.md

PAGE = ROOT / "docs" / "reference" / "models.md"
BEGIN, END = "<!-- prompts: written by tools/models_page.py -->\n", "<!-- end of prompts -->\n"
HEAD = ["family", "pipeline", "kept for each text", "one by one", "together"]


def prompt_row(family: str, kind: str, apart: float) -> list[str]:
    """What the page says of a family whose prompts, encoded together, lie so far apart from the pipeline's."""
    forms = known_forms(kind, None)
    masks = {form.mask for form in forms.values()}
    leaves = [f"`{name}`{_remark(forms.get(name))}" for name in PROMPTS[family].leaves if name not in masks]
    # With room: another processor rounds otherwise, and so does this one, by where tensors lie in memory.
    bound = f"{10.0 ** math.ceil(math.log10(max(3 * apart, 1e-5))):.0e}"
    return [PROMPTS[family].title, f"`{kind}`", ", ".join(leaves), "equal", bound]


def prompt_rows() -> list[list[str]]:
    """The table as it stands on the page, without its head."""
    table = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[3:] if line]


def _remark(form: LeafForm | None) -> str:
    if form is None:
        return ""
    if form.pad_to is not None:
        return f" (of {form.pad_to} rows those before the zeros)"
    if form.mask is not None:
        return f" (of its own length; a batch adds `{form.mask}`)"
    if form.listed:
        return " (of its own length; a batch is a list)"
    return " (the same for all texts of a batch)" if form.shared else f" (with the batch as dimension {form.axis})"
