"""Vision towers of transformers: what a model such as CLIPVisionModel makes of a picture.

An entry of `transformers-vision` is a dict: `hidden`, the hidden states of the layers that are asked for (tokens x
width; several layers: layers x tokens x width), `pooled` where the model has a pooled output, and `image_embeds` where
it projects that, as CLIPVisionModelWithProjection does. The folder has the model's weights and its processor, which
scales and normalises each picture; it runs on PIL or on torchvision, as the recipe says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from precook.config.encoders import TransformersVision
from precook.encode.encoder import BaseEncoder, Item
from precook.encode.offload import place_model
from precook.encode.processor import load_image_processor
from precook.encode.torch_tools import (
    LOCAL,
    check_complete,
    check_weights,
    library,
    load_weights,
    loading,
    release_memory,
    torch_dtype,
)
from precook.errors import EncodeError, printable
from precook.plan.wanted import Input
from precook.store.tree import Tree

_PIXELS = 4
"""Dimensions of what a processor makes of pictures of one size: pictures, channels, height and width."""


class VisionEncoder(BaseEncoder):
    """Keeps what a vision tower makes of each picture."""

    input: Input = "image"
    gives_away = True

    def __init__(self, section: TransformersVision, folder: Path) -> None:
        self._section = section
        self._folder = folder
        self._device = "cpu"
        self._model: Any = None
        self._processor: Any = None

    def load(self, device: str) -> None:
        """Load the tower and its processor."""
        check_weights(self._folder)
        transformers = library("transformers")
        processor = load_image_processor(self._folder)
        with loading("model", self._folder):
            config = transformers.AutoConfig.from_pretrained(self._folder, **LOCAL, trust_remote_code=False)
            # The library's choice: a config file could name code from the hub.
            config._attn_implementation = None  # noqa: SLF001
            kind = _tower(transformers, config, self._folder)
            model, missing = load_weights(kind, self._folder, config, torch_dtype(self._section.dtype))
        check_complete(self._folder, missing)
        self._model = place_model(model, device, self._section.device_memory)
        self._device, self._processor = device, processor

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A dict of hidden states and pooled outputs, for each picture."""
        if self._model is None:
            raise EncodeError("this encoder is not loaded", hint="call load(device) first")
        torch, pictures = library("torch"), []
        for item in batch:
            assert item.image is not None, "an image encoder gets items with an image"
            pictures.append(Image.fromarray(item.image))
        pixels = self._processor(images=pictures, return_tensors="pt").get("pixel_values")
        if not isinstance(pixels, torch.Tensor) or pixels.ndim != _PIXELS or len(pixels) != len(batch):
            hint = "use a model whose processor scales every picture to one size, such as CLIP, SigLIP or DINOv2"
            raise EncodeError(f"{printable(self._folder)}: its processor makes patches, not pictures", hint=hint)
        with torch.inference_mode():
            made = self._model(pixels.to(self._device, self._model.dtype), output_hidden_states=True)
            leaves = {"hidden": self._layers(torch, made.hidden_states)}
            if self._section.pooled:
                named = {"pooled": "pooler_output", "image_embeds": "image_embeds"}
                found = {name: getattr(made, field, None) for name, field in named.items()}
                leaves |= {name: value for name, value in found.items() if value is not None}
            kept = {name: value.to("cpu", torch_dtype(self._section.dtype)) for name, value in leaves.items()}
        # Each with memory of its own, and outside of inference mode: autograd takes no tensor that was made in it.
        return [{name: value[number].clone() for name, value in kept.items()} for number in range(len(batch))]

    def unload(self) -> None:
        """Let go of the model and of its memory on the device."""
        if self._model is None:
            return
        self._model = self._processor = None
        release_memory()

    def _layers(self, torch: Any, states: tuple[Any, ...]) -> Any:
        """The hidden states that are asked for."""
        wanted = range(len(states)) if self._section.layers == "all" else self._section.layers
        for layer in wanted:
            if not -len(states) <= layer < len(states):
                hint = f"layers go from 0 (the embeddings) to {len(states) - 1}, or from -{len(states)} to -1"
                raise EncodeError(f"{printable(self._folder)}: there is no layer {layer}", hint=hint)
        chosen = [states[layer] for layer in wanted]
        return chosen[0] if len(chosen) == 1 else torch.stack(chosen, dim=1)


def _tower(transformers: Any, config: Any, folder: Path) -> Any:
    """The class to load: the one that the config names."""
    for name in config.architectures or ():
        kind = getattr(transformers, name, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            continue
        if hasattr(kind, "get_text_features"):
            part = f"{name.removesuffix('Model')}VisionModel"
            hint = f"save its vision part alone: {part}.from_pretrained(…).save_pretrained(…)"
            raise EncodeError(f"{printable(folder)}: {printable(name)} encodes texts and pictures", hint=hint)
        if getattr(kind, "main_input_name", None) == "pixel_values":
            return kind
    hint = "name the folder of a vision model, such as CLIPVisionModel, with its preprocessor_config.json"
    named = ", ".join(map(printable, config.architectures or ())) or printable(config.model_type)
    raise EncodeError(f"{printable(folder)}: {named} takes no pictures alone", hint=hint)
