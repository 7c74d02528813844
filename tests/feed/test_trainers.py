"""Trainers that we did not write, training on what a feed gives them: tiny models, real builds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import precook
from tests.encode.test_tokens import WORDS, save_tokenizer
from tests.support.feeds import equal
from tests.support.projects import Watched, dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

STEPS = 30


pytestmark = pytest.mark.usefixtures("one_thread")


def captioned(base: Path, count: int = 4) -> Path:
    """Pictures with captions of different lengths, of words that the tokenizer knows."""
    dataset(base / "data", count)
    for number in range(count):
        words = [WORDS[(number + at) % len(WORDS)] for at in range(3 + 2 * number)]
        (base / f"data/p{number}.txt").write_text(" ".join(words))
    return base


def falls(losses: list[float], to: float) -> bool:
    return all(map(math.isfinite, losses)) and losses[-1] < to * losses[0]


class TestTokens:
    """Language models on cached token ids."""

    @pytest.fixture
    def tokens(self, tmp_path: Path) -> Any:
        """The pre-tokenized captions as a `datasets.Dataset`, read without the sources."""
        pytest.importorskip("datasets", reason="datasets is not installed")
        save_tokenizer(tmp_path / "text")
        encoders = {"tokens": {"uses": "transformers-tokens", "model": "text", "max_length": 32}}
        with project(captioned(tmp_path), encoders=encoders) as owner:
            owner.build()
        with precook.open(tmp_path / "cache") as store, store.snapshot("test").feed(batch_size=4) as feed:
            return feed.as_hf_dataset("tokens")

    def test_numbers_that_datasets_does_not_know_are_refused(self, tmp_path: Path) -> None:
        """Half-precision states are named, instead of being handed over as the integers that they are kept as."""
        pytest.importorskip("datasets", reason="datasets is not installed")
        words = Watched("text", lambda _: {"hidden": torch.ones(3, dtype=torch.bfloat16)})
        with project(captioned(tmp_path), encoders={"words": words}) as owner:
            owner.build()
            with owner.feed(batch_size=4) as feed, pytest.raises(precook.FeedError, match="no numbers of type BF16"):
                feed.as_hf_dataset("words")

    def test_plain_values_are_columns(self, tmp_path: Path) -> None:
        """What an encoder keeps beside tensors stands in its row, too."""
        pytest.importorskip("datasets", reason="datasets is not installed")
        words = Watched("text", lambda item: {"length": len(item.text or ""), "ones": torch.ones(3)})
        with project(captioned(tmp_path), encoders={"words": words}) as owner:
            owner.build()
            with owner.feed(batch_size=4) as feed:
                rows = feed.as_hf_dataset("words")
        captions = [path.read_text() for path in (tmp_path / "data").glob("*.txt")]
        assert sorted(rows["length"]) == sorted(map(len, captions))
        assert list(rows["ones"]) == [[1, 1, 1]] * len(captions)

    @pytest.fixture
    def tokenizer(self, tmp_path: Path, tokens: Any) -> Any:
        return transformers.AutoTokenizer.from_pretrained(tmp_path / "text", local_files_only=True)

    @pytest.fixture
    def model(self, tokenizer: Any) -> Any:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        return transformers.LlamaForCausalLM(config)

    def test_the_trainer_of_transformers_learns_them(
        self, tmp_path: Path, tokens: Any, tokenizer: Any, model: Any
    ) -> None:
        """`Trainer` takes the dataset as it is, the ids of all captions unpadded, and overfits its one batch."""
        pytest.importorskip("accelerate", reason="accelerate is not installed")
        captions = [path.read_text() for path in (tmp_path / "data").glob("*.txt")]
        assert sorted(tokens["input_ids"]) == sorted([*ids, 3] for ids in tokenizer(captions)["input_ids"])
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(**arguments(tmp_path)),
            train_dataset=tokens,
            data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        )
        trainer.train()
        assert falls(losses(trainer), 0.5)

    def test_trl_takes_them_as_pretokenized(self, tmp_path: Path, tokens: Any, tokenizer: Any, model: Any) -> None:
        """`SFTTrainer` trains on the very ids that were cached, tokenizes nothing, and overfits its one batch."""
        trl = pytest.importorskip("trl", reason="trl is not installed")
        trainer = trl.SFTTrainer(
            model=model,
            args=trl.SFTConfig(**arguments(tmp_path), max_length=32),
            train_dataset=tokens,
            processing_class=tokenizer,
        )
        assert list(trainer.train_dataset["input_ids"]) == list(tokens["input_ids"])
        trainer.train()
        assert falls(losses(trainer), 0.5)


def arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }


def losses(trainer: Any) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


class TestDiffusion:
    """Diffusion models on cached latents and prompts."""

    @pytest.fixture
    def owner(self, tmp_path: Path) -> Any:
        """A project built with a tiny VAE and a tiny CLIP text encoder."""
        diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
        torch.manual_seed(0)
        diffusers.AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=4,
        ).save_pretrained(tmp_path / "vae")
        save_tokenizer(tmp_path / "text")
        config = transformers.CLIPTextConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
        )
        transformers.CLIPTextModel(config).save_pretrained(tmp_path / "text")
        with project(
            captioned(tmp_path),
            image={"resolutions": ["32x32"], "step": 16},
            encoders={
                "latent": {"uses": "diffusers-vae", "model": "vae"},
                "prompt": {"uses": "transformers-text", "model": "text", "max_length": 32},
            },
        ) as made:
            made.build()
            yield made

    def test_a_lora_of_a_unet_learns_a_batch(self, owner: precook.Project) -> None:
        """A diffusers UNet with a peft LoRA, its own weights frozen, overfits one batch of latents and prompts."""
        diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
        peft = pytest.importorskip("peft", reason="peft is not installed")
        with owner.feed(batch_size=4) as feed:
            (batch,) = feed.epoch(0)
        latents, prompt = batch["latent"], batch["prompt"]
        assert not prompt["mask"].all(), "the captions differ in length"
        torch.manual_seed(0)
        unet = diffusers.UNet2DConditionModel(
            sample_size=latents.shape[-1],
            in_channels=4,
            out_channels=4,
            block_out_channels=(8, 16),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            layers_per_block=1,
            attention_head_dim=4,
            norm_num_groups=4,
            cross_attention_dim=prompt["hidden"].shape[-1],
        )
        modules = ["to_q", "to_k", "to_v", "to_out.0", "conv1", "conv2", "conv_out"]
        unet = peft.get_peft_model(unet, peft.LoraConfig(r=8, lora_alpha=8, target_modules=modules))
        frozen = {name: value.clone() for name, value in unet.named_parameters() if not value.requires_grad}
        optimizer = torch.optim.AdamW([value for value in unet.parameters() if value.requires_grad], lr=1e-2)
        scheduler = diffusers.DDPMScheduler()
        noise, times = torch.randn_like(latents), torch.tensor([100, 300, 500, 700])
        noisy = scheduler.add_noise(latents, noise, times)
        found = []
        for _ in range(STEPS):
            states = {"encoder_hidden_states": prompt["hidden"], "encoder_attention_mask": prompt["mask"]}
            loss = torch.nn.functional.mse_loss(unet(noisy, times, **states).sample, noise)
            found.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert falls(found, 0.8)
        now = dict(unet.named_parameters())
        assert all(torch.equal(now[name], value) for name, value in frozen.items())

    def test_accelerate_prepares_a_loader_of_the_same_batches(self, owner: precook.Project) -> None:
        """What `Accelerator.prepare` makes of a DataLoader over the feed gives the batches of `feed.epoch`."""
        accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
        with owner.feed(batch_size=2) as feed:
            loader = torch.utils.data.DataLoader(feed.dataset(), batch_sampler=feed.batch_sampler(3))
            prepared = accelerate.Accelerator(cpu=True).prepare(loader)
            assert equal(list(prepared), list(feed.epoch(3)))
