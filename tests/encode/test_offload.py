"""Models whose weights are more than they may take of their device: the rest stays in main memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from precook.config import encoders
from precook.config.check import check
from precook.encode.encoder import Item
from precook.encode.offload import place_model, weights_size
from precook.encode.prompt import PromptEncoder
from precook.encode.text import TextEncoder
from precook.encode.vae import VaeEncoder
from precook.errors import ConfigError, EncodeError
from tests.support.configs import small

pytest.importorskip("accelerate", reason="weights are offloaded by accelerate, which is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
test_text = pytest.importorskip("tests.encode.test_text")
test_vae = pytest.importorskip("tests.encode.test_vae")
pipelines = pytest.importorskip("tests.support.pipelines")

TEXTS = [Item(text="a cat"), Item(text="the old house by the sea"), Item(text="two birds")]


def models_of(encoder: Any) -> list[Any]:
    """The models that an encoder has loaded."""
    if isinstance(encoder, TextEncoder):
        return [encoder._parts()[1]._model]
    if isinstance(encoder, VaeEncoder):
        assert encoder._vae is not None
        return [encoder._vae.model]
    assert encoder._pipeline is not None
    parts = encoder._pipeline._pipeline.components.values()
    return [part for part in parts if isinstance(part, torch.nn.Module)]


def encode_twice(make: Any, batch: list[Item], share: float, caplog: pytest.LogCaptureFixture) -> None:
    """Results with all weights where they belong, and with a share of them: the same to the bit, within the bound."""
    caplog.set_level(logging.WARNING, "precook")
    free = make("auto")
    free.load("cpu")
    size = sum(map(weights_size, models_of(free)))
    expected = free.encode(batch)
    assert not caplog.messages
    bound = int(size * share)
    bounded = make(f"{bound}B")
    bounded.load("cpu")
    assert sum(map(weights_size, models_of(bounded))) <= bound
    # A model that is all there still may be.
    assert bounded.can_compile == (len(models_of(bounded)) > 1)
    for _ in range(2):
        for tree, wanted in zip(bounded.encode(batch), expected, strict=True):
            for leaf, other in zip(*(_leaves(one) for one in (tree, wanted)), strict=True):
                assert torch.equal(leaf, other)
    assert sum(map(weights_size, models_of(bounded))) <= bound
    assert "stay in main memory" in caplog.text
    bounded.unload()


def _leaves(tree: Any) -> list[Any]:
    return list(tree.values()) if isinstance(tree, dict) else [tree]


@pytest.mark.parametrize("family", ["clip", "t5", "qwen3", "bert"])
def test_a_text_encoder_beyond_its_bound_gives_the_same(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its layers are like, also those with weights that two parts share."""
    known = test_text.FAMILIES[family]
    folder = test_text.save_model(tmp_path, known.saved(), **known.tokenizer)

    def make(memory: str) -> TextEncoder:
        fields: dict[str, Any] = {"max_length": test_text.LIMIT, "device_memory": memory}
        return TextEncoder(
            encoders.TransformersText(uses="transformers-text", model="unused", **fields), folder, folder
        )

    encode_twice(make, TEXTS, 0.7, caplog)


@pytest.mark.parametrize("name", ["kl", "qwen"])
def test_a_vae_beyond_its_bound_gives_the_same(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of pictures and of videos; its encoder is called by another name than other models are."""
    torch.manual_seed(0)
    test_vae.MODELS[name]().save_pretrained(tmp_path)
    batch = [Item(image=picture) for picture in test_vae.pictures(2)]
    encode_twice(lambda memory: test_vae.encoder(tmp_path, device_memory=memory), batch, 0.4, caplog)


def test_the_models_of_a_pipeline_share_the_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """FLUX has two text encoders: what the first takes is not there for the second."""
    folder = pipelines.tiny_pipeline("flux", tmp_path)

    def make(memory: str) -> PromptEncoder:
        return PromptEncoder(
            encoders.DiffusersPrompt(uses="diffusers-prompt", model="unused", device_memory=memory), folder
        )

    encode_twice(make, TEXTS, 0.9, caplog)


def test_a_part_that_is_larger_than_the_bound_is_named_before_the_first_batch() -> None:
    """Nothing could run it; the message says how large it is, and what to change."""
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(10, 10))
    with pytest.raises(
        EncodeError, match=r"the largest part of Sequential takes 39\.5 KiB, and 1\.0 KiB of cpu"
    ) as got:
        place_model(model, "cpu", "1KiB")
    assert "device_memory" in (got.value.hint or "")


def test_a_gpu_keeps_a_fifth_of_what_is_free_for_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound of the user's four fifths of it are for weights; what torch keeps and does not use is free."""
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(10)))
    moved = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 1 << 40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1000)
    monkeypatch.setattr("precook.encode.offload.move_to_device", lambda part, _: moved.append(weights_size(part)))
    monkeypatch.setattr("precook.encode.offload._offload", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_, **__: self)
    free = [10_800]  # with 2,000 of torch's own, 12,800: four fifths of that are the weights' 10,240
    place_model(model, "cuda", "auto")
    assert moved == [weights_size(model)] == [10_240]
    moved.clear()
    free = [10_796]
    place_model(model, "cuda", "auto")
    # One at a time has to come and go.
    assert moved == [1024] * 8


@pytest.mark.parametrize("value", ["8", "8GiX", 8, "", True])
def test_a_bound_is_a_size_or_auto(value: object) -> None:
    """Anything else is refused when the config is read, with an example."""
    latent = {"uses": "diffusers-vae", "model": "m", "device_memory": value}
    with pytest.raises(ConfigError, match=r"64MiB|8GiB"):
        check(small(encoders={"latent": latent}))
    assert check(small(encoders={"latent": latent | {"device_memory": "1.5GB"}}))
