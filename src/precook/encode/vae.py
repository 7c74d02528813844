"""Latents of a VAE of diffusers.

Any VAE that diffusers can load and that takes pictures: the class that the folder's config.json names. One that takes
videos gets a video of one frame, and the frame's dimension is taken out of what it returns.

`posterior: sample` draws its noise on the CPU, in the model's dtype, from a generator that is seeded with the picture
as it was cut: the first eight bytes, little-endian, of BLAKE3 in the context `precook noise 1` over the height and the
width (four bytes each, little-endian) and the RGB bytes row by row. So the noise is the same in any batch and for any
device, and each picture, crop and size has its own.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precook.config.encoders import DiffusersVae
from precook.encode.encoder import BaseEncoder, Item
from precook.encode.torch_tools import (
    WEIGHTS,
    Arrival,
    check_complete,
    check_weights,
    first_line,
    library,
    loading,
    move_to_device,
    read_config,
    send,
    torch_dtype,
)
from precook.errors import EncodeError, printable
from precook.identity.digest import derived_digest
from precook.plan.wanted import Input
from precook.store.tree import Tree
from precook.values import Pixels

_NOISE_CONTEXT = "precook noise 1"
_LEVELS = ("encoder_block_out_channels", "down_block_out_channels", "block_out_channels", "dim_mult", "ch_mult")
"""Fields of configs with one number for each level of the encoder; the size is halved between two levels."""
_PROBE = 2
"""Latent height and width of the picture that a VAE is tried with."""
_FAILURES = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a model raises that was not made for what it is given."""


class VaeEncoder(BaseEncoder):
    """A tensor C x h x w for each picture, or with `posterior: moments` a dict of two, `mean` and `logvar`.

    Tensors are on the CPU, in the settings' dtype, and each has its storage for itself. `scaled` applies the model's
    shift and scaling to whatever is kept: moments are those of the scaled latents.
    """

    input: Input = "image"
    gives_away = True
    can_stage = True

    def __init__(self, section: DiffusersVae, folder: Path) -> None:
        self._section = section
        self._folder = folder
        self._vae: Vae | None = None
        self._scale: Scale | None = None

    def load(self, device: str) -> None:
        """Load the model and try it with a small picture; whatever the settings ask and it cannot do is refused."""
        self.unload()
        section = self._section
        kind = _vae_class(self._folder)
        check_weights(self._folder)
        with loading("VAE", self._folder):
            model, info = kind.from_pretrained(self._folder, torch_dtype=torch_dtype(section.dtype), **WEIGHTS)
        check_complete(self._folder, info["missing_keys"])
        model = model.eval()
        for option in ("tiling", "slicing"):
            if getattr(section, option):
                _enable(model, option)
        vae = Vae.of(move_to_device(model, device), device, section.dtype)
        posterior = vae.probe()
        if section.posterior != "mean" and posterior.logvar is None:
            hint = "set posterior to mean"
            raise EncodeError(f"{vae.name} has no distribution, so no posterior: {section.posterior}", hint=hint)
        if section.scaled:
            with loading("VAE", self._folder):
                self._scale = Scale.of(model, posterior.mean)
        self._vae = vae

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A tree for each item; all pictures of a batch have the same size."""
        if not batch and self._vae is not None:
            return []
        staged = self.stage(batch)
        staged.launch()
        return [_own(tree) for tree in staged.land()]

    def stage(self, batch: list[Item]) -> StagedPictures:
        """A batch of pictures as the model takes it, on its device."""
        if self._vae is None:
            raise EncodeError("this VAE is not loaded", hint="call load before encode")
        return StagedPictures(self._section, self._vae, self._scale, _pictures(batch))

    def unload(self) -> None:
        """Free the model and the memory of its device."""
        if self._vae is None:
            return
        on_cuda = self._vae.device.startswith("cuda")
        self._vae = self._scale = None
        gc.collect()  # an error caught meanwhile may hold frames, and they the model or its activations
        if on_cuda:
            library("torch").cuda.empty_cache()


class StagedPictures:
    """A batch of pictures on its way through a VAE; the trees it gives share the batch's memory."""

    def __init__(self, section: DiffusersVae, vae: Vae, scale: Scale | None, pictures: list[Pixels]) -> None:
        vae.check_size(*pictures[0].shape[:2])
        self._section = section
        self._vae = vae
        self._scale = scale
        # Bytes go over the bus, a quarter of what floats would be.
        self._pixels = send(pictures, vae.device)
        self._seeds = [_seed(picture) for picture in pictures] if section.posterior == "sample" else []
        self._names: list[str] = []
        self._arrival: Arrival | None = None

    def launch(self) -> None:
        """Begin to encode."""
        with library("torch").inference_mode():
            results = self._results(self._vae.posterior(self._pixels))
            self._pixels = None
            self._names = list(results)
            self._arrival = Arrival(list(results.values()), torch_dtype(self._section.dtype))

    def land(self) -> list[Tree]:
        """A tree for each picture."""
        assert self._arrival is not None, "launched before"
        rows = zip(*self._arrival.wait(), strict=True)
        if self._section.posterior != "moments":
            return [latent for (latent,) in rows]
        return [dict(zip(self._names, row, strict=True)) for row in rows]

    def _results(self, posterior: Posterior) -> dict[str, Any]:
        """What is kept of a batch, one row for each picture."""
        results = {"latent": posterior.mean}
        if self._section.posterior == "sample":
            results = {"latent": posterior.draw(self._seeds)}
        elif self._section.posterior == "moments":
            results = {"mean": posterior.mean, "logvar": posterior.logvar}
        if self._scale is not None:
            results = {name: self._scale.apply(name, result) for name, result in results.items()}
        return results


@dataclass(frozen=True, slots=True)
class Posterior:
    """What a VAE says about a batch: N x C x h x w each, on its device; no `logvar` where it gives latents at once."""

    mean: Any
    logvar: Any

    def draw(self, seeds: Sequence[int]) -> Any:
        """A latent drawn for each picture, whose noise its seed decides."""
        torch = library("torch")
        shape, dtype = self.mean.shape[1:], self.mean.dtype
        noise = torch.stack(
            [torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) for seed in seeds]
        )
        if self.mean.is_cuda:
            noise = noise.pin_memory()
        return self.mean + torch.exp(0.5 * self.logvar) * noise.to(self.mean.device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Vae:
    """A model of diffusers on its device, and what its config says about pictures."""

    model: Any
    device: str
    dtype: str
    factor: int
    """How many pixels one latent stands for, along each side."""
    video: bool
    """It takes and gives a dimension of frames."""

    @classmethod
    def of(cls, model: Any, device: str, dtype: str) -> Vae:
        """A loaded model, asked for its factor and whether it takes videos."""
        conv3d = library("torch").nn.Conv3d
        encoder = getattr(model, "encoder", model)  # a decoder may smooth videos although the encoder takes pictures
        video = any(isinstance(module, conv3d) for module in encoder.modules())
        return cls(model, device, dtype, _factor(model), video)

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.model).__name__

    def probe(self) -> Posterior:
        """The posterior of a small black picture: a model that is no VAE for pictures shows it here."""
        torch = library("torch")
        side = _PROBE * self.factor
        try:
            with torch.inference_mode():
                return self.posterior(send([np.zeros((side, side, 3), np.uint8)], self.device))
        except torch.cuda.OutOfMemoryError:
            raise
        except _FAILURES as error:
            hint = "name the folder of a VAE for pictures, or for videos of which one frame can be encoded"
            message = f"{self.name} does not encode a picture of {side} x {side} pixels: {first_line(error)}"
            raise EncodeError(message, hint=hint) from error

    def check_size(self, height: int, width: int) -> None:
        """Refuse pictures of a size that the model cannot take."""
        if height % self.factor or width % self.factor:
            hint = f"set image.step to a multiple of {self.factor}, and exact resolutions to multiples of it"
            message = f"a picture of {width} x {height} pixels: {self.name} takes multiples of {self.factor}"
            raise EncodeError(message, hint=hint)

    def posterior(self, pixels: Any) -> Posterior:
        """What the model says about pictures: bytes on its device, N x H x W x 3."""
        torch = library("torch")
        count, height, width, _ = pixels.shape
        # From -1 to 1 and N x 3 x H x W, in the arithmetic of diffusers' own image processor.
        levels = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        inputs = levels.mul_(2).sub_(1).to(torch_dtype(self.dtype))
        output = self.model.encode(inputs.unsqueeze(2) if self.video else inputs)
        size = (count, height // self.factor, width // self.factor)
        mean, logvar = _moments(output, self.name)
        return Posterior(self._latents(mean, size), None if logvar is None else self._latents(logvar, size))

    def _latents(self, result: Any, size: tuple[int, int, int]) -> Any:
        """A result without its frame dimension, N x C x h x w."""
        count, height, width = size
        shape = tuple(result.shape)
        expected = (count, shape[1], 1, height, width) if self.video else (count, shape[1], height, width)
        if shape != expected:
            hint = f"report it: the factor {self.factor} comes from the model's config"
            raise EncodeError(f"{self.name} gave latents of shape {shape} instead of {expected}", hint=hint)
        return result.squeeze(2) if self.video else result


@dataclass(frozen=True, slots=True)
class Scale:
    """(z - shift) * factor: tensors of float32 on the model's device, one number for each channel or for all."""

    shift: Any
    factor: Any

    @classmethod
    def of(cls, model: Any, latents: Any) -> Scale:
        """What the model's config says, or its buffers, for latents of that many channels."""
        torch = library("torch")
        name, config, buffers = type(model).__name__, model.config, dict(model.named_buffers())
        mean, std = (config.get(key, buffers.get(key)) for key in ("latents_mean", "latents_std"))
        shift, factor = config.get("shift_factor"), config.get("scaling_factor")
        hint = "set scaled to false, and scale in training as the model's pipeline does"

        def channels(numbers: Any) -> Any:
            column = torch.as_tensor(numbers, dtype=torch.float32, device=latents.device).reshape(-1, 1, 1)
            if len(column) not in {1, latents.shape[1]}:
                message = f"{name} has latents of {latents.shape[1]} channels, and its config scales {len(column)}"
                raise EncodeError(message, hint=hint)
            return column

        if mean is not None and std is not None and not shift:
            return cls(channels(mean), channels(1.0 if factor is None else factor) / channels(std))
        if mean is None and std is None and factor is not None:
            return cls(channels(shift or 0.0), channels(factor))
        raise EncodeError(f"the config of {name} does not say how its latents are scaled", hint=hint)

    def apply(self, name: str, result: Any) -> Any:
        """The result scaled; a logvar moves by the square of the factor."""
        exact = result.float()
        return exact + 2 * self.factor.log() if name == "logvar" else (exact - self.shift) * self.factor


def _vae_class(folder: Path) -> Any:
    """The class of diffusers that the folder's config names."""
    diffusers = library("diffusers")
    library("torch")
    if not (folder / "config.json").exists() and (folder / "model_index.json").exists():
        raise EncodeError(f"{printable(folder)}: a whole pipeline, not a VAE", hint="set subfolder to vae")
    name = read_config(folder).get("_class_name")
    if not isinstance(name, str):
        hint = "name the folder of a VAE in the format of diffusers"
        raise EncodeError(f"{printable(folder / 'config.json')}: no _class_name", hint=hint)
    try:
        kind = getattr(diffusers, name, None)
    except (ImportError, RuntimeError) as error:
        hint = "install what is missing, or pip install -U 'precook[diffusers]'"
        raise EncodeError(f"diffusers cannot import {printable(name)}: {first_line(error)}", hint=hint) from error
    if kind is None:
        hint = "pip install -U diffusers, or name the folder of another VAE"
        raise EncodeError(f"diffusers {diffusers.__version__} has no {printable(name)}", hint=hint)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin) and hasattr(kind, "encode")):
        hint = "name the folder of one, such as AutoencoderKL"
        raise EncodeError(f"{printable(folder)}: {printable(name)} is not a VAE", hint=hint)
    return kind


def _factor(model: Any) -> int:
    """How much smaller than its picture a latent is."""
    factor = vars(model).get("spatial_compression_ratio") or model.config.get("spatial_compression_ratio")
    levels = next((model.config[name] for name in _LEVELS if model.config.get(name)), None)
    if factor is None and levels is not None:
        factor = 2 ** (len(levels) - 1)
    if type(factor) is not int or factor < 1:
        message = f"the config of {type(model).__name__} does not say how much smaller its latents are"
        raise EncodeError(message, hint="name the folder of a VAE for pictures")
    return factor


def _enable(model: Any, option: str) -> None:
    """Turn on an option of a model that has it."""
    try:
        getattr(model, f"enable_{option}")()
    except (AttributeError, NotImplementedError) as error:
        raise EncodeError(f"{type(model).__name__} has no {option}", hint=f"set {option} to false") from error


def _moments(output: Any, name: str) -> tuple[Any, Any | None]:
    """The mean and, where there is one, the logarithm of the variance in what `encode` returned."""
    distribution = getattr(output, "latent_dist", None)
    if distribution is not None:
        return distribution.mode(), getattr(distribution, "logvar", None)
    for field in ("latents", "latent"):
        if getattr(output, field, None) is not None:
            return getattr(output, field), None
    hint = "name the folder of a VAE for pictures"
    raise EncodeError(f"encode of {name} returned no latents but {type(output).__name__}", hint=hint)


def _pictures(batch: list[Item]) -> list[Pixels]:
    """The pictures of a batch, each H x W x 3."""
    pictures = [item.image for item in batch if item.image is not None]
    shapes = sorted({picture.shape for picture in pictures})
    right = len(pictures) == len(batch) and all(picture.dtype == np.uint8 for picture in pictures)
    if not right or len(shapes) != 1 or len(shapes[0]) != 3 or shapes[0][2] != 3:  # noqa: PLR2004 - RGB
        hint = "give each batch pictures of one size"
        raise EncodeError(f"a batch is pictures of uint8 and one shape (height, width, 3), not {shapes}", hint=hint)
    return pictures


def _seed(picture: Pixels) -> int:
    """What decides a picture's noise, as the top of this module says it."""
    height, width, _ = picture.shape
    content = struct.pack("<II", height, width) + picture.tobytes()
    return int.from_bytes(derived_digest(_NOISE_CONTEXT, content)[:8], "little")


def _own(tree: Tree) -> Tree:
    """Copied outside of inference mode, so that one can train with it as it is, and without the rest of its batch."""
    if isinstance(tree, dict):
        return {name: _own(tensor) for name, tensor in tree.items()}
    return tree.clone(memory_format=library("torch").contiguous_format)
