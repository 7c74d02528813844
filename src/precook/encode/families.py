"""Families of models: what a training loop of each does to a picture and a caption before its model sees them.

Taken from the training scripts in the examples of diffusers 0.42 where there is one for a family, else from what its
pipelines do with a picture. Which tensors the prompts of a pipeline have is not told here but by the pipelines' own
`encode_prompt`.
"""

from __future__ import annotations

from dataclasses import dataclass

from precook.config.encoders import PosteriorForm
from precook.config.sections import Resampling, Rounding


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are trained alike: a pipeline of diffusers and its variants."""

    name: str
    """What `precook init --for` calls it."""
    title: str
    pipelines: tuple[str, ...]
    """The classes of diffusers that have these models."""
    text_encoders: tuple[str, ...]
    """The folders of its text encoders."""
    resolution: int | str
    """What its models were trained with: a side of a square, or the width and height of a video."""
    factor: int
    """Pixels along a side of one latent."""
    patch: int
    """Latents along a side of the smallest piece that the model takes: of a transformer its patch, of a UNet two to the
    number of times that it halves its input."""
    loop: str
    """The training script of diffusers, or the pipeline, whose lines are shown."""
    latent: str
    """What it does to a picture; `latent` in the batch stands for this."""
    prompt: str
    """What it does to a caption; `prompt` in the batch stands for this."""
    posterior: PosteriorForm
    sample_size: str | None = None
    """The folder whose config tells how many latents a side its pictures have."""
    resampling: Resampling = "lanczos"
    """How it makes pictures smaller."""
    rounding: Rounding = "auto"
    """How it rounds the side that does not fit."""
    patched: int = 1
    """Latents along a side that scaling makes one of."""
    float32: str = ""
    """Why its VAE runs in float32, where it must."""
    optional: tuple[str, ...] = ()
    """Text encoders that its pipelines do without where they are not there."""
    max_length: int | None = None
    """Tokens of a caption, where the loop takes another number than the pipeline's `encode_prompt` by itself."""
    no_prompt: str = ""
    """Why its prompts cannot be encoded, where they cannot."""
    sees_pictures: bool = False
    """Its prompts see the control picture: where samples have none, there is no prompt."""
    frames: bool = False
    """Its VAE takes videos: latents have a dimension of frames, which a batch of pictures does not have."""
    frame_step: int = 0
    """Frames of a clip that one latent of its VAE stands for; 0 where its models make pictures."""
    notes: tuple[str, ...] = ()
    """What else a training loop of it has to know."""


_SAMPLED = "latents = vae.encode(pixel_values).latent_dist.sample() * scaling_factor"
_INPUT = "model_input = vae.encode(pixel_values).latent_dist.sample() * scaling_factor"
_SHIFTED = "model_input = (vae.encode(pixel_values).latent_dist.sample() - shift_factor) * scaling_factor"
_NORMALISED = "model_input = (vae.encode(pixel_values).latent_dist.sample() - latents_mean) / latents_std"
_MICRO = "add_time_ids are made of original_size, crop and target_size in the batch"
_CLEAN = "the pipeline's own call cleans captions first (clean_caption), a training loop and precook do not"
_OVERFLOWS = "the VAE overflows in float16"
_FORCED = "the script runs the VAE in float32"

FAMILIES: tuple[Family, ...] = (
    Family(
        name="sd",
        title="Stable Diffusion 1.x and 2.x",
        pipelines=(
            "StableDiffusionPipeline",
            "StableDiffusionImg2ImgPipeline",
            "StableDiffusionInpaintPipeline",
            "StableDiffusionDepth2ImgPipeline",
            "StableDiffusionAdapterPipeline",
            "StableDiffusionControlNetPipeline",
            "StableDiffusionControlNetImg2ImgPipeline",
            "StableDiffusionControlNetInpaintPipeline",
            "StableDiffusionControlNetPAGPipeline",
            "StableDiffusionControlNetPAGInpaintPipeline",
            "StableDiffusionPAGPipeline",
            "StableDiffusionPAGImg2ImgPipeline",
            "StableDiffusionPAGInpaintPipeline",
            "LatentConsistencyModelPipeline",
            "LatentConsistencyModelImg2ImgPipeline",
        ),
        text_encoders=("text_encoder",),
        resolution=512,
        sample_size="unet",
        factor=8,
        patch=8,
        loop="train_text_to_image_lora.py",
        latent=_SAMPLED,
        prompt='text_encoder(batch["input_ids"])[0]',
        posterior="moments",
    ),
    Family(
        name="sdxl",
        title="Stable Diffusion XL",
        pipelines=(
            "StableDiffusionXLPipeline",
            "StableDiffusionXLImg2ImgPipeline",
            "StableDiffusionXLInpaintPipeline",
            "StableDiffusionXLInstructPix2PixPipeline",
            "StableDiffusionXLAdapterPipeline",
            "StableDiffusionXLControlNetPipeline",
            "StableDiffusionXLControlNetImg2ImgPipeline",
            "StableDiffusionXLControlNetInpaintPipeline",
            "StableDiffusionXLControlNetUnionPipeline",
            "StableDiffusionXLControlNetUnionImg2ImgPipeline",
            "StableDiffusionXLControlNetUnionInpaintPipeline",
            "StableDiffusionXLControlNetPAGPipeline",
            "StableDiffusionXLControlNetPAGImg2ImgPipeline",
            "StableDiffusionXLPAGPipeline",
            "StableDiffusionXLPAGImg2ImgPipeline",
            "StableDiffusionXLPAGInpaintPipeline",
        ),
        text_encoders=("text_encoder", "text_encoder_2"),
        optional=("text_encoder",),
        resolution=1024,
        sample_size="unet",
        factor=8,
        patch=4,
        loop="train_text_to_image_lora_sdxl.py",
        latent=_INPUT,
        prompt="encode_prompt(text_encoders, text_input_ids_list)",
        posterior="moments",
        float32=_OVERFLOWS,
        notes=(_MICRO,),
    ),
    Family(
        name="sd3",
        title="Stable Diffusion 3 and 3.5",
        pipelines=(
            "StableDiffusion3Pipeline",
            "StableDiffusion3Img2ImgPipeline",
            "StableDiffusion3InpaintPipeline",
            "StableDiffusion3ControlNetPipeline",
            "StableDiffusion3ControlNetInpaintingPipeline",
            "StableDiffusion3PAGPipeline",
            "StableDiffusion3PAGImg2ImgPipeline",
        ),
        text_encoders=("text_encoder", "text_encoder_2", "text_encoder_3"),
        optional=("text_encoder_3",),
        resolution=1024,
        sample_size="transformer",
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_sd3.py",
        resampling="bilinear",
        latent=_SHIFTED,
        prompt="compute_text_embeddings(prompts, text_encoders, tokenizers)",
        posterior="moments",
        float32=_FORCED,
        max_length=77,
    ),
    Family(
        name="flux",
        title="FLUX.1",
        pipelines=(
            "FluxPipeline",
            "FluxImg2ImgPipeline",
            "FluxInpaintPipeline",
            "FluxFillPipeline",
            "FluxControlPipeline",
            "FluxControlImg2ImgPipeline",
            "FluxControlInpaintPipeline",
            "FluxControlNetPipeline",
            "FluxControlNetImg2ImgPipeline",
            "FluxControlNetInpaintPipeline",
            "FluxKontextPipeline",
            "FluxKontextInpaintPipeline",
        ),
        text_encoders=("text_encoder", "text_encoder_2"),
        resolution=1024,
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_flux.py",
        resampling="bilinear",
        latent=_SHIFTED,
        prompt="compute_text_embeddings(prompts, text_encoders, tokenizers)",
        posterior="moments",
        notes=("packing stays in the loop: FluxPipeline._pack_latents", "schnell was trained with max_length 256"),
    ),
    Family(
        name="flux2",
        title="FLUX.2",
        pipelines=("Flux2Pipeline", "Flux2KleinPipeline", "Flux2KleinInpaintPipeline", "Flux2KleinKVPipeline"),
        text_encoders=("text_encoder",),
        resolution=1024,
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_flux2.py",
        resampling="bilinear",
        rounding="nearest",
        latent="model_input = (_patchify_latents(vae.encode(pixel_values).latent_dist.mode()) - bn_mean) / bn_std",
        prompt="compute_text_embeddings(prompts, text_encoding_pipeline)",
        posterior="mean",
        patched=2,
        notes=(
            "the sequence is made in the loop: Flux2Pipeline._pack_latents",
            "the script for klein takes layers 10, 20 and 30, the pipeline 9, 18 and 27, which are kept;",
            "options: {text_encoder_out_layers: [10, 20, 30]} of prompt would be the script's",
        ),
    ),
    Family(
        name="qwen-image",
        title="Qwen-Image",
        pipelines=(
            "QwenImagePipeline",
            "QwenImageImg2ImgPipeline",
            "QwenImageInpaintPipeline",
            "QwenImageControlNetPipeline",
            "QwenImageControlNetInpaintPipeline",
        ),
        text_encoders=("text_encoder",),
        resolution=1024,
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_qwen_image.py",
        resampling="bilinear",
        rounding="nearest",
        latent=_NORMALISED,
        prompt="compute_text_embeddings(prompts, text_encoding_pipeline)",
        posterior="moments",
        max_length=512,
        frames=True,
        notes=("packing stays in the loop: QwenImagePipeline._pack_latents",),
    ),
    Family(
        name="qwen-image-edit",
        title="Qwen-Image-Edit",
        pipelines=("QwenImageEditPipeline", "QwenImageEditPlusPipeline", "QwenImageEditInpaintPipeline"),
        text_encoders=("text_encoder",),
        sees_pictures=True,
        resolution=1024,
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_qwen_image.py",
        resampling="bilinear",
        rounding="nearest",
        latent=_NORMALISED,
        prompt="pipe.encode_prompt(prompt, image)",
        posterior="moments",
        frames=True,
        no_prompt="it takes a picture for its prompts: give the concept `images`, and name one in `of`",
        notes=("packing stays in the loop: QwenImageEditPipeline._pack_latents",),
    ),
    Family(
        name="wan",
        title="Wan 2.1 and 2.2",
        pipelines=(
            "WanPipeline",
            "WanImageToVideoPipeline",
            "WanVideoToVideoPipeline",
            "WanVACEPipeline",
            "WanAnimatePipeline",
        ),
        text_encoders=("text_encoder",),
        resolution="832x480",
        factor=8,
        patch=2,
        loop="WanImageToVideoPipeline",
        latent="latents = (vae.encode(video).latent_dist.mode() - latents_mean) / latents_std",
        prompt="pipe.encode_prompt(prompt, max_sequence_length=512)",
        posterior="mean",
        float32="diffusers' guides run this VAE in float32",
        max_length=512,
        frames=True,
        frame_step=4,
    ),
    Family(
        name="hunyuan-video",
        title="HunyuanVideo",
        pipelines=(
            "HunyuanVideoPipeline",
            "HunyuanVideoImageToVideoPipeline",
            "HunyuanVideoFramepackPipeline",
            "HunyuanSkyreelsImageToVideoPipeline",
        ),
        text_encoders=("text_encoder", "text_encoder_2"),
        resolution="1280x720",
        factor=8,
        patch=2,
        loop="HunyuanVideoImageToVideoPipeline",
        latent="latents = vae.encode(video).latent_dist.mode() * scaling_factor",
        prompt="pipe.encode_prompt(prompt)",
        posterior="mean",
        frames=True,
        frame_step=4,
    ),
    Family(
        name="ltx",
        title="LTX-Video",
        pipelines=(
            "LTXPipeline",
            "LTXImageToVideoPipeline",
            "LTXConditionPipeline",
            "LTXI2VLongMultiPromptPipeline",
        ),
        text_encoders=("text_encoder",),
        resolution="704x512",
        factor=32,
        patch=1,
        loop="LTXImageToVideoPipeline",
        latent="latents = (vae.encode(video).latent_dist.sample() - latents_mean) * scaling_factor / latents_std",
        prompt="pipe.encode_prompt(prompt)",
        posterior="moments",
        frames=True,
        frame_step=8,
        notes=("packing stays in the loop: LTXPipeline._pack_latents",),
    ),
    Family(
        name="cogvideox",
        title="CogVideoX",
        pipelines=(
            "CogVideoXPipeline",
            "CogVideoXImageToVideoPipeline",
            "CogVideoXVideoToVideoPipeline",
            "CogVideoXFunControlPipeline",
        ),
        text_encoders=("text_encoder",),
        resolution="720x480",
        sample_size="transformer",
        factor=8,
        patch=2,
        loop="train_cogvideox_lora.py",
        resampling="bicubic",
        latent="videos = vae.encode(video).latent_dist.sample() * scaling_factor",
        prompt="compute_prompt_embeddings(tokenizer, text_encoder, prompts)",
        posterior="moments",
        frames=True,
        frame_step=4,
        notes=("frames come before channels in the loop: permute(0, 2, 1, 3, 4)",),
    ),
    Family(
        name="sana",
        title="Sana",
        pipelines=(
            "SanaPipeline",
            "SanaControlNetPipeline",
            "SanaSprintPipeline",
            "SanaSprintImg2ImgPipeline",
            "SanaPAGPipeline",
        ),
        text_encoders=("text_encoder",),
        resolution=1024,
        sample_size="transformer",
        factor=32,
        patch=1,
        loop="train_dreambooth_lora_sana.py",
        resampling="bilinear",
        latent="model_input = vae.encode(pixel_values).latent * scaling_factor",
        prompt="compute_text_embeddings(prompts, text_encoding_pipeline)",
        posterior="mean",
        float32=_FORCED,
        notes=(
            "as the script trains, without complex_human_instruction, which the pipeline's own call puts in front;",
            "options: {complex_human_instruction: […]} of prompt would put one in front",
        ),
    ),
    Family(
        name="lumina2",
        title="Lumina Image 2.0",
        pipelines=("Lumina2Pipeline",),
        text_encoders=("text_encoder",),
        resolution=1024,
        sample_size="transformer",
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_lumina2.py",
        latent=_SHIFTED,
        prompt="compute_text_embeddings(prompts, text_encoding_pipeline)",
        posterior="moments",
        float32=_FORCED,
    ),
    Family(
        name="chroma",
        title="Chroma",
        pipelines=("ChromaPipeline", "ChromaImg2ImgPipeline", "ChromaInpaintPipeline"),
        text_encoders=("text_encoder",),
        resolution=1024,
        factor=8,
        patch=2,
        loop="ChromaImg2ImgPipeline",
        latent="latents = (vae.encode(image).latent_dist.sample() - shift_factor) * scaling_factor",
        prompt="pipe.encode_prompt(prompt)",
        posterior="moments",
        notes=("packing stays in the loop: ChromaPipeline._pack_latents",),
    ),
    Family(
        name="hidream",
        title="HiDream-I1",
        pipelines=("HiDreamImagePipeline",),
        text_encoders=("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4"),
        resolution=1024,
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_hidream.py",
        resampling="bilinear",
        latent=_SHIFTED,
        prompt="compute_text_embeddings(prompts, text_encoding_pipeline)",
        posterior="moments",
    ),
    Family(
        name="pixart",
        title="PixArt Alpha and PixArt Sigma",
        pipelines=("PixArtAlphaPipeline", "PixArtSigmaPipeline", "PixArtSigmaPAGPipeline"),
        text_encoders=("text_encoder",),
        resolution=1024,
        sample_size="transformer",
        factor=8,
        patch=2,
        loop="train_pixart_controlnet_hf.py",
        latent=_SAMPLED,
        prompt="pipe.encode_prompt(prompt)",
        posterior="moments",
        notes=(_CLEAN,),
    ),
    Family(
        name="auraflow",
        title="AuraFlow",
        pipelines=("AuraFlowPipeline",),
        text_encoders=("text_encoder",),
        resolution=1024,
        factor=8,
        patch=2,
        loop="a loop as diffusers' other scripts have it",
        latent=_INPUT,
        prompt="pipe.encode_prompt(prompt)",
        posterior="moments",
        float32=_OVERFLOWS,
    ),
    Family(
        name="kolors",
        title="Kolors",
        pipelines=("KolorsPipeline", "KolorsImg2ImgPipeline", "KolorsPAGPipeline"),
        text_encoders=("text_encoder",),
        resolution=1024,
        sample_size="unet",
        factor=8,
        patch=4,
        loop="KolorsImg2ImgPipeline",
        latent="latents = vae.encode(image).latent_dist.sample() * scaling_factor",
        prompt="pipe.encode_prompt(prompt)",
        posterior="moments",
        float32=_OVERFLOWS,
        notes=(_MICRO,),
    ),
    Family(
        name="z-image",
        title="Z-Image",
        pipelines=(
            "ZImagePipeline",
            "ZImageImg2ImgPipeline",
            "ZImageInpaintPipeline",
            "ZImageControlNetPipeline",
            "ZImageControlNetInpaintPipeline",
        ),
        text_encoders=("text_encoder",),
        resolution=1024,
        factor=8,
        patch=2,
        loop="train_dreambooth_lora_z_image.py",
        resampling="bilinear",
        rounding="nearest",
        latent="model_input = (vae.encode(pixel_values).latent_dist.mode() - shift_factor) * scaling_factor",
        prompt="compute_text_embeddings(prompts, text_encoding_pipeline)",
        posterior="mean",
    ),
)
"""Every family, in the order in which they are told."""


def family_of(pipeline: str) -> Family | None:
    """The family of a pipeline's class; None for one that is not in the table."""
    return next((family for family in FAMILIES if pipeline in family.pipelines), None)


def family_named(name: str) -> Family | None:
    """The family of this name, whatever its case and dashes."""
    folded = name.casefold().replace("_", "-")
    return next((family for family in FAMILIES if family.name == folded), None)
