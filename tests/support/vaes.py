"""One tiny random VAE of each class of diffusers that takes pictures, and what its pipelines make of one.

Pipelines are asked themselves: their own methods run, on a stand-in that has the VAE and nothing else of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import diffusers
import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3
from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition

from tests.support.pages import ROOT

MEAN, STD = [-0.75, 0.5, 0.125, 1.5], [2.0, 0.7, 1.25, 3.1]
"""Of the four channels that most of them have."""


def noise_seed(picture: npt.NDArray[np.uint8]) -> int:
    """What seeds the noise of a sample, as docs/reference/latents.md says it."""
    content = struct.pack("<II", *picture.shape[:2]) + picture.tobytes()
    return int.from_bytes(blake3(content, derive_key_context="precook noise 1").digest()[:8], "little")


Prepare = Callable[[Any, Any, Any], Any]
"""What a pipeline makes of a picture, 1 x 3 x H x W from -1 to 1, given the VAE and a generator."""


@dataclass(frozen=True)
class Family:
    """A VAE, and what pipelines prepare with it."""

    make: Callable[[], Any]
    prepare: Prepare
    posterior: str = "sample"
    """Whether its pipelines draw from the posterior, or take the mean."""
    scaled: bool = True
    size: tuple[int, int] = (32, 48)
    rest: Callable[[Any], Any] = field(default=lambda latent: latent)
    """What the trainer has to do with a stored latent to get the pipeline's."""


def _method(name: str, method: str, **parts: Any) -> Callable[..., Any]:
    """A method of a pipeline, on a stand-in for the pipeline."""
    kind = getattr(diffusers, name)

    def call(vae: Any, *args: Any, **options: Any) -> Any:
        stand_in = SimpleNamespace(vae=vae, **parts)
        for inner in ("_patchify_latents", "_reorder_image_tokens", "_normalize_latents", "_pack_latents"):
            if hasattr(kind, inner):
                setattr(stand_in, inner, getattr(kind, inner))
        return getattr(kind, method)(stand_in, *args, **options)

    return call


def encodes(name: str) -> Prepare:
    """A pipeline's `_encode_vae_image`."""
    return _method(name, "_encode_vae_image", latent_channels=4)


def encodes_frame(name: str) -> Prepare:
    """The same, of a video of one frame."""
    return lambda vae, image, generator: encodes(name)(vae, image.unsqueeze(2), generator)


def _channels(vae: Any) -> int:
    return int(vae.config.get("latent_channels") or vae.config.z_dim)


def _factor(vae: Any) -> int:
    return int(getattr(vae, "spatial_compression_ratio", 0) or 2 ** (len(vae.config.block_out_channels) - 1))


def _unnoised(name: str) -> Prepare:
    """What a pipeline from picture to picture begins with, before noise is added."""

    def prepare(vae: Any, image: Any, generator: Any) -> Any:
        method = _method(name, "prepare_latents")
        return method(vae, image, None, 1, 1, torch.float32, "cpu", generator, add_noise=False)

    return prepare


def _wan(vae: Any, image: Any, generator: Any) -> Any:
    parts = {
        "vae_scale_factor_temporal": 4,
        "vae_scale_factor_spatial": _factor(vae),
        "config": SimpleNamespace(expand_timesteps=True),
    }
    height, width = image.shape[2:]
    prepare = _method("WanImageToVideoPipeline", "prepare_latents", **parts)
    return prepare(vae, image, 1, _channels(vae), height, width, 1, torch.float32, torch.device("cpu"), generator)[1]


def _hunyuan(vae: Any, image: Any, generator: Any) -> Any:
    parts = {
        "vae_scale_factor_temporal": 4,
        "vae_scale_factor_spatial": _factor(vae),
        "vae_scaling_factor": vae.config.scaling_factor,
    }
    height, width = image.shape[2:]
    prepare = _method("HunyuanVideoImageToVideoPipeline", "prepare_latents", **parts)
    return prepare(vae, image, 1, _channels(vae), height, width, 1, torch.float32, torch.device("cpu"), generator)[1]


def _hunyuan15(vae: Any, image: Any, generator: Any) -> Any:
    processor = SimpleNamespace(preprocess=lambda image, **_: image)
    height, width = image.shape[2:]
    return diffusers.HunyuanVideo15ImageToVideoPipeline._get_image_latents(vae, processor, image, height, width, "cpu")


def _ltx(name: str) -> Prepare:
    def prepare(vae: Any, image: Any, generator: Any) -> Any:
        parts = {
            "vae_spatial_compression_ratio": vae.spatial_compression_ratio,
            "vae_temporal_compression_ratio": vae.temporal_compression_ratio,
            "transformer_spatial_patch_size": 1,
            "transformer_temporal_patch_size": 1,
        }
        height, width = image.shape[2:]
        method = _method(name, "prepare_latents", **parts)
        options = {"height": height, "width": width, "num_frames": 1, "dtype": torch.float32, "device": "cpu"}
        packed = method(vae, image, 1, _channels(vae), generator=generator, **options)[0]
        rows = height // vae.spatial_compression_ratio
        return packed.transpose(1, 2).unflatten(2, (rows, -1))

    return prepare


def _cogvideox(vae: Any, image: Any, generator: Any) -> Any:
    parts = {
        "vae_scale_factor_temporal": 4,
        "vae_scale_factor_spatial": _factor(vae),
        "vae_scaling_factor_image": vae.config.scaling_factor,
        "transformer": SimpleNamespace(config=SimpleNamespace(patch_size_t=None)),
        "scheduler": SimpleNamespace(init_noise_sigma=1.0),
    }
    height, width = image.shape[2:]
    prepare = _method("CogVideoXImageToVideoPipeline", "prepare_latents", **parts)
    return prepare(vae, image, 1, _channels(vae), 1, height, width, torch.float32, "cpu", generator)[1].squeeze(1)


def _svd(vae: Any, image: Any, generator: Any) -> Any:
    return _method("StableVideoDiffusionPipeline", "_encode_vae_image")(vae, image, "cpu", 1, False)


def _sana_sprint(vae: Any, image: Any, generator: Any) -> Any:
    parts = {
        "vae_scale_factor": vae.spatial_compression_ratio,
        "scheduler": SimpleNamespace(config=SimpleNamespace(sigma_data=0.5)),
    }
    prepare = _method("SanaSprintImg2ImgPipeline", "prepare_latents", **parts)
    height, width = image.shape[2:]
    # At the time 0 nothing is noise.
    return prepare(vae, image, torch.zeros(()), 1, 4, height, width, torch.float32, "cpu", generator)


def _minimax(vae: Any, image: Any, generator: Any) -> Any:
    """What the released recipe does before it draws and rounds: nothing of that is left to chance here."""
    pixels = ((image + 1) * 127.5).round().to(torch.uint8).unsqueeze(2)
    seen: list[Any] = []

    def encode(inputs: Any, **options: Any) -> Any:
        seen.append(inputs)
        return vae.encode(inputs, **options)

    watched = SimpleNamespace(config=vae.config, encode=encode)
    encode_vae_condition(watched, pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    mean = vae.encode(seen[0]).latent_dist.mode()
    means, deviations = (
        torch.tensor(numbers).view(1, -1, 1, 1, 1) for numbers in (vae.config.latents_mean, vae.config.latents_std)
    )
    return (mean - means) / deviations


def _kandinsky_sr(vae: Any, image: Any, generator: Any) -> Any:
    return _method("Kandinsky6SRPipeline", "encode_video")(vae, image.unsqueeze(2))


def _decoded_by_mochi(vae: Any, image: Any, generator: Any) -> Any:
    """No pipeline encodes: the inverse of what the pipeline does before it decodes."""
    mean, std = (torch.tensor(numbers).view(1, -1, 1, 1, 1) for numbers in (MEAN, STD))
    latents = vae.encode(image.unsqueeze(2)).latent_dist.mode()
    return (latents - mean) * vae.config.scaling_factor / std


def _times(vae: Any, image: Any, generator: Any) -> Any:
    """No pipeline encodes: the inverse of what the pipeline does before it decodes."""
    return vae.encode(image).latent_dist.mode() * vae.config.scaling_factor


def _times_frame(vae: Any, image: Any, generator: Any) -> Any:
    """As EasyAnimate's pipelines do with each picture, in the middle of a longer method."""
    return vae.encode(image.unsqueeze(2))[0].mode() * vae.config.scaling_factor


def _cosmos(vae: Any, image: Any, generator: Any) -> Any:
    """As Cosmos' pipeline does with the frames that it is given, in the middle of a longer method."""
    latents = vae.encode(image.unsqueeze(2)).latent_dist.sample(generator)
    mean, std = (
        torch.tensor(numbers).view(1, vae.config.latent_channels, -1, 1, 1)[:, :, :1]
        for numbers in (vae.config.latents_mean, vae.config.latents_std)
    )
    return (latents - mean) * 0.5 / std


def _drawn(vae: Any, image: Any, generator: Any) -> Any:
    """As the training scripts of models have it whose pipelines never encode: a draw, shifted and scaled."""
    latents = vae.encode(image).latent_dist.sample(generator)
    return (latents - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor


def _plain(vae: Any, image: Any, generator: Any) -> Any:
    output = vae.encode(image)
    return output.latents if hasattr(output, "latents") else output.latent_dist.mode()


def _plain_frame(vae: Any, image: Any, generator: Any) -> Any:
    return _plain(vae, image.unsqueeze(2), generator)


def kl(**fields: Any) -> Any:
    """An AutoencoderKL of two levels."""
    defaults: dict[str, Any] = {
        "block_out_channels": (32, 64),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "sample_size": 32,
    }
    return diffusers.AutoencoderKL(**{**defaults, **fields})


def _wan_like(kind: str, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "base_dim": 8,
        "z_dim": 4,
        "dim_mult": [1, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [True],
        "latents_mean": MEAN,
        "latents_std": STD,
    }
    return getattr(diffusers, kind)(**{**defaults, **fields})


def wan(**fields: Any) -> Any:
    """Wan's VAE, with the groups of four frames that its code takes."""
    shape = {"dim_mult": [1, 2, 2], "temperal_downsample": [True, True], "scale_factor_spatial": 4}
    return _wan_like("AutoencoderKLWan", **{**shape, **fields})


def qwen(**fields: Any) -> Any:
    """Qwen-Image's VAE."""
    return _wan_like("AutoencoderKLQwenImage", **fields)


def _flux2() -> Any:
    model = diffusers.AutoencoderKLFlux2(
        block_out_channels=(32, 64),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
    )
    model.bn.running_mean.copy_(torch.randn(16))
    model.bn.running_var.copy_(torch.rand(16) + 0.5)
    return model


def ltx_model(mean: list[float] = MEAN, std: list[float] = STD, **fields: Any) -> Any:
    """LTX's, whose statistics are buffers beside its weights."""
    model = diffusers.AutoencoderKLLTXVideo(
        latent_channels=4,
        block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        down_block_types=("LTXVideoDownBlock3D",) * 2,
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, False),
        decoder_spatio_temporal_scaling=(True, False),
        decoder_inject_noise=(False, False, False),
        downsample_type=("conv", "conv"),
        upsample_residual=(False, False),
        upsample_factor=(1, 1),
        patch_size=2,
        **fields,
    )
    model.latents_mean.copy_(torch.tensor(mean))
    model.latents_std.copy_(torch.tensor(std))
    return model


def _ltx2_model() -> Any:
    model = diffusers.AutoencoderKLLTX2Video(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        patch_size=1,
        spatial_compression_ratio=8,
        temporal_compression_ratio=8,
    )
    model.latents_mean.copy_(torch.tensor(MEAN))
    model.latents_std.copy_(torch.tensor(STD))
    return model


FAMILIES: dict[str, Family] = {
    "AutoencoderKL: SD": Family(kl, encodes("StableDiffusionInpaintPipeline")),
    "AutoencoderKL: SDXL": Family(lambda: kl(scaling_factor=0.13025), _unnoised("StableDiffusionXLImg2ImgPipeline")),
    "AutoencoderKL: Playground": Family(
        lambda: kl(latents_mean=MEAN, latents_std=STD, scaling_factor=0.5),
        _unnoised("StableDiffusionXLImg2ImgPipeline"),
    ),
    "AutoencoderKL: SD 3": Family(
        lambda: kl(latent_channels=16, scaling_factor=1.5305, shift_factor=0.0609),
        encodes("StableDiffusion3InpaintPipeline"),
    ),
    "AutoencoderKL: FLUX": Family(
        lambda: kl(latent_channels=16, scaling_factor=0.3611, shift_factor=0.1159), encodes("FluxImg2ImgPipeline")
    ),
    "AutoencoderKL: FLUX Kontext": Family(
        lambda: kl(latent_channels=16, scaling_factor=0.3611, shift_factor=0.1159),
        encodes("FluxKontextPipeline"),
        posterior="mean",
    ),
    "AutoencoderKLFlux2": Family(_flux2, encodes("Flux2Pipeline"), posterior="mean"),
    "AsymmetricAutoencoderKL": Family(
        lambda: diffusers.AsymmetricAutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2,
            down_block_out_channels=(32, 64),
            up_block_types=("UpDecoderBlock2D",) * 3,
            up_block_out_channels=(32, 64, 64),
        ),
        encodes("StableDiffusionInpaintPipeline"),
    ),
    "ConsistencyDecoderVAE": Family(
        lambda: diffusers.ConsistencyDecoderVAE(
            encoder_block_out_channels=(32, 64),
            encoder_down_block_types=("DownEncoderBlock2D",) * 2,
            decoder_block_out_channels=(32, 64),
            decoder_down_block_types=("ResnetDownsampleBlock2D",) * 2,
            decoder_up_block_types=("ResnetUpsampleBlock2D",) * 2,
            decoder_layers_per_block=1,
        ),
        encodes("StableDiffusionInpaintPipeline"),
    ),
    "AutoencoderTiny": Family(
        lambda: diffusers.AutoencoderTiny(
            encoder_block_out_channels=(16, 16, 16),
            decoder_block_out_channels=(16, 16),
            num_encoder_blocks=(1, 1, 1),
            num_decoder_blocks=(1, 1),
            scaling_factor=0.5,
            shift_factor=0.25,
        ),
        encodes("FluxImg2ImgPipeline"),
        posterior="mean",
    ),
    "AutoencoderDC": Family(
        lambda: diffusers.AutoencoderDC(
            latent_channels=4,
            attention_head_dim=2,
            encoder_block_types=("ResBlock", "EfficientViTBlock"),
            decoder_block_types=("ResBlock", "EfficientViTBlock"),
            encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8),
            encoder_qkv_multiscales=((), (5,)),
            decoder_qkv_multiscales=((), (5,)),
            encoder_layers_per_block=(1, 1),
            decoder_layers_per_block=(1, 1),
            downsample_block_type="conv",
            upsample_block_type="interpolate",
            scaling_factor=0.41407,
        ),
        _sana_sprint,
        posterior="mean",
        rest=lambda latent: latent * 0.5,  # the scheduler's sigma_data, of Sana Sprint alone
    ),
    "VQModel": Family(
        lambda: diffusers.VQModel(
            block_out_channels=(32, 64),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        _plain,
        posterior="mean",
        scaled=False,
    ),
    "AutoencoderKLTemporalDecoder": Family(
        lambda: diffusers.AutoencoderKLTemporalDecoder(
            block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, latent_channels=4
        ),
        _svd,
        posterior="mean",
        scaled=False,
    ),
    "AutoencoderKLQwenImage": Family(qwen, encodes_frame("QwenImageImg2ImgPipeline")),
    "AutoencoderKLQwenImage21": Family(
        lambda: _wan_like(
            "AutoencoderKLQwenImage21",
            decoder_base_dim=8,
            dim_mult=[1, 1],
            in_channels=4,
            out_channels=4,
            scale_factor_spatial=2,
        ),
        lambda vae, image, generator: encodes_frame("QwenImage21Pipeline")(
            vae, torch.cat([image, torch.ones_like(image[:, :1])], dim=1), generator
        ),
        posterior="mean",
    ),
    "AutoencoderKLWan": Family(lambda: _wan_like("AutoencoderKLWan", scale_factor_spatial=2), _wan, posterior="mean"),
    "AutoencoderKLWan: 2.2": Family(
        lambda: _wan_like(
            "AutoencoderKLWan",
            is_residual=True,
            dim_mult=[1, 1],
            patch_size=2,
            in_channels=12,
            out_channels=12,
            decoder_base_dim=8,
            scale_factor_spatial=4,
        ),
        _wan,
        posterior="mean",
    ),
    "AutoencoderKLHunyuanVideo": Family(
        lambda: diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=4,
            block_out_channels=(8, 8, 8, 8),
            layers_per_block=1,
            norm_num_groups=4,
        ),
        _hunyuan,
        posterior="mean",
    ),
    "AutoencoderKLHunyuanVideo15": Family(
        lambda: diffusers.AutoencoderKLHunyuanVideo15(
            latent_channels=4,
            block_out_channels=(16, 16),
            layers_per_block=1,
            spatial_compression_ratio=2,
            temporal_compression_ratio=2,
        ),
        _hunyuan15,
        posterior="mean",
    ),
    "AutoencoderKLHunyuanImage": Family(
        lambda: diffusers.AutoencoderKLHunyuanImage(
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            block_out_channels=(32, 32),
            layers_per_block=1,
            spatial_compression_ratio=2,
            sample_size=32,
            scaling_factor=0.75289,
        ),
        _times,
        posterior="mean",
    ),
    "AutoencoderKLHunyuanImageRefiner": Family(
        lambda: diffusers.AutoencoderKLHunyuanImageRefiner(
            latent_channels=4,
            block_out_channels=(16, 16),
            layers_per_block=1,
            spatial_compression_ratio=2,
            temporal_compression_ratio=2,
        ),
        encodes_frame("HunyuanImageRefinerPipeline"),
        rest=lambda latent: torch.cat([latent, latent]),  # its pipeline repeats a picture along the channels
    ),
    "AutoencoderKLLTXVideo": Family(ltx_model, _ltx("LTXImageToVideoPipeline")),
    "AutoencoderKLLTX2Video": Family(_ltx2_model, _ltx("LTX2ImageToVideoPipeline"), posterior="mean"),
    "AutoencoderKLCogVideoX": Family(
        lambda: diffusers.AutoencoderKLCogVideoX(
            latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=2
        ),
        _cogvideox,
    ),
    "AutoencoderKLMochi": Family(
        lambda: diffusers.AutoencoderKLMochi(
            latent_channels=4,
            encoder_block_out_channels=(32, 32, 32, 32),
            decoder_block_out_channels=(32, 32, 32, 32),
            layers_per_block=(1, 1, 1, 1, 1),
            latents_mean=MEAN,
            latents_std=STD,
            scaling_factor=0.5,
        ),
        _decoded_by_mochi,
        posterior="mean",
    ),
    "AutoencoderKLMagvit": Family(
        lambda: diffusers.AutoencoderKLMagvit(
            latent_channels=4, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=2
        ),
        _times_frame,
        posterior="mean",
    ),
    "AutoencoderKLCosmos": Family(
        lambda: diffusers.AutoencoderKLCosmos(
            latent_channels=4,
            encoder_block_out_channels=(8, 8, 8, 8),
            decode_block_out_channels=(8, 8, 8, 8),
            attention_resolutions=(8,),
            resolution=64,
            num_layers=1,
            latents_mean=[number + frame for number in MEAN for frame in range(3)],
            latents_std=[number + frame for number in STD for frame in range(3)],
        ),
        _cosmos,
        posterior="mean",
        rest=lambda latent: latent * 0.5,  # the scheduler's sigma_data
    ),
    "AutoencoderKLMiniMaxH3": Family(
        lambda: diffusers.AutoencoderKLMiniMaxH3(
            latent_channels=4,
            block_out_channels=(8, 8, 8),
            layers_per_block=1,
            spatial_downsample_factors=(2, 2, 1),
            temporal_downsample_factors=(1, 2, 1),
            norm_num_groups=2,
            decoder_num_layers=1,
            decoder_num_attention_heads=2,
            decoder_attention_head_dim=16,
            latents_mean=MEAN,
            latents_std=STD,
        ),
        _minimax,
        posterior="mean",
    ),
    "Kandinsky6SRVAE": Family(
        lambda: diffusers.Kandinsky6SRVAE(
            latent_channels=4,
            encoder_block_out_channels=(8, 16, 16),
            decoder_block_out_channels=(8, 16, 16),
            layers_per_block=1,
        ),
        _kandinsky_sr,
        posterior="mean",
    ),
    "AutoencoderKLKVAE": Family(
        lambda: diffusers.AutoencoderKLKVAE(
            channels=32, num_enc_blocks=1, num_dec_blocks=1, z_channels=4, ch_mult=(1, 2)
        ),
        _plain,
        posterior="mean",
        scaled=False,
    ),
    "AutoencoderKLKVAEVideo": Family(
        lambda: diffusers.AutoencoderKLKVAEVideo(ch=32, ch_mult=(1, 2), num_res_blocks=1, z_channels=4),
        _plain_frame,
        posterior="mean",
        scaled=False,
    ),
    "AutoencoderRAE": Family(
        lambda: diffusers.AutoencoderRAE(
            encoder_hidden_size=64,
            encoder_patch_size=8,
            encoder_num_hidden_layers=1,
            decoder_hidden_size=32,
            decoder_num_hidden_layers=1,
            decoder_num_attention_heads=2,
            decoder_intermediate_size=32,
            patch_size=8,
            encoder_input_size=32,
            scaling_factor=0.5,
        ),
        # No pipeline has it: its training script gives it levels from 0 to 1.
        lambda vae, image, generator: vae.encode(((image + 1) * 127.5).round() / 255).latent,
        posterior="mean",
        size=(32, 32),
    ),
}
"""By class, and where pipelines of one class differ by family; in the order of docs/reference/models.md."""


@dataclass(frozen=True)
class Latent:
    """What a family of pipelines makes of a picture."""

    title: str
    method: str
    """The pipeline's method that was asked, or what else says it."""
    prepare: Prepare
    posterior: str = "sample"
    rest: Callable[[Any], Any] = field(default=lambda latent: latent)
    left: str = ""
    """What `rest` does, in words."""


def _encoded(title: str, name: str, posterior: str = "sample", *, frame: bool = False) -> Latent:
    prepare = encodes_frame(name) if frame else encodes(name)
    return Latent(title, f"`{name}._encode_vae_image`", prepare, posterior)


def _begun(title: str, name: str) -> Latent:
    return Latent(title, f"`{name}.prepare_latents`", _unnoised(name))


LATENTS: dict[str, Latent] = {
    "sd": _encoded("Stable Diffusion 1 and 2", "StableDiffusionInpaintPipeline"),
    "sdxl": _begun("SDXL", "StableDiffusionXLImg2ImgPipeline"),
    "sdxl-refiner": _begun("SDXL refiner", "StableDiffusionXLImg2ImgPipeline"),
    "sd3": _encoded("Stable Diffusion 3", "StableDiffusion3InpaintPipeline"),
    "flux": _encoded("FLUX.1", "FluxImg2ImgPipeline"),
    "flux2": _encoded("FLUX.2", "Flux2Pipeline", "mean"),
    "flux2-klein": _encoded("FLUX.2 klein", "Flux2KleinPipeline", "mean"),
    "qwen-image": _encoded("Qwen-Image", "QwenImageImg2ImgPipeline", frame=True),
    "wan": Latent("Wan", "`WanImageToVideoPipeline.prepare_latents`", _wan, "mean"),
    "hunyuan-video": Latent("HunyuanVideo", "`HunyuanVideoImageToVideoPipeline.prepare_latents`", _hunyuan, "mean"),
    "ltx": Latent("LTX-Video", "`LTXImageToVideoPipeline.prepare_latents`", _ltx("LTXImageToVideoPipeline")),
    "cogvideox": Latent("CogVideoX", "`CogVideoXImageToVideoPipeline.prepare_latents`", _cogvideox),
    "sana": Latent(
        "Sana",
        "`SanaSprintImg2ImgPipeline.prepare_latents`",
        _sana_sprint,
        "mean",
        rest=lambda latent: latent * 0.5,
        left="times the scheduler's `sigma_data`",
    ),
    "lumina2": Latent("Lumina 2", "its training script's lines", _drawn),
    "chroma": _encoded("Chroma", "ChromaImg2ImgPipeline"),
    "hidream": Latent("HiDream", "its training script's lines", _drawn),
    "pixart": Latent("PixArt", "its training script's lines", _drawn),
    "auraflow": Latent("AuraFlow", "the inverse of what its pipeline decodes", _drawn),
    "kolors": _begun("Kolors", "KolorsImg2ImgPipeline"),
    "z-image": Latent("Z-Image", "the lines of `ZImageImg2ImgPipeline.prepare_latents`", _drawn),
}
"""By the names of `tests.support.pipelines`."""

TOGETHER = "1e-05"
"""How far latents of one batch may lie from those of each picture alone, against the largest number in them."""
PAGE = ROOT / "docs" / "reference" / "latents.md"


def latent_row(family: str) -> str:
    """What the page says of a family."""
    latent = LATENTS[family]
    cells = [latent.title, latent.method, f"`{latent.posterior}`", latent.left, "equal", TOGETHER]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")
