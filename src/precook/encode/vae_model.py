"""VAEs of diffusers: which class a folder holds, and what a model says about pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from precook.encode.staged import send
from precook.encode.torch_tools import library, read_config, torch_dtype
from precook.errors import EncodeError, printable

_LEVELS = ("encoder_block_out_channels", "down_block_out_channels", "block_out_channels", "dim_mult", "ch_mult")
"""Fields of configs with one number for each level of the encoder; the size is halved between two levels."""
_PROBE = 2
"""Latent height and width of the picture that a VAE is tried with."""
_FAILURES = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a model raises that was not made for what it is given."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """What a VAE says about a batch: N x C x h x w each, on its device; no `logvar` where it gives latents at once."""

    mean: Any
    logvar: Any

    def drawn(self, seeds: Sequence[int]) -> Any:
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

    def tried(self) -> Posterior:
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
            raise EncodeError(
                f"{self.name} does not encode a picture of {side} x {side} pixels: {_reason(error)}", hint=hint
            ) from error

    def check(self, height: int, width: int) -> None:
        """Refuse pictures of a size that the model cannot take."""
        if height % self.factor or width % self.factor:
            hint = f"set image.step to a multiple of {self.factor}, and exact resolutions to multiples of it"
            raise EncodeError(
                f"a picture of {width} x {height} pixels: {self.name} takes multiples of {self.factor}", hint=hint
            )

    def posterior(self, pixels: Any) -> Posterior:
        """What the model says about pictures: bytes on its device, N x H x W x 3."""
        count, height, width, _ = pixels.shape
        inputs = self._inputs(pixels)
        output = self.model.encode(inputs.unsqueeze(2) if self.video else inputs)
        size = (count, height // self.factor, width // self.factor)
        mean, logvar = _moments(output, self.name)
        return Posterior(self._latents(mean, size), None if logvar is None else self._latents(logvar, size))

    def _inputs(self, pixels: Any) -> Any:
        """N x 3 x H x W from -1 to 1, in the arithmetic of diffusers' own image processor."""
        torch = library("torch")
        levels = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return levels.mul_(2).sub_(1).to(torch_dtype(self.dtype))

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


def vae_class(folder: Path) -> Any:
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
        raise EncodeError(f"diffusers cannot import {printable(name)}: {_reason(error)}", hint=hint) from error
    if kind is None:
        hint = "pip install -U diffusers, or name the folder of another VAE"
        raise EncodeError(f"diffusers {diffusers.__version__} has no {printable(name)}", hint=hint)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin) and hasattr(kind, "encode")):
        raise EncodeError(
            f"{printable(folder)}: {printable(name)} is not a VAE", hint="name the folder of one, such as AutoencoderKL"
        )
    return kind


def _factor(model: Any) -> int:
    """How much smaller than its picture a latent is."""
    factor = vars(model).get("spatial_compression_ratio") or model.config.get("spatial_compression_ratio")
    levels = next((model.config[name] for name in _LEVELS if model.config.get(name)), None)
    if factor is None and levels is not None:
        factor = 2 ** (len(levels) - 1)
    if type(factor) is not int or factor < 1:
        hint = "name the folder of a VAE for pictures"
        raise EncodeError(
            f"the config of {type(model).__name__} does not say how much smaller its latents are", hint=hint
        )
    return factor


def enable(model: Any, option: str) -> None:
    """Turn on an option of a model that has it."""
    try:
        getattr(model, f"enable_{option}")()
    except (AttributeError, NotImplementedError) as error:
        raise EncodeError(f"{type(model).__name__} has no {option}", hint=f"set {option} to false") from error


def _reason(error: Exception) -> str:
    return printable(next(iter(str(error).splitlines()), type(error).__name__))


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
