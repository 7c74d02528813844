"""What OneTrainer does to its models beside their weights: nothing old is shown for a model that was changed.

Each change is made by OneTrainer's own code. What a changed model gives on a store that holds the entries of the
unchanged one is what it gives on an empty one, and going back costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# ruff: noqa: I001 - the import that makes the checkouts importable comes first
from tests.clients.onetrainer import DiskCache, Loader, concept, pictures, plain, tiny

import peft
import torch

from modules.model.StableDiffusionModel import StableDiffusionModelEmbedding
from modules.module.AdditionalEmbeddingWrapper import AdditionalEmbeddingWrapper
from modules.module.LoRAModule import LoRAModuleWrapper
from modules.util.checkpointing_util import enable_checkpointing_for_clip_encoder_layers
from modules.util.config.TrainConfig import TrainConfig
from modules.util.conv_util import apply_circular_padding_to_conv2d
from modules.util.enum.DataType import DataType
from modules.util.enum.ModelType import PeftType
from modules.util.quantization_util import quantize_layers, replace_linear_with_quantized_layers

from precook import identify
from precook.identity.canonical import canonical

SAMPLES = 16


@pytest.fixture
def cats(tmp_path: Path) -> Path:
    return pictures(tmp_path / "cats", SAMPLES)


def shown(folder: Path, cats: Path, model: Any) -> tuple[Any, dict[str, int]]:
    """One epoch in a new process' place, and how often encoders were called for it."""
    with Loader("sd", folder, [concept(cats)], model=model) as loader, loader.counting() as counts:
        return plain(loader.epoch()), dict(counts)


def tile(model: Any) -> None:
    model.vae.enable_tiling()
    model.vae.tile_sample_min_size, model.vae.tile_latent_min_size = 16, 2


def write_data(model: Any) -> None:
    model.vae.encoder.conv_in.weight.data.mul_(3)


def hook_lora(model: Any, **changes: Any) -> LoRAModuleWrapper:
    config = TrainConfig.default_values()
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(1)
    lora = LoRAModuleWrapper(model.text_encoder, "lora_te", config, [])
    with torch.no_grad():
        for parameter in lora.parameters():
            parameter.add_(0.3)
    lora.hook_to_module()
    return lora


def add_peft(model: Any) -> None:
    torch.manual_seed(1)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model.text_encoder.add_adapter(config)


def quantise(model: Any, dtype: DataType) -> None:
    replace_linear_with_quantized_layers(model.text_encoder, dtype, keep_in_fp32_modules=[], copy_parameters=True)
    quantize_layers(model.text_encoder, torch.device("cpu"), DataType.FLOAT_32, TrainConfig.default_values())


def embed(model: Any, *values: float) -> None:
    """Extra embeddings that are not trained, one for each value, as OneTrainer's setup adds them."""
    for number, value in enumerate(values):
        vector = torch.full((2, 8), value)
        extra = StableDiffusionModelEmbedding(str(number), vector, f"<new{number}>", is_output_embedding=False)
        model.additional_embeddings.append(extra)
    embeddings = model.all_text_encoder_embeddings()
    for embedding in embeddings:
        model.tokenizer.add_tokens(embedding.text_tokens)
    part = model.text_encoder.get_input_embeddings()
    AdditionalEmbeddingWrapper(model.tokenizer, part, embeddings).hook_to_module()


CHANGES: dict[str, tuple[str, Callable[[Any], object]]] = {
    "circular padding": ("image", lambda model: apply_circular_padding_to_conv2d(model.vae)),
    "tiling": ("image", tile),
    "weights through .data": ("image", write_data),
    "LoRA": ("text", hook_lora),
    "LoHa": ("text", lambda model: hook_lora(model, peft_type=PeftType.LOHA)),
    "DoRA": ("text", lambda model: hook_lora(model, lora_decompose=True)),
    "OFT": ("text", lambda model: hook_lora(model, peft_type=PeftType.OFT_2, oft_block_size=2)),
    "peft": ("text", add_peft),
    "float8": ("text", lambda model: quantise(model, DataType.FLOAT_8)),
    "W8A8": ("text", lambda model: quantise(model, DataType.FLOAT_W8A8)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_never_gets_what_the_unchanged_one_made(tmp_path: Path, cats: Path, name: str) -> None:
    """All samples are encoded anew by the part that was changed, and by no other; the unchanged model finds its own."""
    kind, change = CHANGES[name]
    before, _ = shown(tmp_path / "store", cats, tiny("sd"))
    model = tiny("sd")
    change(model)
    expected, _ = shown(tmp_path / "empty", cats, model)
    items, encoded = shown(tmp_path / "store", cats, model)
    assert items == expected
    assert items != before
    assert encoded.pop(kind) in (SAMPLES, 9 * SAMPLES)  # in nine tiles each
    assert set(encoded.values()) == {0}
    assert shown(tmp_path / "store", cats, tiny("sd")) == (before, {"image": 0, "text": 0})


def test_two_quantisations_of_equal_weights_are_two_models(tmp_path: Path, cats: Path) -> None:
    """Float8 and W8A8 have the same bytes, and one is never shown what the other made."""
    models = [tiny("sd"), tiny("sd")]
    for model, dtype in zip(models, (DataType.FLOAT_8, DataType.FLOAT_W8A8), strict=True):
        quantise(model, dtype)
    identities: list[Any] = [identify(model.text_encoder) for model in models]
    assert identities[0]["weights"] == identities[1]["weights"]
    assert [shown(tmp_path / "store", cats, model)[1]["text"] for model in models] == [SAMPLES, SAMPLES]


def test_an_extra_embedding_that_is_not_trained_encodes_texts_once(tmp_path: Path, cats: Path) -> None:
    """Its tokens have other names in each process; texts with them and without are the same while its vectors are."""
    for number, caption in enumerate(sorted(cats.glob("*.txt"))):
        caption.write_text(f"a <new{number % 3}> cat {number}")  # of the third there is none

    def run(*values: float, store: str = "store") -> tuple[Any, dict[str, int]]:
        model = tiny("sd")
        embed(model, *values)
        items, encoded = shown(tmp_path / store, cats, model)
        for item in items:
            del item["prompt"]  # which has the names in it
        return items, encoded

    first, encoded = run(0.5, 0.6)
    assert encoded["text"] == SAMPLES
    assert run(0.5, 0.6) == (first, {"image": 0, "text": 0})
    for values in ((0.6, 0.5), (0.5,), (0.5, 0.7)):
        items, encoded = run(*values)
        assert items == run(*values, store=f"empty {values}")[0]
        assert encoded == {"image": 0, "text": SAMPLES}


def test_options_that_are_off_cost_nothing(tmp_path: Path, cats: Path) -> None:
    """What a concept would do if it did, and options that OneTrainer's next version brings, encode nothing again."""

    def run(concept_: Any) -> tuple[Any, dict[str, int]]:
        with Loader("sd", tmp_path / "store", [concept_]) as loader, loader.counting() as counts:
            return plain(loader.epoch()), dict(counts)

    before, _ = run(concept(cats))
    changes = {"image__random_rotate_max_angle": 9.0, "image__resolution_override": "64", "text__tag_delimiter": ";"}
    assert run(concept(cats, **changes)) == (before, {"image": 0, "text": 0})
    newer = concept(cats)
    for section, name in ((newer.image, "enable_random_blur"), (newer.text, "enable_synonyms")):
        setattr(section, name, False)
        section.types[name], section.nullables[name], section.default_values[name] = bool, False, False
    assert newer.to_dict()["image"]["enable_random_blur"] is False
    assert run(newer) == (before, {"image": 0, "text": 0})
    flipped, counts = run(concept(cats, image__enable_fixed_flip=True))
    assert counts == {"image": SAMPLES, "text": 0}
    assert flipped != before
    assert run(concept(cats, image__enable_resolution_override=True, image__resolution_override="64"))[1]["image"]
    assert run(concept(cats)) == (before, {"image": 0, "text": 0})


def test_what_changes_no_result_keeps_what_was_made(tmp_path: Path, cats: Path) -> None:
    """Checkpointing, a LoRA that is taken off and a place for embeddings without any find everything."""
    before, _ = shown(tmp_path / "store", cats, tiny("sd"))
    model = tiny("sd")
    config = TrainConfig.default_values()
    enable_checkpointing_for_clip_encoder_layers(model.text_encoder, config, config.text_encoder)
    part = model.text_encoder.get_input_embeddings()
    AdditionalEmbeddingWrapper(model.tokenizer, part, []).hook_to_module()
    hook_lora(model).remove_hook_from_module()
    assert canonical(identify(model.text_encoder)) == canonical(identify(tiny("sd").text_encoder))
    assert shown(tmp_path / "store", cats, model) == (before, {"image": 0, "text": 0})


def test_the_cache_is_ours() -> None:
    """The tests above would say nothing about another one."""
    assert DiskCache.is_precook_cache
