"""Batches of what the built-in encoders store, made by real models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import precook
from tests.encode.test_tokens import save_tokenizer
from tests.support.feeds import equal
from tests.support.projects import dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny T5 encoder with its tokenizer."""
    folder = save_tokenizer(tmp_path_factory.mktemp("text"), model_max_length=20)
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    transformers.T5EncoderModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny VAE."""
    folder = tmp_path_factory.mktemp("vae")
    torch.manual_seed(0)
    blocks = {
        "block_out_channels": (8, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 4,
    }
    diffusers.AutoencoderKL(latent_channels=4, **blocks).save_pretrained(folder)
    return folder


def captioned(base: Path, texts: list[str]) -> Path:
    dataset(base / "data", len(texts))
    for number, text in enumerate(texts):
        (base / f"data/p{number}.txt").write_text(text)
    return base


TEXTS = ["a cat", "a dog runs in the park", "the quick brown fox", "seven"]


def test_token_ids_are_padded_with_the_tokenizers_own(tmp_path: Path, text_model: Path) -> None:
    """`input_ids` of a batch equal what the tokenizer makes of the texts with padding, with and without sources."""
    owner = project(
        captioned(tmp_path, TEXTS),
        encoders={"tokens": {"uses": "transformers-tokens", "model": str(text_model)}},
        keep=["captions"],
    )
    owner.build()
    tokenizer = transformers.AutoTokenizer.from_pretrained(text_model, local_files_only=True)
    (batch,) = owner.feed(batch_size=4).epoch(0)
    expected = tokenizer(batch["caption"], padding=True, return_tensors="pt")
    assert tokenizer.pad_token_id == 0
    assert torch.equal(batch["tokens"]["input_ids"], expected["input_ids"])
    assert torch.equal(batch["tokens"]["attention_mask"], expected["attention_mask"])
    assert torch.equal(batch["tokens"]["mask"], expected["attention_mask"].bool())
    assert equal([batch], owner.store.snapshot("test").feed(batch_size=4).epoch(0))


def test_a_pad_id_other_than_zero_is_used(tmp_path: Path) -> None:
    """A tokenizer whose pad token is its last one pads with that; one without a pad token is refused by name."""
    pads = save_tokenizer(tmp_path / "pads", pad_token="</s>")
    none = save_tokenizer(tmp_path / "none", pad_token=None)
    captioned(tmp_path, TEXTS)
    owner = project(tmp_path, encoders={"tokens": {"uses": "transformers-tokens", "model": "pads"}})
    owner.build()
    tokenizer = transformers.AutoTokenizer.from_pretrained(pads, local_files_only=True)
    (batch,) = owner.feed(batch_size=4).epoch(0)
    ids, mask = batch["tokens"]["input_ids"], batch["tokens"]["mask"]
    assert tokenizer.pad_token_id != 0
    assert set(ids[~mask].tolist()) == {tokenizer.pad_token_id}
    owner = project(tmp_path, encoders={"tokens": {"uses": "transformers-tokens", "model": str(none)}})
    owner.build()
    with pytest.raises(precook.FeedError, match="the tokenizer has no pad token that is known"):
        list(owner.feed(batch_size=4).epoch(0))
    (batch,) = owner.feed(batch_size=4, pad={"tokens": "list"}).epoch(0)
    assert len(batch["tokens"]["input_ids"]) == 4


def test_hidden_states_are_padded_along_their_tokens(tmp_path: Path, text_model: Path) -> None:
    """One layer: tokens x width; several: layers x tokens x width; both padded along the tokens, with one mask."""
    for name, layers in (("one", [-1]), ("several", [-1, -2])):
        section = {"uses": "transformers-text", "model": str(text_model), "layers": layers, "dtype": "float32"}
        owner = project(captioned(tmp_path, TEXTS), store=name, encoders={"prompt": section})
        owner.build()
        (batch,) = owner.feed(batch_size=4).epoch(0)
        hidden, mask = batch["prompt"]["hidden"], batch["prompt"]["mask"]
        longest = int(mask.sum(1).max())
        assert hidden.shape == ((4, longest, 16) if name == "one" else (4, 2, longest, 16))
        for at, caption in enumerate(batch["caption"]):
            length = len(caption.split()) + 2
            assert int(mask[at].sum()) == length
            places = hidden[at, ..., :length, :]
            assert places.abs().sum(-1).min() > 0
            assert not hidden[at, ..., length:, :].any()


@pytest.mark.parametrize("posterior", ["mean", "moments"])
def test_latents_are_stacked(tmp_path: Path, vae: Path, posterior: str) -> None:
    """A batch has one tensor of latents, whether they were kept or are drawn from their moments."""
    section: dict[str, Any] = {"uses": "diffusers-vae", "model": str(vae), "dtype": "float32", "posterior": posterior}
    owner = project(captioned(tmp_path, TEXTS), encoders={"latent": section})
    owner.build()
    feed = owner.feed(batch_size=4)
    (batch,), (other,) = feed.epoch(0), feed.epoch(1)
    height, width = batch["size"]
    assert batch["latent"].shape == (4, 4, height // 2, width // 2)
    order = [other["sample"].index(name) for name in batch["sample"]]
    assert torch.equal(batch["latent"], other["latent"][order]) == (posterior == "mean")


def test_live_encoding_with_real_models_equals_a_build(tmp_path: Path, vae: Path, text_model: Path) -> None:
    """A first epoch without a build gives what a build would have given, within what batching changes."""
    encoders = {
        "latent": {"uses": "diffusers-vae", "model": str(vae), "dtype": "float32"},
        "prompt": {"uses": "transformers-text", "model": str(text_model), "dtype": "float32"},
    }
    captioned(tmp_path, TEXTS)
    built = project(tmp_path, store="built", encoders=encoders)
    built.build()
    with project(tmp_path, store="live", encoders=encoders).feed(batch_size=2, on_missing="encode") as feed:
        for one, other in zip(feed.epoch(0), built.feed(batch_size=2).epoch(0), strict=True):
            assert one["sample"] == other["sample"]
            assert torch.allclose(one["latent"], other["latent"], atol=1e-4)
            assert torch.allclose(one["prompt"]["hidden"], other["prompt"]["hidden"], atol=1e-4)
            assert torch.equal(one["prompt"]["mask"], other["prompt"]["mask"])
