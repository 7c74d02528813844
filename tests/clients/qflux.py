"""One process of qwen-image-finetune: its own command line, on its own manager or on ours, with tiny random models.

    python -m tests.clients.qflux CHECKOUT own|ours RECORD --config FILE [--cache]
    python -m tests.clients.qflux CHECKOUT missing RECORD --config FILE

Nothing of the project is changed but the import of its cache manager. What stands in here is the machine's: models from
a hub, CUDA and a wait. What the cache step makes of each sample, what a training step is given, and its loss are
recorded in the file RECORD. `missing` caches with `cache_dataset` instead: only what is missing is encoded.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tests.clients.torchvision_operators  # noqa: F401 - before whatever imports torchvision

# isort: split
import diffusers
import torch
import transformers

from tests.support import pipelines

WIDTH = pipelines.WIDTH
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def swap(manager: str) -> None:
    """Make `from qflux.data.cache_manager import EmbeddingCacheManager` give ours."""
    if manager != "own":
        import precook.integrations.embedding as ours  # noqa: PLC0415

        sys.modules["qflux.data.cache_manager"] = ours


def seed() -> int:
    """Of the VAE's weights: another one is another VAE."""
    return int(os.environ.get("QFLUX_VAE", "0"))


def no_cuda() -> None:
    """Let the project's calls of CUDA do nothing, and its wait for a GPU not wait."""
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.device = lambda *_: contextlib.nullcontext()
    time.sleep = lambda _: None


def kept(folder: Path, make: Callable[[], Any]) -> Any:
    """A tokenizer that all processes share: made twice, its tokens may have other numbers."""
    if not folder.is_dir():
        make().save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def qwen_processor(folder: Path) -> Any:
    """A processor of Qwen2-VL with the tokens that stand for a picture."""
    tokenizer = kept(folder / "qwen", pipelines._qwen_tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": list(VISION)})
    images = transformers.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=56 * 56)
    videos = transformers.Qwen2VLVideoProcessor()
    return transformers.Qwen2VLProcessor(image_processor=images, tokenizer=tokenizer, video_processor=videos)


def qwen_text_encoder(tokenizer: Any, dtype: Any) -> Any:
    """A tiny Qwen2.5-VL that sees pictures."""
    torch.manual_seed(1)
    start, end, image, video = tokenizer.convert_tokens_to_ids(list(VISION))
    config = transformers.Qwen2_5_VLConfig(
        text_config=pipelines._sizes(
            tokenizer,
            num_key_value_heads=2,
            rope_scaling={"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
            rope_theta=10000.0,
        ),
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": [0],
        },
        vision_start_token_id=start,
        vision_end_token_id=end,
        image_token_id=image,
        video_token_id=video,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config).to(dtype).eval()


def qwen_vae(dtype: Any) -> Any:
    """A tiny VAE of Qwen-Image: eight pixels a side become one, as in the real one."""
    torch.manual_seed(seed())
    return diffusers.AutoencoderKLQwenImage(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1).to(dtype)


def tiny_qwen(folder: Path) -> None:
    """Let the Qwen-Image-Edit trainer load tiny models."""
    import qflux.models.load_model as models  # noqa: PLC0415
    import qflux.trainer.qwen_image_edit_trainer as trainer  # noqa: PLC0415
    from qflux.models.transformer_qwenimage import QwenImageTransformer2DModel  # noqa: PLC0415

    processor = qwen_processor(folder)

    def transformer(_: str, weight_dtype: Any) -> Any:
        torch.manual_seed(2)
        return QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=64,
            out_channels=16,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(4, 6, 6),
        ).to(weight_dtype)

    def pipeline(*_: object, **__: object) -> Any:
        parts = {"transformer": None, "vae": None, "text_encoder": None}
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
        return diffusers.QwenImageEditPipeline(
            scheduler=scheduler, tokenizer=processor.tokenizer, processor=processor, **parts
        )

    models.load_transformer = transformer
    trainer.load_vae = lambda _, weight_dtype: qwen_vae(weight_dtype)
    trainer.load_qwenvl = lambda _, weight_dtype: qwen_text_encoder(processor.tokenizer, weight_dtype)
    trainer.QwenImageEditPipeline.from_pretrained = pipeline


def tiny_flux(folder: Path) -> None:
    """Let the FLUX Kontext trainer load tiny models."""
    import qflux.trainer.flux_kontext_trainer as trainer  # noqa: PLC0415

    words = kept(folder / "clip", pipelines._clip_tokenizer)
    pieces = kept(folder / "t5", pipelines._t5_tokenizer)

    def seeded(make: Any, number: int) -> Any:
        def load(_: str, weight_dtype: Any, **__: object) -> Any:
            torch.manual_seed(number)
            return make().to(weight_dtype).eval()

        return load

    blocks = {"block_out_channels": (8,) * 4, "latent_channels": 16}
    types = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    trainer.load_flux_kontext_vae = seeded(lambda: pipelines._shifted_vae(**blocks, **types), seed())
    trainer.load_flux_kontext_clip = seeded(lambda: pipelines._clip(words), 3)
    trainer.load_flux_kontext_t5 = seeded(lambda: pipelines._t5(pieces), 4)
    trainer.load_flux_kontext_transformer = seeded(lambda: pipelines._flux_transformer(in_channels=64), 5)
    trainer.load_flux_kontext_tokenizers = lambda _: (words, pieces)
    trainer.load_flux_kontext_scheduler = lambda _: diffusers.FlowMatchEulerDiscreteScheduler()


def record(file: Path) -> None:
    """Write what the cache step has made of each sample, and what each training step is given, into a file."""
    from qflux.trainer.base_trainer import BaseTrainer  # noqa: PLC0415
    from qflux.trainer.flux_kontext_trainer import FluxKontextLoraTrainer  # noqa: PLC0415
    from qflux.trainer.qwen_image_edit_trainer import QwenImageEditTrainer  # noqa: PLC0415

    seen: list[dict[str, Any]] = []

    def tell(**facts: Any) -> None:
        seen.append(facts)
        torch.save(seen, file)

    def tensors(batch: dict[str, Any]) -> dict[str, Any]:
        return {name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)}

    def recorded_cache_step(step: Any) -> Any:
        def cache_step(self: Any, data: dict[str, Any]) -> None:
            tell(made=tensors(data), main_hash=data["file_hashes"]["main_hash"])
            step(self, data)

        return cache_step

    def training_step(self: Any, batch: dict[str, Any]) -> Any:
        facts = {"given": tensors(batch), "main_hash": batch["file_hashes"]["main_hash"], "cached": batch["cached"]}
        loss = step(self, batch)
        tell(**facts, loss=loss.item())
        return loss

    step = BaseTrainer.training_step
    BaseTrainer.training_step = training_step
    for kind in (FluxKontextLoraTrainer, QwenImageEditTrainer):
        kind.cache_step = recorded_cache_step(kind.cache_step)


def encode_missing(config_file: str, file: Path) -> None:
    """Cache the dataset of a Qwen-Image-Edit config with `cache_dataset`, and record how much was encoded."""
    from qflux.data.config import load_config_from_yaml  # noqa: PLC0415
    from qflux.data.dataset import ImageDataset  # noqa: PLC0415
    from qflux.trainer.qwen_image_edit_trainer import QwenImageEditTrainer  # noqa: PLC0415

    from precook.integrations.embedding import EmbeddingCacheManager, cache_dataset  # noqa: PLC0415

    config = load_config_from_yaml(config_file)
    trainer = QwenImageEditTrainer(config)
    trainer.load_model()
    trainer.setup_model_device_train_mode(stage="cache", cache=True)

    def latents(name: str) -> Any:
        def encode(samples: list[Any]) -> list[Any]:
            pixels = [trainer.preprocess_image_for_vae_encoder(sample[name].unsqueeze(0)) for sample in samples]
            sizes = [one.shape[-2:] for one in pixels]
            made = [
                trainer.prepare_latents(one, 1, trainer.num_channels_latents, *size, trainer.weight_dtype)[1]
                for one, size in zip(pixels, sizes, strict=True)
            ]
            return [one[0] for one in made]

        return encode

    def prompts(samples: list[Any]) -> list[Any]:
        pixels = [trainer.preprocess_image_for_text_encoder(sample["control"].unsqueeze(0)) for sample in samples]
        made = [trainer.encode_prompt(sample["prompt"], one) for sample, one in zip(samples, pixels, strict=True)]
        return [(embeds[0], mask[0]) for embeds, mask in made]

    encoders = dict.fromkeys(("image_latents", "control_latents"), trainer.vae)
    with EmbeddingCacheManager(config.cache.cache_dir, encoders=encoders) as manager:
        counts = cache_dataset(
            manager,
            ImageDataset(config.data.init_args),
            {
                "image_latents": latents("image"),
                "control_latents": latents("control"),
                ("prompt_embeds", "prompt_embeds_mask"): prompts,
                ("empty_prompt_embeds", "empty_prompt_embeds_mask"): prompts,
            },
        )
    torch.save(counts, file)


def main(checkout: str, manager: str, record_file: str, *arguments: str) -> None:
    """Run the project's command line."""
    sys.path.insert(0, str(Path(checkout, "src")))
    os.environ["QFLUX_DOTENV_LOADED"] = "1"  # or its first import logs in to a hub
    no_cuda()
    swap(manager)
    import qflux.main  # noqa: PLC0415

    {"FluxKontext": tiny_flux, "QwenImageEdit": tiny_qwen}[os.environ["QFLUX_TRAINER"]](
        Path(record_file).parent / "tokenizers"
    )
    if manager == "missing":
        encode_missing(arguments[-1], Path(record_file))
        return
    record(Path(record_file))
    sys.argv = ["qflux", *arguments]
    qflux.main.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
