"""Tiny pipelines of diffusers, whole and saved as their real ones are: random weights, hidden size 32, a few layers.

`tiny_pipeline("flux", folder)` saves one. Each is made of the classes that the real model's model_index.json names, so
whoever reads such a folder meets what a download has. Its tokenizers know letters, bytes and some syllables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")

WIDTH = 32
_LAYERS = 2
_CORPUS = (
    "the main content and theme of the video, the color, shape, size, texture, quantity and spatial relationships "
    "of the objects and the background; actions, events, movements and changes, light, style and atmosphere; "
    "describe the image by detailing what is in it; you are an assistant that reasons about image descriptions and "
    "gives structured responses; <|start_header_id|>system<|end_header_id|> <|start_header_id|>user<|end_header_id|> "
    "camera angles, transitions, physical behaviors, temporal environment, aspects, following, used, prompt"
)
_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PARTS_CHAT = (
    "{% for message in messages %}[{{ message.role }}]"
    "{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"
)


def tiny_pipeline(family: str, folder: Path) -> Path:
    """The pipeline of a family, saved in a folder: all its parts and model_index.json."""
    torch.manual_seed(0)
    pipeline = (FAMILIES | SEEING)[family](folder)
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    pipeline.save_pretrained(folder)
    return folder


# Tokenizers


@cache
def _merged(*, suffix: str = "", space: str = "") -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens and merges of a small byte pair encoding; `suffix` ends a word, `space` stands for a blank."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: PLC0415

    ending = {"end_of_word_suffix": suffix} if suffix else {}
    bare = Tokenizer(models.BPE(**ending))
    bare.pre_tokenizer = pre_tokenizers.Metaspace(space) if space else pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = [chr(code) for code in range(33, 127)] if space else sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=letters, show_progress=False, **ending)
    bare.train_from_iterator([_CORPUS], trainer)
    model = json.loads(bare.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokens += [letter + suffix for letter in letters if suffix and letter + suffix not in model["vocab"]]
    return tokens, [tuple(pair) for pair in model["merges"]]


def _vocabulary(special: list[str], tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(dict.fromkeys([*special, *tokens]))}


def _bytes() -> list[str]:
    return [f"<0x{number:02X}>" for number in range(256)]


def _clip_tokenizer(limit: int = 77) -> Any:
    tokens, merges = _merged(suffix="</w>")
    vocabulary = _vocabulary([], [*tokens, "<|startoftext|>", "<|endoftext|>"])
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=limit)


def _t5_tokenizer(limit: int = 512) -> Any:
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(chr(code), -3.0) for code in range(33, 127)]
    pieces += [(f"▁{word}", -4.0) for word in ("a", "cat", "dog", "the", "on", "mat")]
    return transformers.T5TokenizerFast(vocab=pieces, extra_ids=0, model_max_length=limit)


def _qwen_tokenizer(vision: tuple[str, ...] = ()) -> Any:
    tokens, merges = _merged()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *vision]
    tokenizer = transformers.Qwen2Tokenizer(
        vocab=_vocabulary(special, tokens), merges=merges, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [special[1], *vision]})
    tokenizer.chat_template = _CHAT
    return tokenizer


def _gemma_tokenizer() -> Any:
    tokens, merges = _merged(space="▁")
    vocabulary = _vocabulary(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], [*tokens, *_bytes()])
    return transformers.GemmaTokenizer(vocab=vocabulary, merges=merges)


def _llama_tokenizer(**options: Any) -> Any:
    tokens, merges = _merged(space="▁")
    vocabulary = _vocabulary(["<unk>", "<s>", "</s>", "<pad>"], [*tokens, *_bytes()])
    options = {"pad_token": "<pad>", "model_max_length": 512, **options}
    return transformers.LlamaTokenizer(vocab=vocabulary, merges=merges, **options)


def _glm_tokenizer(folder: Path) -> Any:
    """A tokenizer of Kolors, which is read from a file of sentencepiece."""
    sentencepiece: Any = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    from diffusers.pipelines.kolors.tokenizer import ChatGLMTokenizer  # noqa: PLC0415

    place = folder / "tokenizer"
    place.mkdir(parents=True)
    with (place / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_CORPUS.split(", ")),
            model_writer=file,
            vocab_size=300,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    return ChatGLMTokenizer(str(place / "tokenizer.model"))


# Text encoders


def _sizes(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 4,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        **changes,
    }


def _clip(tokenizer: Any, *, projected: bool = False, positions: int = 77) -> Any:
    config = transformers.CLIPTextConfig(
        **_sizes(tokenizer, max_position_embeddings=positions), projection_dim=WIDTH, hidden_act="gelu"
    )
    return (transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel)(config)


def _t5(tokenizer: Any, *, multilingual: bool = False) -> Any:
    prefix = "UMT5" if multilingual else "T5"
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=len(tokenizer), d_model=WIDTH, d_kv=8, d_ff=48, num_layers=_LAYERS, num_heads=4
    )
    return getattr(transformers, f"{prefix}EncoderModel")(config)


def _gemma(tokenizer: Any) -> Any:
    return transformers.Gemma2Model(
        transformers.Gemma2Config(**_sizes(tokenizer, num_key_value_heads=2, head_dim=8, sliding_window=64))
    )


def _llama(tokenizer: Any, *, causal: bool = False, layers: int = _LAYERS) -> Any:
    config = transformers.LlamaConfig(**_sizes(tokenizer, num_key_value_heads=2, num_hidden_layers=layers))
    return (transformers.LlamaForCausalLM if causal else transformers.LlamaModel)(config)


def _qwen3(tokenizer: Any, *, causal: bool = False, layers: int = _LAYERS) -> Any:
    config = transformers.Qwen3Config(**_sizes(tokenizer, num_key_value_heads=2, head_dim=8, num_hidden_layers=layers))
    return (transformers.Qwen3ForCausalLM if causal else transformers.Qwen3Model)(config)


def _qwen_vl(tokenizer: Any, ids: Sequence[int] = (1, 2, 3, 4, 5)) -> Any:
    start, end, pad, image, video = ids
    rope = {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"}
    config = transformers.Qwen2_5_VLConfig(
        text_config=_sizes(tokenizer, num_key_value_heads=2, rope_scaling=rope, rope_theta=10000.0),
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": WIDTH,
        },
        vision_start_token_id=start,
        vision_end_token_id=end,
        vision_token_id=pad,
        image_token_id=image,
        video_token_id=video,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def _mistral_vl(tokenizer: Any, *, layers: int) -> Any:
    text = _sizes(tokenizer, num_key_value_heads=2, head_dim=8, num_hidden_layers=layers)
    vision = {
        "model_type": "pixtral",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Mistral3Config(
        text_config={"model_type": "mistral", **text}, vision_config=vision, image_token_index=len(tokenizer) - 1
    )
    return transformers.Mistral3ForConditionalGeneration(config)


def _glm(tokenizer: Any) -> Any:
    from diffusers.pipelines.kolors.text_encoder import ChatGLMConfig, ChatGLMModel  # noqa: PLC0415

    config = ChatGLMConfig(
        num_layers=_LAYERS,
        padded_vocab_size=tokenizer.vocab_size,
        hidden_size=WIDTH,
        ffn_hidden_size=48,
        kv_channels=8,
        num_attention_heads=4,
        seq_length=512,
        multi_query_attention=True,
        multi_query_group_num=2,
        add_qkv_bias=True,
        original_rope=True,
        use_cache=True,
    )
    model = ChatGLMModel(config)
    # Some come as whatever was in memory.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


# VAEs and what denoises


def _vae(**changes: Any) -> Any:
    return diffusers.AutoencoderKL(
        **{
            "block_out_channels": (8, 8),
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "layers_per_block": 1,
            "latent_channels": 4,
            "norm_num_groups": 4,
            "sample_size": 32,
            **changes,
        }
    )


def _shifted_vae(**changes: Any) -> Any:
    options = {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.1159, "scaling_factor": 0.3611}
    return _vae(**options, **changes)


def _unet(cross: int, **changes: Any) -> Any:
    return diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(8, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        cross_attention_dim=cross,
        norm_num_groups=4,
        **changes,
    )


def _unet_xl(cross: int, pooled: int, ids: int = 6) -> Any:
    return _unet(
        cross,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=8 * ids + pooled,
    )


def _noise() -> Any:
    return diffusers.DDPMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, clip_sample=False
    )


def _flow() -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler()


# Families


def _sd(_: Path) -> Any:
    words = _clip_tokenizer()
    return diffusers.StableDiffusionPipeline(
        vae=_vae(),
        text_encoder=_clip(words),
        tokenizer=words,
        unet=_unet(WIDTH),
        scheduler=_noise(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _sdxl(_: Path) -> Any:
    words, others = _clip_tokenizer(), _clip_tokenizer()
    return diffusers.StableDiffusionXLPipeline(
        vae=_vae(scaling_factor=0.13025),
        text_encoder=_clip(words),
        text_encoder_2=_clip(others, projected=True),
        tokenizer=words,
        tokenizer_2=others,
        unet=_unet_xl(2 * WIDTH, WIDTH),
        scheduler=_noise(),
    )


def _sdxl_refiner(_: Path) -> Any:
    words = _clip_tokenizer()
    return diffusers.StableDiffusionXLImg2ImgPipeline(
        vae=_vae(scaling_factor=0.13025),
        text_encoder=None,
        text_encoder_2=_clip(words, projected=True),
        tokenizer=None,
        tokenizer_2=words,
        unet=_unet_xl(WIDTH, WIDTH, ids=5),
        scheduler=_noise(),
        requires_aesthetics_score=True,
    )


def _sd3(_: Path) -> Any:
    words, others, pieces = _clip_tokenizer(), _clip_tokenizer(), _t5_tokenizer()
    return diffusers.StableDiffusion3Pipeline(
        transformer=diffusers.SD3Transformer2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_projection_dim=WIDTH,
            joint_attention_dim=2 * WIDTH,
            pooled_projection_dim=2 * WIDTH,
        ),
        scheduler=_flow(),
        vae=_shifted_vae(),
        text_encoder=_clip(words, projected=True),
        tokenizer=words,
        text_encoder_2=_clip(others, projected=True),
        tokenizer_2=others,
        text_encoder_3=_wide_t5(pieces),
        tokenizer_3=pieces,
    )


def _wide_t5(tokenizer: Any) -> Any:
    """As wide as both CLIP models together, at least: theirs are filled up to it."""
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=2 * WIDTH, d_kv=8, d_ff=48, num_layers=_LAYERS, num_heads=4
    )
    return transformers.T5EncoderModel(config)


def _flux_transformer(*, in_channels: int) -> Any:
    return diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=in_channels,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    )


def _flux(_: Path) -> Any:
    words, pieces = _clip_tokenizer(), _t5_tokenizer()
    return diffusers.FluxPipeline(
        scheduler=_flow(),
        vae=_shifted_vae(),
        text_encoder=_clip(words),
        tokenizer=words,
        text_encoder_2=_t5(pieces),
        tokenizer_2=pieces,
        transformer=_flux_transformer(in_channels=16),
    )


def _flux2_parts(**changes: Any) -> dict[str, Any]:
    return {
        "scheduler": _flow(),
        "vae": diffusers.AutoencoderKLFlux2(
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(8, 8),
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=32,
        ),
        "transformer": diffusers.Flux2Transformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            # Three layers of the text encoder side by side.
            joint_attention_dim=3 * WIDTH,
            axes_dims_rope=(4, 4, 4, 4),
            **changes,
        ),
    }


def _flux2(_: Path) -> Any:
    # Its own is a PixtralProcessor, which needs torchvision; the pipeline calls it as it would call its tokenizer.
    tokenizer = _llama_tokenizer(chat_template=_PARTS_CHAT)
    # It reads the hidden states 10, 20 and 30.
    encoder = _mistral_vl(tokenizer, layers=30)
    return diffusers.Flux2Pipeline(text_encoder=encoder, tokenizer=tokenizer, **_flux2_parts())


def _flux2_klein(_: Path) -> Any:
    tokenizer = _qwen_tokenizer()
    # It reads the hidden states 9, 18 and 27.
    encoder = _qwen3(tokenizer, causal=True, layers=27)
    return diffusers.Flux2KleinPipeline(
        text_encoder=encoder, tokenizer=tokenizer, **_flux2_parts(guidance_embeds=False)
    )


def _qwen_image(_: Path) -> Any:
    tokenizer = _qwen_tokenizer()
    return diffusers.QwenImagePipeline(
        scheduler=_flow(),
        vae=diffusers.AutoencoderKLQwenImage(
            base_dim=8,
            z_dim=4,
            dim_mult=[1, 1],
            num_res_blocks=1,
            temperal_downsample=[False],
            latents_mean=[0.1, -0.2, 0.3, -0.4],
            latents_std=[1.1, 1.2, 1.3, 1.4],
        ),
        text_encoder=_qwen_vl(tokenizer),
        tokenizer=tokenizer,
        transformer=diffusers.QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(8, 4, 4),
        ),
    )


def _qwen_edit(folder: Path) -> Any:
    vision = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer = _qwen_tokenizer(vision)
    base = _qwen_image(folder)
    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=64 * 28 * 28),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(),
        chat_template=_CHAT,
    )
    text_encoder = _qwen_vl(tokenizer, tokenizer.convert_tokens_to_ids(list(vision)))
    parts = {**base.components, "tokenizer": tokenizer, "text_encoder": text_encoder, "processor": processor}
    return diffusers.QwenImageEditPipeline(**parts)


def _qwen_edit_plus(folder: Path) -> Any:
    return diffusers.QwenImageEditPlusPipeline(**_qwen_edit(folder).components)


def _wan(_: Path) -> Any:
    pieces = _t5_tokenizer()
    return diffusers.WanPipeline(
        tokenizer=pieces,
        text_encoder=_t5(pieces, multilingual=True),
        vae=diffusers.AutoencoderKLWan(
            base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        ),
        scheduler=_flow(),
        transformer=diffusers.WanTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=WIDTH,
            freq_dim=32,
            ffn_dim=32,
            num_layers=1,
            cross_attn_norm=True,
            rope_max_seq_len=32,
        ),
    )


def _hunyuan_video(_: Path) -> Any:
    tokenizer, words = _llama_tokenizer(), _clip_tokenizer()
    return diffusers.HunyuanVideoPipeline(
        # It reads the last hidden state but two.
        text_encoder=_llama(tokenizer, layers=4),
        tokenizer=tokenizer,
        transformer=diffusers.HunyuanVideoTransformer3DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=10,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=1,
            text_embed_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            rope_axes_dim=(2, 4, 4),
        ),
        vae=diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=4,
            down_block_types=("HunyuanVideoDownBlock3D",) * 4,
            up_block_types=("HunyuanVideoUpBlock3D",) * 4,
            block_out_channels=(8, 8, 8, 8),
            layers_per_block=1,
            norm_num_groups=4,
        ),
        scheduler=_flow(),
        text_encoder_2=_clip(words),
        tokenizer_2=words,
    )


def _ltx(_: Path) -> Any:
    pieces = _t5_tokenizer()
    return diffusers.LTXPipeline(
        scheduler=_flow(),
        vae=diffusers.AutoencoderKLLTXVideo(
            latent_channels=8,
            block_out_channels=(8, 8, 8, 8),
            decoder_block_out_channels=(8, 8, 8, 8),
            layers_per_block=(1, 1, 1, 1, 1),
            decoder_layers_per_block=(1, 1, 1, 1, 1),
            spatio_temporal_scaling=(True, True, False, False),
            decoder_spatio_temporal_scaling=(True, True, False, False),
            patch_size=1,
        ),
        text_encoder=_t5(pieces),
        tokenizer=pieces,
        transformer=diffusers.LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=4,
            attention_head_dim=8,
            cross_attention_dim=WIDTH,
            num_layers=1,
            caption_channels=WIDTH,
        ),
    )


def _cogvideox(_: Path) -> Any:
    pieces = _t5_tokenizer()
    return diffusers.CogVideoXPipeline(
        tokenizer=pieces,
        text_encoder=_t5(pieces),
        vae=diffusers.AutoencoderKLCogVideoX(
            down_block_types=("CogVideoXDownBlock3D",) * 4,
            up_block_types=("CogVideoXUpBlock3D",) * 4,
            block_out_channels=(8, 8, 8, 8),
            latent_channels=4,
            layers_per_block=1,
            norm_num_groups=4,
        ),
        transformer=diffusers.CogVideoXTransformer3DModel(
            num_attention_heads=4,
            attention_head_dim=8,
            in_channels=4,
            out_channels=4,
            time_embed_dim=4,
            text_embed_dim=WIDTH,
            num_layers=1,
            sample_width=4,
            sample_height=4,
            sample_frames=5,
            max_text_seq_length=226,
        ),
        scheduler=diffusers.CogVideoXDDIMScheduler(),
    )


def _sana(_: Path) -> Any:
    tokenizer = _gemma_tokenizer()
    return diffusers.SanaPipeline(
        tokenizer=tokenizer,
        text_encoder=_gemma(tokenizer),
        vae=diffusers.AutoencoderDC(
            latent_channels=4,
            attention_head_dim=4,
            encoder_block_types=("ResBlock", "EfficientViTBlock"),
            decoder_block_types=("ResBlock", "EfficientViTBlock"),
            encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8),
            encoder_layers_per_block=(1, 1),
            decoder_layers_per_block=(1, 1),
            encoder_qkv_multiscales=((), (5,)),
            decoder_qkv_multiscales=((), (5,)),
            scaling_factor=0.41407,
        ),
        transformer=diffusers.SanaTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_attention_heads=2,
            attention_head_dim=4,
            num_cross_attention_heads=2,
            cross_attention_head_dim=4,
            cross_attention_dim=8,
            caption_channels=WIDTH,
            sample_size=16,
        ),
        scheduler=diffusers.DPMSolverMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction"),
    )


def _lumina2(_: Path) -> Any:
    tokenizer = _gemma_tokenizer()
    return diffusers.Lumina2Pipeline(
        transformer=diffusers.Lumina2Transformer2DModel(
            sample_size=16,
            in_channels=4,
            hidden_size=8,
            num_layers=1,
            num_attention_heads=1,
            num_kv_heads=1,
            multiple_of=16,
            axes_dim_rope=(4, 2, 2),
            cap_feat_dim=WIDTH,
        ),
        scheduler=_flow(),
        vae=_shifted_vae(),
        text_encoder=_gemma(tokenizer),
        tokenizer=tokenizer,
    )


def _chroma(_: Path) -> Any:
    pieces = _t5_tokenizer()
    return diffusers.ChromaPipeline(
        scheduler=_flow(),
        vae=_shifted_vae(),
        text_encoder=_t5(pieces),
        tokenizer=pieces,
        transformer=diffusers.ChromaTransformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            axes_dims_rope=(4, 4, 8),
            approximator_hidden_dim=32,
            approximator_layers=1,
            approximator_num_channels=16,
        ),
    )


def _hidream(_: Path) -> Any:
    words, others = _clip_tokenizer(128), _clip_tokenizer(128)
    pieces, llama = _t5_tokenizer(), _llama_tokenizer()
    return diffusers.HiDreamImagePipeline(
        scheduler=_flow(),
        vae=_shifted_vae(),
        text_encoder=_clip(words, projected=True, positions=128),
        tokenizer=words,
        text_encoder_2=_clip(others, projected=True, positions=128),
        tokenizer_2=others,
        text_encoder_3=_t5(pieces),
        tokenizer_3=pieces,
        text_encoder_4=_llama(llama, causal=True),
        tokenizer_4=llama,
        transformer=diffusers.HiDreamImageTransformer2DModel(
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_channels=[WIDTH, WIDTH],
            text_emb_dim=2 * WIDTH,
            num_routed_experts=4,
            num_activated_experts=2,
            axes_dims_rope=(4, 2, 2),
            max_resolution=(32, 32),
            llama_layers=(0, 1),
        ),
    )


def _pixart(_: Path) -> Any:
    pieces = _t5_tokenizer()
    return diffusers.PixArtSigmaPipeline(
        tokenizer=pieces,
        text_encoder=_t5(pieces),
        vae=_vae(),
        transformer=diffusers.PixArtTransformer2DModel(
            sample_size=16,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            in_channels=4,
            out_channels=8,
            cross_attention_dim=16,
            caption_channels=WIDTH,
        ),
        scheduler=_noise(),
    )


def _auraflow(_: Path) -> Any:
    pieces = _t5_tokenizer()
    return diffusers.AuraFlowPipeline(
        tokenizer=pieces,
        text_encoder=_t5(pieces, multilingual=True),
        vae=_vae(),
        transformer=diffusers.AuraFlowTransformer2DModel(
            sample_size=16,
            in_channels=4,
            num_mmdit_layers=1,
            num_single_dit_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=WIDTH,
            caption_projection_dim=32,
            out_channels=4,
            pos_embed_max_size=64,
        ),
        scheduler=_flow(),
    )


def _kolors(folder: Path) -> Any:
    tokenizer = _glm_tokenizer(folder)
    return diffusers.KolorsPipeline(
        vae=_vae(scaling_factor=0.13025),
        text_encoder=_glm(tokenizer),
        tokenizer=tokenizer,
        unet=_unet_xl(WIDTH, WIDTH),
        scheduler=_noise(),
    )


def _z_image(_: Path) -> Any:
    tokenizer = _qwen_tokenizer()
    transformer = diffusers.ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=1,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=WIDTH,
        axes_dims=[8, 4, 4],
        axes_lens=[256, 32, 32],
    )
    # These come as whatever was in memory.
    for parameter in (transformer.x_pad_token, transformer.cap_pad_token):
        torch.nn.init.ones_(parameter)
    return diffusers.ZImagePipeline(
        scheduler=_flow(),
        vae=_shifted_vae(),
        text_encoder=_qwen3(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer,
    )


FAMILIES: dict[str, Callable[[Path], Any]] = {
    "sd": _sd,
    "sdxl": _sdxl,
    "sdxl-refiner": _sdxl_refiner,
    "sd3": _sd3,
    "flux": _flux,
    "flux2": _flux2,
    "flux2-klein": _flux2_klein,
    "qwen-image": _qwen_image,
    "wan": _wan,
    "hunyuan-video": _hunyuan_video,
    "ltx": _ltx,
    "cogvideox": _cogvideox,
    "sana": _sana,
    "lumina2": _lumina2,
    "chroma": _chroma,
    "hidream": _hidream,
    "pixart": _pixart,
    "auraflow": _auraflow,
    "kolors": _kolors,
    "z-image": _z_image,
}
"""What makes each family's pipeline; the folder is for parts that are made of files."""
SEEING: dict[str, Callable[[Path], Any]] = {"qwen-image-edit": _qwen_edit, "qwen-image-edit-plus": _qwen_edit_plus}
"""The same for pipelines whose prompts see a picture; their processors need torchvision."""
