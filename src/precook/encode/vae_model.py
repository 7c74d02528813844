"""VAEs of diffusers: which class a folder or a file holds, what pixels it takes, and how its latents are scaled.

A picture becomes the latent that the pipelines of its class prepare from it, in their own arithmetic: classes that do
it otherwise than `AutoencoderKL` have a `Convention`. A VAE for videos gets a video of one frame, and the frame's
dimension is taken out of what it returns; for clips it gets, and keeps, all frames.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from precook.config.encoders import VaeSection
from precook.encode.compiled import CompiledVae
from precook.encode.offload import place_model
from precook.encode.pipeline_folder import is_pipeline, read_pipeline
from precook.encode.torch_tools import (
    LOCAL,
    WEIGHTS,
    check_complete,
    check_weights,
    library,
    loading,
    read_config,
    send,
    summary,
    torch_dtype,
)
from precook.errors import EncodeError, printable

PixelRange = Literal["-1 to 1", "0 to 1", "imagenet", "128ths"]

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of the channels."""
_LEVELS = ("encoder_block_out_channels", "down_block_out_channels", "block_out_channels", "dim_mult", "ch_mult")
"""Fields of configs with one number for each level of the encoder; the size is halved between two levels."""
_RATIOS = ("spatial_compression_ratio", "scale_factor_spatial")
_MOST_LEVELS = 8
"""What claims more of them is no VAE."""
_MOST_ELEMENTS = 2**31 - 1
_SIDES = 2
"""Dimensions of a picture."""
_PROBE = 2
"""Latent height and width of the picture that a VAE is tried with."""
_EXAMPLE, _SMALL_EXAMPLE = (4, 512, 448), (2, 64, 96)
"""How many pictures, of which height and width, a VAE is compiled with: enough to keep a GPU busy, few on a CPU."""
_FAILURES = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a model raises that was not made for what it is given."""
_UNSCALED = "set scaled to false, and scale in training as the model's pipeline does"


@dataclass(frozen=True, slots=True)
class Convention:
    """What pipelines do with the VAEs of one class, where it is not what they do with `AutoencoderKL`."""

    pixels: PixelRange = "-1 to 1"
    """What a picture's bytes become before it is encoded."""
    reciprocal: bool = False
    """Whether latents are multiplied with one over the deviations, which is not always the quotient's last bit."""
    frames: bool = False
    """Whether it takes videos although its encoder has no convolution over frames, by which others are known."""
    alpha: bool = False
    """Whether a model of four channels takes a picture with its alpha, which is opaque everywhere here."""
    scales_itself: bool = False
    """Whether `encode` returns latents that are scaled already."""
    refused: str = ""
    """Why it cannot encode a picture."""


_CONVENTIONS = {
    "AutoencoderKLWan": Convention(reciprocal=True),
    "AutoencoderKLQwenImage": Convention(reciprocal=True, alpha=True),
    "AutoencoderKLQwenImage21": Convention(frames=True, alpha=True),
    "AutoencoderKLMiniMaxH3": Convention(pixels="imagenet"),
    "Kandinsky6SRVAE": Convention(pixels="128ths"),
    "AutoencoderRAE": Convention(pixels="0 to 1", scales_itself=True),
    "AutoencoderKLAllegro": Convention(refused="it encodes videos of 24 frames and more"),
}


def class_name(folder: Path) -> str | None:
    """The class that a folder's config names; None where it cannot be read, which whoever loads it will say."""
    try:
        name = read_config(folder).get("_class_name")
    except EncodeError:
        return None
    return name if isinstance(name, str) else None


def convention(name: str | None) -> Convention:
    """What pipelines do with the VAEs of a class."""
    return _CONVENTIONS.get(name or "", Convention())


def pixels_per_latent(config: Mapping[str, Any]) -> int | None:
    """How many pixels along a side one latent of a VAE with this config stands for; None where it does not say so."""
    ratio = next((config[name] for name in _RATIOS if config.get(name) is not None), None)
    if ratio is None:
        ratio = _halved(config, "patch_size") or _product(config, "spatial_expansions", "spatial_downsample_factors")
    if ratio is None:
        levels = next((config[name] for name in _LEVELS if config.get(name)), None)
        if isinstance(levels, list | tuple) and len(levels) <= _MOST_LEVELS:
            # Wan 2.2 makes one of several pixels before its first level.
            ratio = 2 ** (len(levels) - 1) * (_whole(config.get("patch_size")) or 1 if "dim_mult" in config else 1)
    return _whole(config.get("encoder_patch_size") if ratio is None else ratio)


def frames_per_latent(config: Mapping[str, Any]) -> int | None:
    """How many frames of a clip one latent of a VAE with this config stands for, but for the first one's.

    None where it does not say so: a VAE for pictures does not.
    """
    ratio = config.get("temporal_compression_ratio")
    halved = config.get("temperal_downsample")
    if isinstance(halved, list | tuple) and len(halved) <= _MOST_LEVELS:
        ratio = 2 ** sum(map(bool, halved))
    if ratio is None:
        ratio = _halved(config, "patch_size_t") or _product(
            config, "temporal_expansions", "temporal_downsample_factors"
        )
    levels = config.get("block_out_channels")
    if ratio is None and config.get("_class_name") == "AutoencoderKLMagvit" and isinstance(levels, list | tuple):
        ratio = 2 ** (min(len(levels), _MOST_LEVELS) - 2)
    return _whole(ratio)


def _whole(ratio: object) -> int | None:
    """A ratio as a whole number; None where it is none that a VAE could have."""
    if type(ratio) not in (int, float):
        return None
    assert isinstance(ratio, int | float), "for the type checker"
    return int(ratio) if 1 <= ratio <= 2**_MOST_LEVELS and ratio == int(ratio) else None


def _halved(config: Mapping[str, Any], patch: str) -> int | None:
    """The ratio of one that halves time, height and width alike between some of its levels, as LTX does."""
    scaling, size = config.get("spatio_temporal_scaling"), _whole(config.get(patch, 1))
    if not isinstance(scaling, list | tuple) or len(scaling) > _MOST_LEVELS or size is None:
        return None
    return int(size * 2 ** sum(map(bool, scaling)))


def _product(config: Mapping[str, Any], *names: str) -> int | None:
    """The product of the numbers in the first of these fields that is there."""
    numbers = next((config[name] for name in names if config.get(name)), None)
    if not isinstance(numbers, list | tuple) or len(numbers) > _MOST_LEVELS or None in map(_whole, numbers):
        return None
    return math.prod(map(int, numbers))


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
    """A model of diffusers on its device, and what its class and its config say about pictures."""

    model: Any
    device: str
    dtype: str
    factor: int
    """How many pixels one latent stands for, along each side."""
    multiple: int
    """What the height and the width of a picture are multiples of."""
    side: int | None
    """The only height and width that it takes, where there is one."""
    video: bool
    """It takes and gives a dimension of frames."""
    alpha: bool
    """It takes a fourth channel, which says what is opaque."""
    compiled: CompiledVae
    """The blocks of its encoder, which may run on compiled code."""
    step: int = 0
    """Of one that encodes clips: how many frames one latent stands for; the first frame has one for itself."""

    @classmethod
    def load(cls, section: VaeSection, place: Path, config: Path | None, device: str, *, clips: bool = False) -> Vae:
        """The model in a folder, or in a file whose config lies in another folder, on its device; for `clips`, or not.

        One that takes pictures alone is refused for clips.
        """
        model = _load_file(section, place, config) if place.is_file() else _load_folder(section, place)
        model = model.eval()
        for option in ("tiling", "slicing"):
            if getattr(section, option):
                _enable(model, option)
        usual = convention(type(model).__name__)
        conv3d = library("torch").nn.Conv3d
        encoder = getattr(model, "encoder", model)  # a decoder may smooth videos although the encoder takes pictures
        side = model.config.get("encoder_input_size")
        factor = _factor(model)
        video = usual.frames or any(isinstance(module, conv3d) for module in encoder.modules())
        if clips and not video:
            hint = "set uses to diffusers-vae, or name the folder of a VAE for videos"
            raise EncodeError(f"{type(model).__name__} encodes pictures, not videos", hint=hint)
        return cls(
            model=place_model(model, device, section.device_memory),
            device=device,
            dtype=section.dtype,
            factor=factor,
            multiple=factor * _patch_size(model) if section.scaled else factor,
            side=side if type(side) is int else None,
            video=video,
            alpha=usual.alpha and _channels(model) == 4,  # noqa: PLR2004 - RGBA
            compiled=CompiledVae(model),
            step=_frame_step(model) if clips else 0,
        )

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.model).__name__

    def probe(self) -> Posterior:
        """The posterior of a small black picture, or clip: a model that is no VAE for these shows it here."""
        torch = library("torch")
        side = self.side or _PROBE * self.factor
        frames = [1 + self.step] if self.step else []
        try:
            with torch.inference_mode():
                return self.posterior(send([np.zeros((*frames, side, side, 3), np.uint8)], self.device))
        except torch.cuda.OutOfMemoryError:
            raise
        except _FAILURES as error:
            hint = "name the folder of a VAE for pictures, or for videos of which one frame can be encoded"
            what = f"a clip of {frames[0]} frames" if frames else "a picture"
            message = f"{self.name} does not encode {what} of {side} x {side} pixels: {summary(error)}"
            raise EncodeError(message, hint=hint) from error

    def compile(self, size: tuple[int, int] | None = None) -> None:
        """Run the encoder on compiled code from now on, if that works; `size` is that of most pictures, if known."""
        # Three different numbers: where two are the same, torch takes them to be so for ever.
        count, height, width = _SMALL_EXAMPLE if self.device == "cpu" else _EXAMPLE
        if size is not None:
            count = max(2, count * height * width // math.prod(size))
            height, width = size
            self.compiled.prefer(height, width)
        else:
            height, width = (self.side or -(-number // self.multiple) * self.multiple for number in (height, width))
        pictures = np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8)

        def example() -> list[Any]:
            with library("torch").inference_mode():
                return [self.posterior(send(list(pictures), self.device)).mean]

        self.compiled.turn_on(example)

    def check_size(self, height: int, width: int) -> None:
        """Refuse pictures of a size that the model cannot take, or would scale on its own."""
        if self.side is not None and (height, width) != (self.side, self.side):
            hint = f'set image.resolutions to ["{self.side}x{self.side}"]'
            message = f"a picture of {width} x {height} pixels: {self.name} takes {self.side} x {self.side} only"
            raise EncodeError(message, hint=hint)
        if height % self.multiple or width % self.multiple:
            fields = "image.step (with native, image.multiple_of) and exact resolutions"
            hint = f"set {fields} to multiples of {self.multiple}"
            message = f"a picture of {width} x {height} pixels: {self.name} takes multiples of {self.multiple}"
            raise EncodeError(message, hint=hint)

    @property
    def most_pixels(self) -> int | None:
        """Pixels of a batch up to which 32 bits number the elements of every tensor inside; None where nobody knows.

        Beyond that torch compiles everything anew, for 64 bits, which takes long and then runs slower.
        """
        channels = self.model.config.get("block_out_channels")
        if not isinstance(channels, (list, tuple)) or not channels:
            return None
        # Each level has half the width and half the height of the one before.
        widest = max(count / 4**level for level, count in enumerate(channels))
        return int(_MOST_ELEMENTS / widest)

    def check_frames(self, count: int) -> None:
        """Refuse clips of so many frames where the model would leave some of them out."""
        if (count - 1) % self.step:
            first, second = 1 + self.step, 1 + 2 * self.step
            hint = f"set video.frames to numbers such as 1, {first} and {second}"
            raise EncodeError(
                f"a clip of {count} frames: {self.name} takes one and multiples of {self.step} more", hint=hint
            )

    def posterior(self, pixels: Any) -> Posterior:
        """What the model says about pictures, bytes on its device, N x H x W x 3; or about clips, N x T x H x W x 3."""
        torch = library("torch")
        count, *frames, height, width, _ = pixels.shape
        pixels = pixels.flatten(0, 1) if frames else self.compiled.begin(pixels)
        inputs = _inputs(pixels, convention(self.name).pixels)
        if self.alpha:
            inputs = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1)
        inputs = inputs.to(torch_dtype(self.dtype))
        if frames:
            inputs = inputs.unflatten(0, (count, *frames)).transpose(1, 2)
        elif self.video:
            inputs = inputs.unsqueeze(2)
        output = self.compiled.run(lambda: self.model.encode(inputs))
        size = (*((one - 1) // self.step + 1 for one in frames), height // self.factor, width // self.factor)
        mean, logvar = _moments(output, self.name)
        mean, logvar = (
            None if part is None else self._latents(part, (len(inputs), *size))[:count] for part in (mean, logvar)
        )
        return Posterior(mean, logvar)

    def _latents(self, result: Any, size: tuple[int, ...]) -> Any:
        """A result, N x C x h x w for pictures, without the dimension of frames; N x C x t x h x w for clips."""
        count, *sides = size
        shape = tuple(result.shape)
        single = self.video and not self.step
        expected = (count, *shape[1:2], *([1] if single else []), *sides)
        if shape != expected:
            hint = f"report it: the factor {self.factor} comes from the model's config"
            raise EncodeError(f"{self.name} gave latents of shape {shape} instead of {expected}", hint=hint)
        return result.squeeze(2) if single else result


@dataclass(frozen=True, slots=True)
class Scale:
    """(z - shift) * factor / deviation: tensors of float32 on the model's device, a number for each channel or for all.

    Of a `patch` of 2 x 2 latents four channels of one are made before.
    """

    shift: Any
    factor: Any
    deviation: Any | None = None
    patch: int = 1

    @classmethod
    def of(cls, model: Any, latents: Any) -> Scale | None:
        """What the model's config says, or its buffers, for latents of that many channels; None for nothing to do."""
        torch = library("torch")
        name, config, buffers = type(model).__name__, model.config, dict(model.named_buffers())
        if convention(name).scales_itself:
            return None
        mean, std = (config.get(key, buffers.get(key)) for key in ("latents_mean", "latents_std"))
        shift, factor = config.get("shift_factor"), config.get("scaling_factor")
        patch = _patch_size(model)
        _, first, *sides = latents.shape
        frames = len(sides) > _SIDES
        count = first * patch * patch

        def channels(numbers: Any) -> Any:
            column = torch.as_tensor(numbers, dtype=torch.float32, device=latents.device)
            column = column.reshape(-1, *[1] * len(sides))
            if name == "AutoencoderKLCosmos" and len(column) % count == 0 and not frames:
                column = column[:: len(column) // count]  # for each channel a number for each frame
            if len(column) not in {1, count}:
                raise EncodeError(
                    f"{name} has latents of {count} channels, and its config scales {len(column)}", hint=_UNSCALED
                )
            return column

        if patch > 1:
            statistics = model.bn
            deviation = torch.sqrt(statistics.running_var.float() + config["batch_norm_eps"])
            return cls(channels(statistics.running_mean), channels(1.0), channels(deviation), patch)
        if mean is not None and std is not None and not shift:
            if convention(name).reciprocal and factor is None:
                return cls(channels(mean), 1.0 / channels(std))
            return cls(channels(mean), channels(1.0 if factor is None else factor), channels(std))
        if mean is None and std is None and factor is not None:
            return cls(channels(shift or 0.0), channels(factor))
        raise EncodeError(f"the config of {name} does not say how its latents are scaled", hint=_UNSCALED)

    def apply(self, name: str, result: Any) -> Any:
        """The result scaled; a logvar moves by the square of the factor."""
        exact = result.float()
        if self.patch > 1:
            # As the pipeline orders the channels of a patch: by channel, then row, then column.
            exact = library("torch").nn.functional.pixel_unshuffle(exact, self.patch)
        if name == "logvar":
            factor = self.factor if self.deviation is None else self.factor / self.deviation
            return exact + 2 * factor.log()
        scaled = (exact - self.shift) * self.factor
        return scaled if self.deviation is None else scaled / self.deviation


def check_scaling(kind: str, config: Mapping[str, Any], place: Path) -> None:
    """Refuse to scale latents where the pipelines of a VAE, or the one around its folder, do otherwise."""
    if config.get("invert_scale_latents"):
        message = f"the pipelines of this {kind} scale a picture that they are given and one that they learn apart"
        raise EncodeError(message, hint=_UNSCALED)
    factor = config.get("scaling_factor")
    if not is_pipeline(place.parent) or factor in (None, 1) or config.get("latents_mean") is None:
        return
    around = read_pipeline(place.parent).kind
    if around.startswith("GlmImage"):
        raise EncodeError(f"{around} leaves the scaling_factor of its {kind} out, which is {factor}", hint=_UNSCALED)


def _inputs(pixels: Any, pixel_range: PixelRange) -> Any:
    """Bytes, N x H x W x 3, as float32 in a range, N x 3 x H x W: the arithmetic is that of diffusers' processors."""
    torch = library("torch")
    levels = pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    # By a tensor: by a plain number, a GPU multiplies with the reciprocal, which is not always the same last bit.
    levels = levels.div_(torch.full((), 255.0, device=pixels.device))
    if pixel_range == "0 to 1":
        return levels
    if pixel_range == "imagenet":
        mean, std = (torch.tensor(numbers, device=pixels.device).view(1, -1, 1, 1) for numbers in _IMAGENET)
        return (levels - mean) / std
    inputs = levels.mul_(2).sub_(1)
    return inputs if pixel_range == "-1 to 1" else inputs.add_(1).mul_(127.5 / 128).sub_(1)


def _load_folder(section: VaeSection, folder: Path) -> Any:
    kind = _vae_class(folder)
    check_weights(folder)
    with loading("VAE", folder):
        model, info = kind.from_pretrained(folder, torch_dtype=torch_dtype(section.dtype), **WEIGHTS)
    check_complete(folder, info["missing_keys"])
    return model


def _load_file(section: VaeSection, file: Path, config: Path | None) -> Any:
    """The VAE in a single file, as its makers published it or inside of a whole checkpoint."""
    if file.suffix != ".safetensors":
        hint = "name a .safetensors file, or a folder in the format of diffusers"
        raise EncodeError(f"{printable(file)}: not a .safetensors file", hint=hint)
    if config is None:
        # diffusers would look for one on the hub, by a guess at the model.
        hint = "set config to a folder with it, such as vae of the same model in the format of diffusers"
        raise EncodeError(f"{printable(file)}: a single file does not say what it holds without config.json", hint=hint)
    kind = _vae_class(config)
    known = importlib.import_module("diffusers.loaders.single_file_model").SINGLE_FILE_LOADABLE_CLASSES
    if kind.__name__ not in known:
        hint = "name the folder of this VAE in the format of diffusers"
        raise EncodeError(f"{printable(file)}: diffusers reads no single file of {kind.__name__}", hint=hint)
    missing: list[str] = []

    def load_state_dict(self: Any, weights: Any, **options: Any) -> Any:
        # diffusers leaves what a file lacks at random, and tells nobody.
        found = kind.load_state_dict(self, weights, **options)
        missing.extend(found.missing_keys)
        return found

    listening: Any = type(kind.__name__, (kind,), {"load_state_dict": load_state_dict})
    with loading("VAE", file):
        options = {"torch_dtype": torch_dtype(section.dtype), "low_cpu_mem_usage": False, **LOCAL}
        model = listening.from_single_file(str(file), config=str(config), **options)
    check_complete(file, missing)
    return model


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
        raise EncodeError(f"diffusers cannot import {printable(name)}: {summary(error)}", hint=hint) from error
    if kind is None:
        hint = "pip install -U diffusers, or name the folder of another VAE"
        raise EncodeError(f"diffusers {diffusers.__version__} has no {printable(name)}", hint=hint)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.ModelMixin) and hasattr(kind, "encode")):
        hint = "name the folder of one, such as AutoencoderKL"
        raise EncodeError(f"{printable(folder)}: {printable(name)} is not a VAE", hint=hint)
    if why := convention(name).refused:
        raise EncodeError(f"{name} does not encode a picture: {why}", hint="name the folder of a VAE for pictures")
    return kind


def _factor(model: Any) -> int:
    """How much smaller than its picture a latent is."""
    factor = vars(model).get("spatial_compression_ratio") or pixels_per_latent(model.config)
    if type(factor) is not int or factor < 1:
        message = f"the config of {type(model).__name__} does not say how much smaller its latents are"
        raise EncodeError(message, hint="name the folder of a VAE for pictures")
    return factor


def _frame_step(model: Any) -> int:
    """How many frames of a clip one latent stands for."""
    step = frames_per_latent(model.config) or vars(model).get("temporal_compression_ratio")
    if not isinstance(step, int | float) or step < 1 or step != int(step):
        message = f"the config of {type(model).__name__} does not say how many frames one latent stands for"
        raise EncodeError(message, hint="name the folder of a VAE for videos, or report it")
    return int(step)


def _channels(model: Any) -> int | None:
    """How many channels of a picture it takes, where its config says so."""
    channels = model.config.get("in_channels", model.config.get("input_channels"))
    return channels if type(channels) is int else None


def _patch_size(model: Any) -> int:
    """How many latents, along each side, its pipelines make one of before they scale it: 2 for FLUX.2, else 1."""
    return 2 if "batch_norm_eps" in model.config and hasattr(model, "bn") else 1


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
