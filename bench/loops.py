"""LoRA training as diffusers' example scripts do it: SD 1.5, SDXL, FLUX and Qwen-Image, in float32 on a processor.

Each class stands for one script with its own defaults, but for `--center_crop`: how it cuts pictures and encodes
captions, which noise and timesteps it draws, what its model predicts and how the loss is weighted. A step's loss is
made of an `Example`, which comes from the script's own encoders (`encode`) or from a batch of a feed (`take`).

Models and schedulers are loaded from a pipeline's folder, as the scripts load them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import peft
import torch
from diffusers.training_utils import compute_density_for_timestep_sampling, compute_loss_weighting_for_sd3
from PIL import Image
from torch.nn import functional

Sampler = Callable[[Any], Any]
"""Draws latents from the distribution that a VAE gave."""


@dataclass(frozen=True, slots=True)
class Example:
    """What a step trains on, as a script has it when it begins to add noise."""

    latents: Any
    """Shifted and scaled."""
    prompt: dict[str, Any]
    """Arguments of the denoiser that come from the captions."""
    time_ids: Any = None
    """For SDXL: original size, corner of the crop and size after it, six numbers for each picture."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A picture as a script's transforms leave it."""

    pixels: Any
    """3 x H x W, from -1 to 1."""
    time_ids: tuple[int, ...]


class Loop:
    """One script: what it makes of pictures and captions, and the loss of a step."""

    name: str
    family: str
    """What the family of its pipeline is called."""
    script: str
    """Its file among the examples of diffusers."""
    denoiser: str
    """The part of the pipeline that is trained."""
    resampling: Image.Resampling
    weight_decay: float
    lora: tuple[str, ...] = ("to_k", "to_q", "to_v", "to_out.0")
    """Names of the layers that get an adapter."""
    image: dict[str, Any] = {}  # noqa: RUF012 - read only
    """Settings of the project that cut pictures as the script does, beside its resolution and resampling."""
    prompt: dict[str, Any] = {}  # noqa: RUF012 - read only
    """Settings of the encoder of prompts, where the script's differ from those of the pipeline."""

    def __init__(self, folder: Path, side: int) -> None:
        self.folder = folder
        self.side = side
        self.pipe = diffusers.DiffusionPipeline.from_pretrained(folder)
        self.vae = self.pipe.vae
        self.scheduler = self._scheduler(folder)

    def adapted(self) -> Any:
        """The denoiser with an adapter to train; what that begins with comes from torch's generator."""
        kind = type(getattr(self.pipe, self.denoiser))
        model = kind.from_pretrained(self.folder, subfolder=self.denoiser).requires_grad_(False)  # noqa: FBT003 - torch's own signature
        form = peft.LoraConfig(r=4, lora_alpha=4, init_lora_weights="gaussian", target_modules=list(self.lora))
        model.add_adapter(form)
        return model.train()

    def encode(self, paths: Sequence[Path], captions: list[str], sample: Sampler) -> Example:
        """A batch as the script makes it in each step."""
        cuts = []
        for path in paths:
            with Image.open(path) as picture:
                cuts.append(self._cut(picture.convert("RGB")))
        latents = self._scale(sample(self.vae.encode(self._pixels(cuts)).latent_dist))
        # The attention of a VAE leaves channels last in memory, and `randn_like` fills memory in its order: a script's
        # noise would be the same numbers in other places.
        return Example(latents.contiguous(), self._prompt(captions), self._time_ids(cuts))

    def take(self, batch: dict[str, Any]) -> Example:
        """A batch of a feed, in the place of what the script's own encoders make."""
        raise NotImplementedError

    def loss(self, denoiser: Any, example: Example) -> Any:
        """The loss of a step; noise and timesteps come from torch's generator, in the script's order."""
        raise NotImplementedError

    def _scheduler(self, folder: Path) -> Any:
        raise NotImplementedError

    def _prompt(self, captions: list[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _scale(self, latents: Any) -> Any:
        config = self.vae.config
        return (latents - (config.shift_factor or 0.0)) * config.scaling_factor

    def _scaled_size(self, width: int, height: int) -> tuple[int, int]:
        """torchvision's `Resize` with one number: the shorter side gets it, the fraction of the longer is cut off."""
        short, long = sorted((width, height))
        other = int(self.side * long / short)
        return (self.side, other) if width <= height else (other, self.side)

    def _cut(self, picture: Image.Image) -> Cut:
        """torchvision's transforms, which leave a picture of Pillow to Pillow."""
        original = (picture.height, picture.width)
        size = self._scaled_size(*picture.size)
        if size != picture.size:
            picture = picture.resize(size, self.resampling)
        # Python's `round`, which takes halves to the even number.
        left, top = (max(0, round((length - self.side) / 2.0)) for length in picture.size)
        picture = picture.crop((left, top, left + self.side, top + self.side))
        levels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div(255)
        return Cut((levels - 0.5) / 0.5, (*original, top, left, self.side, self.side))

    def _pixels(self, cuts: list[Cut]) -> Any:
        return torch.stack([cut.pixels for cut in cuts])

    def _time_ids(self, _: list[Cut]) -> Any:
        return None


def train(loop: Loop, examples: Iterable[Example], seed: int = 0) -> list[float]:
    """Train an adapter on each example in turn; the losses."""
    torch.manual_seed(seed)
    denoiser = loop.adapted()
    trained = [parameter for parameter in denoiser.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.999), weight_decay=loop.weight_decay, eps=1e-8)
    losses = []
    for example in examples:
        loss = loop.loss(denoiser, example)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class StableDiffusion(Loop):
    """SD 1.5: noise is predicted, and its squared error is the loss."""

    name = "SD 1.5"
    family = "sd"
    denoiser = "unet"
    script = "text_to_image/train_text_to_image_lora.py"
    resampling = Image.Resampling.LANCZOS
    weight_decay = 1e-2

    def take(self, batch: dict[str, Any]) -> Example:
        return Example(batch["latent"], {"encoder_hidden_states": batch["prompt"]["prompt_embeds"]})

    def loss(self, denoiser: Any, example: Example) -> Any:
        latents = example.latents
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, self.scheduler.config.num_train_timesteps, (len(latents),))
        noisy = self.scheduler.add_noise(latents, noise, timesteps)
        found = denoiser(noisy, timesteps, **self._conditions(example), return_dict=False)[0]
        return functional.mse_loss(found.float(), noise.float())

    def _scheduler(self, folder: Path) -> Any:
        return diffusers.DDPMScheduler.from_pretrained(folder, subfolder="scheduler")

    def _conditions(self, example: Example) -> dict[str, Any]:
        return example.prompt

    def _prompt(self, captions: list[str]) -> dict[str, Any]:
        tokens = _tokens(self.pipe.tokenizer, captions, self.pipe.tokenizer.model_max_length)
        return {"encoder_hidden_states": self.pipe.text_encoder(tokens).last_hidden_state}


class StableDiffusionXL(StableDiffusion):
    """SDXL: two text encoders, one pooled, and six numbers about each picture's size beside them."""

    name = "SDXL"
    family = "sdxl"
    script = "text_to_image/train_text_to_image_lora_sdxl.py"

    def take(self, batch: dict[str, Any]) -> Example:
        prompt = {
            "encoder_hidden_states": batch["prompt"]["prompt_embeds"],
            "text_embeds": batch["prompt"]["pooled_prompt_embeds"],
        }
        sizes = torch.cat([batch["original_size"], batch["crop"], batch["target_size"]], dim=1)
        return Example(batch["latent"], prompt, sizes.to(batch["latent"].dtype))

    def _conditions(self, example: Example) -> dict[str, Any]:
        prompt = dict(example.prompt)
        added = {"text_embeds": prompt.pop("text_embeds"), "time_ids": example.time_ids}
        return {**prompt, "added_cond_kwargs": added}

    def _prompt(self, captions: list[str]) -> dict[str, Any]:
        pipe = self.pipe
        hidden = []
        for tokenizer, encoder in ((pipe.tokenizer, pipe.text_encoder), (pipe.tokenizer_2, pipe.text_encoder_2)):
            output = encoder(_tokens(tokenizer, captions, tokenizer.model_max_length), output_hidden_states=True)
            hidden.append(output.hidden_states[-2])
        # The second encoder's, which comes last.
        return {"encoder_hidden_states": torch.cat(hidden, dim=-1), "text_embeds": output.text_embeds}

    def _time_ids(self, cuts: list[Cut]) -> Any:
        return torch.tensor([cut.time_ids for cut in cuts]).to(torch.float32)


class FlowMatching(Loop):
    """The way from noise to latents is straight, and the model predicts its direction."""

    denoiser = "transformer"
    resampling = Image.Resampling.BILINEAR
    weight_decay = 1e-4
    weighting = "none"
    shift: dict[str, float] = {}  # noqa: RUF012 - read only
    """Where the script sets another than the pipeline has."""

    def loss(self, denoiser: Any, example: Example) -> Any:
        latents = example.latents
        noise = torch.randn_like(latents)
        density = compute_density_for_timestep_sampling(
            weighting_scheme=self.weighting, batch_size=len(latents), logit_mean=0.0, logit_std=1.0, mode_scale=1.29
        )
        places = (density * self.scheduler.config.num_train_timesteps).long()
        sigmas = self.scheduler.sigmas[places].to(latents.dtype).view(-1, *[1] * (latents.ndim - 1))
        noisy = (1.0 - sigmas) * latents + sigmas * noise
        found = self._predict(denoiser, noisy, self.scheduler.timesteps[places] / 1000, example.prompt)
        weights = compute_loss_weighting_for_sd3(weighting_scheme=self.weighting, sigmas=sigmas)
        errors = weights.float() * (found.float() - (noise - latents).float()) ** 2
        return errors.reshape(len(latents), -1).mean(1).mean()

    def _scheduler(self, folder: Path) -> Any:
        return diffusers.FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler", **self.shift)

    def _predict(self, denoiser: Any, noisy: Any, times: Any, prompt: dict[str, Any]) -> Any:
        """The direction that the model predicts, in the shape of latents."""
        raise NotImplementedError


class Flux(FlowMatching):
    """FLUX.1: packed latents, T5 without a mask and the pooled output of CLIP, guidance as a number."""

    name = "FLUX"
    family = "flux"
    script = "dreambooth/train_dreambooth_lora_flux.py"
    lora = (
        *("attn.to_k", "attn.to_q", "attn.to_v", "attn.to_out.0"),
        *("attn.add_k_proj", "attn.add_q_proj", "attn.add_v_proj", "attn.to_add_out"),
        *("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"),
    )
    prompt = {"max_length": 512}  # noqa: RUF012 - read only

    def take(self, batch: dict[str, Any]) -> Example:
        prompt = {
            "encoder_hidden_states": batch["prompt"]["prompt_embeds"],
            "pooled_projections": batch["prompt"]["pooled_prompt_embeds"],
            "txt_ids": batch["prompt"]["text_ids"],
        }
        return Example(batch["latent"], prompt)

    def _prompt(self, captions: list[str]) -> dict[str, Any]:
        pipe = self.pipe
        hidden = pipe.text_encoder_2(_tokens(pipe.tokenizer_2, captions, self.prompt["max_length"]))[0]
        return {
            "encoder_hidden_states": hidden,
            "pooled_projections": pipe.text_encoder(_tokens(pipe.tokenizer, captions, 77)).pooler_output,
            "txt_ids": torch.zeros(hidden.shape[1], 3),
        }

    def _predict(self, denoiser: Any, noisy: Any, times: Any, prompt: dict[str, Any]) -> Any:
        count, channels, height, width = noisy.shape
        pipeline = diffusers.FluxPipeline
        found = denoiser(
            hidden_states=pipeline._pack_latents(noisy, count, channels, height, width),
            timestep=times,
            guidance=torch.tensor([3.5]).expand(count),
            img_ids=pipeline._prepare_latent_image_ids(count, height // 2, width // 2, noisy.device, noisy.dtype),
            **prompt,
            return_dict=False,
        )[0]
        factor = 2 ** (len(self.vae.config.block_out_channels) - 1)
        return pipeline._unpack_latents(found, height * factor, width * factor, factor)


class QwenImage(FlowMatching):
    """Qwen-Image: a video VAE with a mean and deviation for each channel, prompts of the pipeline's own call."""

    name = "Qwen-Image"
    family = "qwen-image"
    script = "dreambooth/train_dreambooth_lora_qwen_image.py"
    shift = {"shift": 3.0}  # noqa: RUF012 - read only
    image = {"rounding": "nearest"}  # noqa: RUF012 - read only
    prompt = {"max_length": 512}  # noqa: RUF012 - read only

    def take(self, batch: dict[str, Any]) -> Example:
        prompt = {
            "encoder_hidden_states": batch["prompt"]["prompt_embeds"],
            "encoder_hidden_states_mask": batch["prompt"]["prompt_embeds_mask"],
        }
        return Example(batch["latent"].unsqueeze(2), prompt)

    def _prompt(self, captions: list[str]) -> dict[str, Any]:
        # No mask where nothing is padded.
        hidden, mask = self.pipe.encode_prompt(captions, max_sequence_length=self.prompt["max_length"])
        return {"encoder_hidden_states": hidden, "encoder_hidden_states_mask": mask}

    def _scale(self, latents: Any) -> Any:
        mean, std = (
            torch.tensor(numbers).view(1, -1, 1, 1, 1)
            for numbers in (self.vae.config.latents_mean, self.vae.config.latents_std)
        )
        return (latents - mean) * (1.0 / std)

    def _scaled_size(self, width: int, height: int) -> tuple[int, int]:
        """Both sides by one factor, each rounded by Python's `round`."""
        factor = max(self.side / height, self.side / width)
        return round(width * factor), round(height * factor)

    def _pixels(self, cuts: list[Cut]) -> Any:
        return super()._pixels(cuts).unsqueeze(2)  # videos of one frame

    def _predict(self, denoiser: Any, noisy: Any, times: Any, prompt: dict[str, Any]) -> Any:
        count, channels, _, height, width = noisy.shape
        pipeline = diffusers.QwenImagePipeline
        found = denoiser(
            hidden_states=pipeline._pack_latents(noisy.permute(0, 2, 1, 3, 4), count, channels, height, width),
            timestep=times,
            img_shapes=[(1, height // 2, width // 2)] * count,
            **prompt,
            return_dict=False,
        )[0]
        factor = 2 ** len(self.vae.temperal_downsample)
        return pipeline._unpack_latents(found, height * factor, width * factor, factor)


LOOPS: tuple[type[Loop], ...] = (StableDiffusion, StableDiffusionXL, Flux, QwenImage)


def _tokens(tokenizer: Any, captions: list[str], length: int) -> Any:
    """Token ids, each text cut or padded to this length."""
    return tokenizer(captions, padding="max_length", max_length=length, truncation=True, return_tensors="pt").input_ids
