"""The GPU feed benchmark: feeding alone, and one training step that is fed three ways.

Alone, batches are brought to the GPU as fast as they come: `bench/alone.py`. Then a transformer denoiser of about 200
million parameters trains in bfloat16 on latents of 512 px pictures and on prompt embeddings. Its batches come from
tensors that already lie on the GPU, from `feed.epoch(e, device="cuda")`, or from a VAE and a text encoder that run in
the loop over pictures that already lie decoded in pinned memory. All see the same samples in the same order. The
entries come from a real build. Weights are random.

`python bench/gpu_feed.py` needs a CUDA device, transformers and diffusers; `--only alone` runs one of the two,
`--device cpu --quick` runs anywhere: does it run?
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

import diffusers
import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from torch import nn
from torch.nn import functional

import precook
from bench.alone import alone
from bench.measure import median, median_ratio
from bench.script import facts, folder, parser, some_of, tell, versions
from bench.table import Column, Goal, Section

SECTIONS = ("alone", "step")
_WORDS = 2000
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is."""

    samples: int
    batch: int
    side: int
    width: int
    layers: int
    heads: int
    vae: tuple[int, ...]
    text: dict[str, int]
    rounds: int
    live: int
    """Steps with live encoding; it takes long enough to be measured in few."""


FULL = Sizes(
    samples=768,
    batch=16,
    side=512,
    width=1024,
    layers=12,
    heads=16,
    vae=(128, 256, 512, 512),
    text={"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 151_936},
    rounds=5,
    live=24,
)
TINY = Sizes(
    samples=8,
    batch=2,
    side=64,
    width=64,
    layers=2,
    heads=4,
    vae=(32, 64, 64, 64),
    text={"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 2304},
    rounds=1,
    live=2,
)


def main(arguments: list[str] | None = None) -> int:
    """Feed alone; build, then train three ways."""
    options = _parse(arguments)
    device = options.device
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    tell(facts(device=name, versions=versions("torch", "transformers", "diffusers")))
    with folder(options.dir) as made:
        if "alone" in options.only:
            print(alone(made, device, quick=options.quick), flush=True)
        if "step" in options.only:
            print(Contest(made, device, TINY if options.quick else FULL).run(), flush=True)
    return 0


class Contest:
    """One model and one dataset, fed three ways."""

    def __init__(self, base: Path, device: str, sizes: Sizes) -> None:
        self.base = base
        self.device = device
        self.sizes = sizes
        start = time.perf_counter()
        self.texts = _texts(sizes.samples)
        self.vae, self.text, self.tokenizer = self._make_encoders()
        self._draw()
        self.project = self._build()
        print(f"(models, {sizes.samples} pictures and their build: {time.perf_counter() - start:.0f} s)\n", flush=True)
        torch.manual_seed(0)
        self.model = Denoiser(sizes, context=sizes.text["hidden_size"]).to(device, torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device == "cuda")

    def run(self) -> Section:
        """Measure the three ways; the table."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        sizes = self.sizes
        title = f"A training step of {count / 1e6:.0f} M parameters, bfloat16, {sizes.batch} samples of {sizes.side} px"
        columns = [
            Column("fed from"),
            Column("steps/s", ".2f"),
            Column("ms/step", ".1f"),
            Column("of resident", ".3f"),
            Column("peak GPU memory, GiB", ".2f"),
        ]
        section = Section("gpu feed", title, columns)
        with self.project.feed(batch_size=sizes.batch) as feed:
            resident = list(feed.epoch(1, device=self.device))
            size = sum(_bytes(batch) for batch in resident)
            self._train(resident[:4])
            ways: dict[str, list[float]] = {"tensors on the GPU": [], "precook, feed.epoch": []}
            memory: dict[str, float] = {}
            steps = len(resident)
            for _ in range(sizes.rounds):
                for way, times in ways.items():
                    batches: Iterable[Any] = resident if way == "tensors on the GPU" else self._fed(feed)
                    times.append(self._measure(batches, steps, way, memory))
            del resident, batches, memory["precook, feed.epoch"]
            self._measure(self._fed(feed), steps, "precook, feed.epoch", memory)  # without the resident tensors
            live = self._live(feed)
            self._measure(live, 2, "encoding live", memory)  # shapes it has not seen yet
            ways["encoding live"] = [
                self._measure(live, sizes.live, "encoding live", memory) for _ in range(min(sizes.rounds, 2))
            ]
        floor = ways["tensors on the GPU"]
        for way, times in ways.items():
            passed = median(times)
            section.rows.append([way, 1 / passed, passed * 1e3, median(floor) / passed, memory[way]])
        cached = median_ratio(ways["precook, feed.epoch"], floor)
        section.goals.append(Goal("cached step / resident step", cached, 1.02, "at most", ".3f"))
        section.notes += [
            (
                f"medians of {sizes.rounds} epochs of {steps} steps in turn, the wait for the first batch and the "
                f"optimizer included; the resident tensors take {size / _GIB:.2f} GiB."
            ),
            "live: pictures lie decoded in pinned memory, so neither files nor decoding are on its clock.",
        ]
        return section

    def _fed(self, feed: Any) -> Iterator[Any]:
        """The same epoch from the feed, without what is on the host only."""
        return iter(feed.epoch(1, device=self.device))

    def _measure(self, batches: Iterable[Any], most: int, way: str, memory: dict[str, float]) -> float:
        """Seconds per step."""
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self._wait()
        start = time.perf_counter()
        steps = self._train(batch for _, batch in zip(range(most), batches, strict=False))
        self._wait()
        passed = time.perf_counter() - start
        peak = torch.cuda.max_memory_allocated() / _GIB if self.device == "cuda" else 0.0
        memory[way] = max(peak, memory.get(way, 0.0))
        return passed / steps

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _train(self, batches: Iterable[dict[str, Any]]) -> int:
        """A step of denoising on each batch; how many."""
        steps = 0
        for batch in batches:
            latent, prompt = batch["latent"].to(torch.bfloat16), batch["prompt"]
            noise = torch.randn_like(latent)
            time_ = torch.rand(len(latent), device=latent.device, dtype=latent.dtype)
            mixed = torch.lerp(latent, noise, time_[:, None, None, None])
            found = self.model(mixed, time_, prompt["hidden"].to(torch.bfloat16), prompt["mask"])
            functional.mse_loss(found, noise - latent).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            steps += 1
        return steps

    def _live(self, feed: Any) -> Iterable[dict[str, Any]]:
        """The same epoch, encoded in the loop."""
        self.vae.to(self.device)
        self.text.to(self.device)
        pixels = self._pixels()
        captions = {text: number for number, text in enumerate(self.texts)}
        plan = [batch["caption"] for _, batch in zip(range(self.sizes.live), feed.epoch(1), strict=False)]
        return _Live(self, pixels, [[captions[caption] for caption in batch] for batch in plan])

    @torch.no_grad()
    def encode(self, pixels: Any, texts: list[str]) -> dict[str, Any]:
        """One batch, as a trainer without a cache makes it."""
        values = pixels.to(self.device, non_blocking=True).to(torch.bfloat16) / 127.5 - 1
        tokens = self.tokenizer(texts, padding=True, return_tensors="pt").to(self.device)
        hidden = self.text(**tokens, use_cache=False).last_hidden_state
        return {
            "latent": self.vae.encode(values).latent_dist.mean,
            "prompt": {"hidden": hidden, "mask": tokens["attention_mask"].bool()},
        }

    def _make_encoders(self) -> tuple[Any, Any, Any]:
        vocabulary = {word: number for number, word in enumerate(["<pad>", "<unk>", *_words()])}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", model_max_length=128
        )
        sizes = self.sizes
        config = transformers.Qwen3Config(
            **sizes.text, num_attention_heads=16, num_key_value_heads=8, head_dim=sizes.text["hidden_size"] // 16
        )
        torch.manual_seed(0)
        with torch.device(self.device):
            text = transformers.Qwen3Model(config).to(torch.bfloat16).eval()
            vae = diffusers.AutoencoderKL(
                block_out_channels=sizes.vae,
                down_block_types=("DownEncoderBlock2D",) * len(sizes.vae),
                up_block_types=("UpDecoderBlock2D",) * len(sizes.vae),
                latent_channels=16,
                layers_per_block=2,
            )
        vae = vae.to(torch.bfloat16).eval()
        text.save_pretrained(self.base / "text")
        tokenizer.save_pretrained(self.base / "text")
        vae.save_pretrained(self.base / "vae")
        return vae.to("cpu"), text.to("cpu"), tokenizer

    def _draw(self) -> None:
        """Pictures that need no cutting, each with its caption."""
        (self.base / "data").mkdir()
        side = self.sizes.side

        def draw(number: int) -> None:
            small = Image.fromarray(np.random.default_rng(number).integers(0, 256, (24, 24, 3), np.uint8))
            path = self.base / "data" / f"{number:05d}.jpg"
            small.resize((side, side), Image.Resampling.BICUBIC).save(path, quality=90)
            path.with_suffix(".txt").write_text(self.texts[number], "utf-8")

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(draw, range(self.sizes.samples)))

    def _pixels(self) -> Any:
        def read(number: int) -> Any:
            with Image.open(self.base / "data" / f"{number:05d}.jpg") as picture:
                return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return torch.stack(list(pool.map(read, range(self.sizes.samples))))

    def _build(self) -> precook.Project:
        side, device = self.sizes.side, self.device
        project = precook.Project(
            base=self.base,
            store="cache",
            dataset="bench",
            concepts=[{"name": "bench", "path": "data"}],
            image={"resolutions": [f"{side}x{side}"]},
            text={"empty_prompt": False},
            encoders={
                "latent": {"uses": "diffusers-vae", "model": "vae", "dtype": "bfloat16", "device": device},
                "prompt": {
                    "uses": "transformers-text",
                    "model": "text",
                    "dtype": "bfloat16",
                    "max_length": 128,
                    "device": device,
                },
            },
        )
        report = project.plan().build()
        if report.failed:
            raise SystemExit(f"failed: {report.failed[0]}")
        return project


class _Live:
    """Batches that are encoded when they are asked for."""

    def __init__(self, contest: Contest, pixels: Any, plan: list[list[int]]) -> None:
        self._contest = contest
        pinned = contest.device == "cuda"
        self._batches = [
            (pixels[numbers].pin_memory() if pinned else pixels[numbers], [contest.texts[number] for number in numbers])
            for numbers in plan
        ]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for pixels, texts in self._batches:
            yield self._contest.encode(pixels, texts)


class Denoiser(nn.Module):
    """A plain transformer over patches of the latent, with cross-attention to the prompt."""

    def __init__(self, sizes: Sizes, *, context: int, channels: int = 16, patch: int = 2) -> None:
        super().__init__()
        self._patch = patch
        tokens = (sizes.side // 8 // patch) ** 2
        self.into = nn.Conv2d(channels, sizes.width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, tokens, sizes.width) * 0.02)
        self.time = nn.Sequential(nn.Linear(1, sizes.width), nn.SiLU(), nn.Linear(sizes.width, sizes.width))
        self.context = nn.Linear(context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        self.out = nn.Linear(sizes.width, channels * patch * patch)

    def forward(self, latent: Any, time_: Any, hidden: Any, mask: Any) -> Any:
        """What to take away from a noisy latent."""
        height, width = latent.shape[2] // self._patch, latent.shape[3] // self._patch
        x = self.into(latent).flatten(2).transpose(1, 2) + self.places + self.time(time_[:, None])[:, None]
        context = self.context(hidden)
        for block in self.blocks:
            x = block(x, context, mask[:, None, None])
        x = self.out(self.norm(x)).unflatten(1, (height, width)).unflatten(3, (-1, self._patch, self._patch))
        return x.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


class Block(nn.Module):
    """Attention to the picture, attention to the prompt, and two layers for each place."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self._heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = nn.Linear(width, 3 * width)
        self.own_out = nn.Linear(width, width)
        self.query = nn.Linear(width, width)
        self.other = nn.Linear(width, 2 * width)
        self.other_out = nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any, context: Any, mask: Any) -> Any:
        """The tokens after this block."""
        x = x + self.own_out(self._attend(*self.own(self.norms[0](x)).chunk(3, -1)))
        x = x + self.other_out(self._attend(self.query(self.norms[1](x)), *self.other(context).chunk(2, -1), mask))
        return x + self.wide(self.norms[2](x))

    def _attend(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        parts = [part.unflatten(-1, (self._heads, -1)).transpose(1, 2) for part in (query, key, value)]
        return functional.scaled_dot_product_attention(*parts, attn_mask=mask).transpose(1, 2).flatten(2)


def _words() -> list[str]:
    return [f"w{number}" for number in range(_WORDS)]


def _texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [
        f"w{number % _WORDS} " + " ".join(rng.choice(_words(), int(rng.integers(20, 100)))) for number in range(count)
    ]


def _bytes(batch: dict[str, Any]) -> int:
    return sum(
        _bytes(part) if isinstance(part, dict) else part.nbytes if isinstance(part, torch.Tensor) else 0
        for part in batch.values()
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    asked.add_argument("--only", **some_of(SECTIONS))
    return asked.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
