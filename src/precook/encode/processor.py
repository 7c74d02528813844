"""Processors of transformers: what their image processor makes of a picture.

An entry of `transformers-processor` is a dict of what the processor returned for that picture alone, under its names:
torch tensors (`pixel_values` and its friends), and plain values where it returns such. If everything it returns for one
picture has a batch dimension of 1, that is removed, and stacking entries gives the batch (CLIP, SigLIP: channels x
height x width). If not, all of it stays, and joining entries end to end gives the batch: the `pixel_values` of Qwen2-VL
are the patches of all pictures in a row, and `image_grid_thw` has one line for each.

The same config runs in two versions with different pixels: on torchvision where that is installed, on PIL where not.
`backend` tells the one that belongs into the recipe, and any other is refused. Both run on the CPU. A `dtype` rounds
what the processor has made, as `BatchFeature.to(dtype)` does; whole numbers stay as they are.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from precook.config.encoders import TransformersProcessor
from precook.encode.encoder import BaseEncoder, Item
from precook.encode.torch_tools import LOCAL, library, loading
from precook.errors import EncodeError, printable
from precook.plan.wanted import Input
from precook.store.tree import Tree

_OURS = ("images", "return_tensors")
_PROBE = 224
"""Height and width of the picture that a processor is tried with: a multiple of every usual patch."""


def backend() -> str:
    """Which version of a processor runs here: torchvision or pil."""
    return "torchvision" if importlib.util.find_spec("torchvision") else "pil"


def load_image_processor(folder: Path) -> Any:
    """The image processor in a folder, in the version that recipes say."""
    wanted = backend()
    transformers = library("transformers")
    with loading("processor", folder):
        processor = transformers.AutoImageProcessor.from_pretrained(
            folder, **LOCAL, trust_remote_code=False, **_choice(wanted)
        )
    runs_on = _backend_of(processor)
    if runs_on != wanted:
        message = f"{printable(folder)}: {type(processor).__name__} runs on {runs_on}, the recipe says {wanted}"
        raise EncodeError(message, hint="choose a model whose processor has a version for that")
    return processor


class ProcessorEncoder(BaseEncoder):
    """Keeps what a processor makes of each picture."""

    input: Input = "image"
    gives_away = True

    def __init__(self, section: TransformersProcessor, folder: Path) -> None:
        self._section = section
        self._folder = folder
        self._processor: Any = None
        self._batched = False
        """Whether everything has a batch dimension."""

    def load(self, device: str) -> None:  # noqa: ARG002 - on another device it would make other pixels
        """Load the processor and try it with a picture; options that it does not take are refused here."""
        torch = library("torch")
        refused = [name for name in _OURS if name in self._section.options]
        if refused:
            raise EncodeError(f"options: {refused[0]} is not yours to set", hint="remove it")
        processor = load_image_processor(self._folder)
        with loading("processor with these options", self._folder):
            outputs = self._call(processor, Image.new("RGB", (_PROBE, _PROBE)))
        self._batched = all(len(value) == 1 for value in outputs.values() if _has_items(value, torch))
        self._processor = processor

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A dict of what the processor returned, for each picture."""
        return [self._encode(item) for item in batch]

    def unload(self) -> None:
        """Let go of the processor."""
        self._processor = None

    def _encode(self, item: Item) -> dict[str, Any]:
        if self._processor is None:
            raise EncodeError("this encoder is not loaded", hint="call load(device) first")
        assert item.image is not None, "an image encoder gets items with an image"
        # As a picture: of an array three pixels high the processor would have to guess which axis is the colours.
        outputs = self._call(self._processor, Image.fromarray(item.image))
        return {name: self._kept(name, value) for name, value in outputs.items()}

    def _call(self, processor: Any, image: Image.Image) -> dict[str, Any]:
        return dict(processor(images=image, return_tensors="pt", **self._section.options))

    def _kept(self, name: str, value: Any) -> Any:
        torch = library("torch")
        if self._batched and _has_items(value, torch):
            if len(value) != 1:
                message = f"the processor made {len(value)} {name} of one picture"
                raise EncodeError(message, hint="turn off options that cut pictures into several")
            value = value[0]
        if isinstance(value, torch.Tensor):
            rounded = self._section.dtype != "auto" and value.is_floating_point()
            value = value.to(getattr(torch, self._section.dtype)) if rounded else value
            return value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return value.item() if isinstance(value, np.generic) else value


def _has_items(value: object, torch: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, (torch.Tensor, np.ndarray)) and value.ndim > 0)


def _choice(wanted: str) -> dict[str, Any]:
    """How `from_pretrained` is told the version: transformers 4 knew the two as fast and slow."""
    named = importlib.util.find_spec("transformers.image_processing_backends") is not None
    return {"backend": wanted} if named else {"use_fast": wanted == "torchvision"}


def _backend_of(processor: Any) -> str:
    """Which version a processor is; before transformers 5 its name said it."""
    backend = getattr(processor, "backend", None)
    if isinstance(backend, str):
        return backend
    return "torchvision" if type(processor).__name__.endswith("Fast") else "pil"
