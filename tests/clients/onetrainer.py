"""OneTrainer's own data loaders on tiny random models, with one cache or the other.

The loaders, the modules of mgds and the models' classes are the real ones; only the name `DiskCache` in the modules
that import it is exchanged, as the change of an import would. Import this module before anything of OneTrainer's.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.clients.checkouts import checkout

# ruff: noqa: E402, I001 - without the checkouts there is nothing to import, and one import has to come first
sys.path[:0] = [str(checkout("mgds", "Nerogar/mgds") / "src"), str(checkout("OneTrainer", "Nerogar/OneTrainer"))]

import tests.clients.torchvision_operators  # noqa: F401 - before all that imports torchvision

import diffusers
import tokenizers
import torch
import transformers
from PIL import Image

from mgds.pipelineModules.DiskCache import DiskCache as Theirs
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.BalancingStrategy import BalancingStrategy
from modules.util.enum.ConceptType import ConceptType
from modules.util.enum.ModelType import ModelType
from modules.util.TrainProgress import TrainProgress

from precook.integrations.mgds import DiskCache
from precook.report import SILENT

__all__ = [
    "FAMILIES",
    "ConceptType",
    "DiskCache",
    "Loader",
    "Theirs",
    "concept",
    "embedding",
    "pictures",
    "plain",
    "tiny",
]

_HOMES = ("mixin.DataLoaderText2ImageMixin", "StableDiffusionFineTuneVaeDataLoader")
"""Modules of OneTrainer that import the cache."""
_TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
_VOCABULARY = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


# Tiny models


def _tokenizer(length: int = 16) -> Any:
    """Bytes as tokens."""
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {char: 3 + at for at, char in enumerate(_VOCABULARY)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=length,
        chat_template=template,
    )


_WORDS = {"vocab_size": 300, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
_HEADS = _WORDS | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 2048}


class _Clip(transformers.CLIPTextModel):
    """As it was when mgds was written: the encoder was a part of its own."""

    text_model = property(lambda self: self)


def _clip(*, projection: bool = False) -> Any:
    kind = transformers.CLIPTextModelWithProjection if projection else _Clip
    words = _WORDS | {"num_attention_heads": 2, "max_position_embeddings": 256, "projection_dim": 8}
    return kind(transformers.CLIPTextConfig(**words, bos_token_id=1, eos_token_id=2, pad_token_id=0))


def _t5() -> Any:
    return transformers.T5EncoderModel(
        transformers.T5Config(vocab_size=300, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    )


def _kl(**changes: Any) -> Any:
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    sizes = {"block_out_channels": [4] * 4, "norm_num_groups": 2, "latent_channels": 4, "layers_per_block": 1}
    return diffusers.AutoencoderKL(**blocks, **sizes, **changes)


def _sd() -> dict[str, Any]:
    return {"vae": _kl(), "tokenizer": _tokenizer(), "text_encoder": _clip()}


def _sdxl() -> dict[str, Any]:
    return {
        "vae": _kl(),
        "tokenizer_1": _tokenizer(),
        "tokenizer_2": _tokenizer(),
        "text_encoder_1": _clip(),
        "text_encoder_2": _clip(projection=True),
    }


def _sd3() -> dict[str, Any]:
    third = {"tokenizer_3": _tokenizer(), "text_encoder_3": _t5()}
    return _sdxl() | {"text_encoder_1": _clip(projection=True)} | third


def _flux() -> dict[str, Any]:
    return _sdxl() | {"text_encoder_2": _t5()}


def _t5_alone() -> dict[str, Any]:
    return {"vae": _kl(), "tokenizer": _tokenizer(), "text_encoder": _t5()}


def _wan_vae() -> Any:
    return diffusers.AutoencoderKLQwenImage(base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1)


def _qwen() -> dict[str, Any]:
    rope = {"rope_type": "default", "mrope_section": [1, 1], "rope_theta": 10000.0}
    text = _HEADS | {"rope_parameters": rope, "bos_token_id": 1, "eos_token_id": 2}
    sight = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 8}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=sight)
    return {
        "vae": _wan_vae(),
        "tokenizer": _tokenizer(),
        "text_encoder": transformers.Qwen2_5_VLForConditionalGeneration(config),
    }


def _z_image() -> dict[str, Any]:
    return {
        "vae": _kl(),
        "tokenizer": _tokenizer(),
        "text_encoder": transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_HEADS)),
    }


def _hunyuan() -> dict[str, Any]:
    blocks = {"down_block_types": ["HunyuanVideoDownBlock3D"] * 4, "up_block_types": ["HunyuanVideoUpBlock3D"] * 4}
    sizes = {"block_out_channels": [4] * 4, "norm_num_groups": 2, "latent_channels": 4, "layers_per_block": 1}
    return {
        "vae": diffusers.AutoencoderKLHunyuanVideo(**blocks, **sizes),
        "tokenizer_1": _tokenizer(),
        "tokenizer_2": _tokenizer(),
        "text_encoder_1": transformers.LlamaModel(transformers.LlamaConfig(**_HEADS)),
        "text_encoder_2": _clip(),
    }


def _gemma() -> dict[str, Any]:
    return {
        "vae": diffusers.AutoencoderDC(
            latent_channels=4,
            encoder_block_out_channels=[4] * 6,
            decoder_block_out_channels=[4] * 6,
            encoder_layers_per_block=[1] * 6,
            decoder_layers_per_block=[1] * 6,
            encoder_block_types="ResBlock",
            decoder_block_types="ResBlock",
            encoder_qkv_multiscales=[[]] * 6,
            decoder_qkv_multiscales=[[]] * 6,
        ),
        "tokenizer": _tokenizer(),
        "text_encoder": transformers.Gemma2Model(transformers.Gemma2Config(**_HEADS)),
    }


def _flux2_vae() -> Any:
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    sizes = {"block_out_channels": [4] * 4, "norm_num_groups": 2, "latent_channels": 4, "layers_per_block": 1}
    return diffusers.AutoencoderKLFlux2(**blocks, **sizes)


_DEEP = _HEADS | {"num_hidden_layers": 36}
"""With the layers that FLUX.2 and Krea 2 take their texts from."""


def _mistral() -> Any:
    sight = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4}
    text = {"model_type": "mistral", **_DEEP}
    config = transformers.Mistral3Config(text_config=text, vision_config={"model_type": "pixtral", **sight})
    return transformers.Mistral3ForConditionalGeneration(config)


def _qwen3_vl() -> Any:
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0}
    sight = {"depth": 1, "hidden_size": 8, "intermediate_size": 8, "num_heads": 2, "out_hidden_size": 8}
    sight |= {"deepstack_visual_indexes": [0]}
    config = transformers.Qwen3VLConfig(text_config=_DEEP | {"rope_parameters": rope}, vision_config=sight)
    return transformers.Qwen3VLModel(config)


def _transformer(**config: Any) -> Any:
    """What a loader asks of a model that nobody trains here."""
    return SimpleNamespace(config=SimpleNamespace(**config), eval=lambda: None, to=lambda **_: None)


def _flux2(encoder: Callable[[], Any], heads: int = 0) -> dict[str, Any]:
    parts = {"vae": _flux2_vae(), "tokenizer": _tokenizer(), "text_encoder": encoder()}
    return parts | {"transformer": _transformer(num_attention_heads=heads)}


def _klein() -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_DEEP))


def _hidream() -> dict[str, Any]:
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_HEADS))
    layers = _transformer(llama_layers=[0, 1])
    return (
        _sd3()
        | {"text_encoder_2": _clip(projection=True), "tokenizer_4": _tokenizer()}
        | {
            "text_encoder_4": llama,
            "transformer": layers,
        }
    )


def _krea2() -> dict[str, Any]:
    return {"vae": _wan_vae(), "tokenizer": _tokenizer(), "text_encoder": _qwen3_vl()}


def _anima() -> dict[str, Any]:
    sizes = {"source_dim": 8, "target_dim": 8, "model_dim": 8, "num_layers": 1, "num_attention_heads": 2}
    return {
        "vae": _wan_vae(),
        "tokenizer": _tokenizer(),
        "t5_tokenizer": _tokenizer(),
        "text_encoder": transformers.Qwen3Model(transformers.Qwen3Config(**_HEADS)),
        "text_conditioner": diffusers.AnimaTextConditioner(**sizes, target_vocab_size=300),
    }


def _wuerstchen() -> dict[str, Any]:
    kind = importlib.import_module("modules.model.WuerstchenModel").WuerstchenEfficientNetEncoder
    none = dict.fromkeys(("decoder_text_encoder", "decoder_decoder", "decoder_vqgan", "prior_prior"), _transformer())
    return none | {"effnet_encoder": kind(c_latent=4), "prior_tokenizer": _tokenizer(), "prior_text_encoder": _clip()}


FAMILIES: dict[str, tuple[str, str, ModelType, Callable[[], dict[str, Any]]]] = {
    "sd": ("StableDiffusionBaseDataLoader", "StableDiffusionModel", ModelType.STABLE_DIFFUSION_15, _sd),
    "vae": ("StableDiffusionFineTuneVaeDataLoader", "StableDiffusionModel", ModelType.STABLE_DIFFUSION_15, _sd),
    "sdxl": (
        "StableDiffusionXLBaseDataLoader",
        "StableDiffusionXLModel",
        ModelType.STABLE_DIFFUSION_XL_10_BASE,
        _sdxl,
    ),
    "sd3": ("StableDiffusion3BaseDataLoader", "StableDiffusion3Model", ModelType.STABLE_DIFFUSION_3, _sd3),
    "flux": ("FluxBaseDataLoader", "FluxModel", ModelType.FLUX_DEV_1, _flux),
    "pixart": ("PixArtAlphaBaseDataLoader", "PixArtAlphaModel", ModelType.PIXART_ALPHA, _t5_alone),
    "chroma": ("ChromaBaseDataLoader", "ChromaModel", ModelType.CHROMA_1, _t5_alone),
    "sana": ("SanaBaseDataLoader", "SanaModel", ModelType.SANA, _gemma),
    "qwen": ("QwenBaseDataLoader", "QwenModel", ModelType.QWEN, _qwen),
    "z_image": ("ZImageBaseDataLoader", "ZImageModel", ModelType.Z_IMAGE, _z_image),
    "flux2 dev": ("Flux2BaseDataLoader", "Flux2Model", ModelType.FLUX_2, lambda: _flux2(_mistral, 48)),
    "flux2 klein": ("Flux2BaseDataLoader", "Flux2Model", ModelType.FLUX_2, lambda: _flux2(_klein)),
    "ernie": ("ErnieBaseDataLoader", "ErnieModel", ModelType.ERNIE, lambda: _flux2(_mistral)),
    "ideogram": ("IdeogramBaseDataLoader", "IdeogramModel", ModelType.IDEOGRAM_4, lambda: _flux2(_qwen3_vl)),
    "krea2": ("Krea2BaseDataLoader", "Krea2Model", ModelType.KREA_2, _krea2),
    "anima": ("AnimaBaseDataLoader", "AnimaModel", ModelType.ANIMA, _anima),
    "wuerstchen": ("WuerstchenBaseDataLoader", "WuerstchenModel", ModelType.WUERSTCHEN_2, _wuerstchen),
    "hidream": ("HiDreamBaseDataLoader", "HiDreamModel", ModelType.HI_DREAM_FULL, _hidream),
    "hunyuan": ("HunyuanVideoBaseDataLoader", "HunyuanVideoModel", ModelType.HUNYUAN_VIDEO, _hunyuan),
}
"""By a short name: the loader, the model's class, its type, and the parts a loader asks for."""


def tiny(name: str, seed: int = 0, **parts: Any) -> Any:
    """A model of OneTrainer's with tiny random parts; `parts` takes the place of some."""
    _, kind, model_type, make = FAMILIES[name]
    torch.manual_seed(seed)
    model = getattr(importlib.import_module(f"modules.model.{kind}"), kind)(model_type)
    for part, value in (make() | parts).items():
        setattr(model, part, value)
    model.eval()
    return model


def embedding(placeholder: str) -> Any:
    """An embedding of two tokens that takes the place of a word in prompts of SDXL."""
    kind = importlib.import_module("modules.model.StableDiffusionXLModel").StableDiffusionXLModelEmbedding
    return kind("an id", torch.zeros(2, 8), torch.zeros(2, 8), placeholder, is_output_embedding=False)


# Data


def pictures(folder: Path, count: int, *, first: int = 0, captions: bool = True) -> Path:
    """Pictures of noise, each with a caption of two lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        torch.manual_seed(1000 * ord(folder.name[0]) + number)
        pixels = torch.randint(0, 256, (40, 56, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{folder.name} {number:02}.png")
        if captions:
            (folder / f"{folder.name} {number:02}.txt").write_text(f"{folder.name} {number}\nno {number}\n")
    return folder


def concept(path: Path, *, source: str = "sample", **changes: Any) -> ConceptConfig:
    """A concept of OneTrainer's, with `source` for its prompts."""
    made = ConceptConfig.default_values()
    made.name, made.path, made.seed = path.name, str(path), 7
    made.text.prompt_source = source
    for name, value in changes.items():
        target = made
        *outer, last = name.split("__")
        for part in outer:
            target = getattr(target, part)
        setattr(target, last, value)
    made.balancing_strategy = BalancingStrategy(made.balancing_strategy)
    return made


# Loaders


def _without_sources(kind: Any) -> Any:
    """The loader with the change of docs/guides/patch_onetrainer.md: caches and what stands behind them."""

    class Sourceless(kind):  # type: ignore[misc]
        def _create_dataset(
            self, config: Any, model: Any, model_setup: Any, train_progress: Any, is_validation: bool = False
        ) -> Any:
            caches = self._cache_modules(config, model, model_setup)
            output = self._output_modules(config, model, model_setup)
            return self._create_mgds(config, [caches, output], train_progress, is_validation)

    return Sourceless


class Loader:
    """One process' worth of a loader: put together, started, read."""

    def __init__(
        self,
        name: str,
        folder: Path,
        concepts: list[ConceptConfig],
        *,
        cache: Any = DiskCache,
        model: Any = None,
        epoch: int = 0,
        sourceless: bool = False,
        options: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.model = model if model is not None else tiny(name)
        self.caches: list[Any] = []
        settings = TrainConfig.default_values()
        defaults = {
            "model_type": self.model.model_type,
            "train_device": "cpu",
            "temp_device": "cpu",
            "cache_dir": str(folder),
            "concepts": concepts,
            "resolution": "32",
            "batch_size": 1,
            "dataloader_threads": 2,
            "aspect_ratio_bucketing": False,
            "debug_mode": False,
            **{f"{encoder}__train": False for encoder in _TEXT_ENCODERS},
        }
        for option, value in (defaults | config).items():
            target = settings
            *outer, last = option.split("__")
            for part in outer:
                target = getattr(target, part)
            assert hasattr(target, last), option
            setattr(target, last, value)
        self.model.train_config = settings
        self.texts_prepared = 0
        setup = SimpleNamespace(prepare_text_caching=self._prepare_texts)
        loader = FAMILIES[name][0]
        kind = getattr(importlib.import_module(f"modules.dataLoader.{loader}"), loader)
        if sourceless:
            kind, options = _without_sources(kind), {"sourceless": True, **(options or {})}
        with self._caches(cache, options or {}):
            device = torch.device("cpu")
            progress = TrainProgress(epoch=epoch)
            self.loader = kind(device, device, settings, self.model, setup, progress)
        self.data = self.loader.get_data_set()

    def _prepare_texts(self, model: Any, _: Any) -> None:
        self.texts_prepared += 1
        model.eval()

    @contextlib.contextmanager
    def _caches(self, cache: Any, options: dict[str, Any]) -> Iterator[None]:
        def make(**arguments: Any) -> Any:
            more = {"report": SILENT} | options if cache is DiskCache else {}
            made = cache(**arguments, **more)
            self.caches.append(made)
            return made

        homes = [importlib.import_module(f"modules.dataLoader.{home}") for home in _HOMES]
        for home in homes:
            home.DiskCache = make
        try:
            yield
        finally:
            for home in homes:
                home.DiskCache = Theirs

    def epoch(self) -> list[dict[str, Any]]:
        """Start the next epoch and read all of it."""
        self.data.start_next_epoch()
        return list(self.loader.get_data_loader())

    @contextlib.contextmanager
    def counting(self) -> Iterator[dict[str, int]]:
        """How often each encoder is called meanwhile; nothing of the models is changed for it."""
        counts = {"image": 0, "text": 0}
        encoder = self.model.effnet_encoder if hasattr(self.model, "effnet_encoder") else self.model.vae.encoder
        watched = {id(encoder): "image"}
        for name, part in vars(self.model).items():
            if "text_encoder" in name and isinstance(part, torch.nn.Module):
                watched[id(part)] = "text"

        def count(module: Any, *_: object) -> None:
            if id(module) in watched:
                counts[watched[id(module)]] += 1

        hook = torch.nn.modules.module.register_module_forward_hook(count)
        try:
            yield counts
        finally:
            hook.remove()

    def close(self) -> None:
        for cache in self.caches:
            if hasattr(cache, "close"):
                cache.close()
        for module in self.data.loading_pipeline.modules:
            module._state.executor.shutdown()
            break

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plain(value: Any) -> Any:
    """An item as data that can be compared, bit for bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().flatten().view(torch.uint8).tolist()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(part) for part in value)
    return value
