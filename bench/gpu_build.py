"""The GPU build benchmark: a text encoder of about a billion parameters and a full-size VAE, random weights, bfloat16.

Builds stand beside the best eager loop written by hand over the same inputs (`bench/by_hand.py`), in turn: without
compiling (`compile: off`), and compiled before the clock starts (`compile: on`), as models are loaded before it. A
build starts from files, finds its batch size by itself, claims, digests and checks what it makes, and ends when all of
it is durable; each has a store of its own, so that none remembers another. For 2,000 items `compile: auto` has to
decide, and whatever it compiles is on the clock, with nothing in torch's caches.

After the measured runs of a part each of its builds is run once more, and looked at: what its threads compute, how
much they wait, and where.

`python bench/gpu_build.py` needs a CUDA device, transformers and diffusers; `--only text` runs a part, `--limit` bounds
the seconds after which a part begins no further run. `--quick` runs tiny models on any device: does it run?
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

# Some virtual machines announce AMX and then refuse its instructions: bfloat16 on the CPU ends there with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import diffusers
import torch
import transformers

from bench.by_hand import PictureLoop, TextLoop, synchronise
from bench.contest import TITLES, Contest, Rules
from bench.inputs import LINES, draw_pictures, make_texts, word_tokenizer, write_captions
from bench.script import facts, folder, parser, some_of, tell, versions
from bench.table import Goal, Section

_LENGTH = 512
"""Most tokens of a text."""


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that were asked for."""
    options = _parse(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    tell(facts(device=name, versions=versions("torch", "transformers", "diffusers")))
    transformers.utils.logging.disable_progress_bar()
    with folder(options.dir) as made:
        inputs = Inputs(made, device, quick=options.quick)
        rules = Rules(device, options.runs, options.limit, waits=not options.no_waits, quick=options.quick)
        for name in options.only:
            start = time.perf_counter()
            for section in _PARTS[name](inputs, rules).run():
                print(section, flush=True)
            print(f"({name}: {time.perf_counter() - start:.0f} s)\n", flush=True)
    return 0


class Inputs:
    """Models and files, each made once for all parts."""

    def __init__(self, base: Path, device: str, *, quick: bool) -> None:
        self.base = base
        self.device = device
        self.quick = quick

    @cached_property
    def text_model(self) -> tuple[Any, Any]:
        """A Qwen3-shaped model and its tokenizer, saved in `text`."""
        tokenizer = word_tokenizer(_LENGTH)
        sizes: dict[str, Any] = (
            {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 4096}
            if self.quick
            else {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 16, "vocab_size": 151_936}
        )
        config = transformers.Qwen3Config(
            **sizes, num_attention_heads=16, num_key_value_heads=8, head_dim=sizes["hidden_size"] // 16
        )
        torch.manual_seed(0)
        with torch.device(self.device):
            model = transformers.Qwen3Model(config).to(torch.bfloat16).eval()
        model.save_pretrained(self.base / "text")
        tokenizer.save_pretrained(self.base / "text")
        return model, tokenizer

    @cached_property
    def vae(self) -> Any:
        """An SD-shaped VAE with 16 channels, saved in `vae`."""
        blocks = (32, 64) if self.quick else (128, 256, 512, 512)
        torch.manual_seed(0)
        with torch.device(self.device):
            vae = diffusers.AutoencoderKL(
                block_out_channels=blocks,
                down_block_types=("DownEncoderBlock2D",) * len(blocks),
                up_block_types=("UpDecoderBlock2D",) * len(blocks),
                latent_channels=16,
                layers_per_block=2,
            )
        vae = vae.to(torch.bfloat16).eval()
        vae.save_pretrained(self.base / "vae")
        return vae

    @cache  # noqa: B019 - as long as the run
    def captions(self, samples: int) -> tuple[Path, list[str]]:
        """A folder of samples with captions of 20 to 100 words, and all of these texts."""
        texts = make_texts(samples * LINES, least=20, most=100)
        data = self.base / f"captions-{samples}"
        write_captions(data, texts)
        return data, texts

    @cache  # noqa: B019 - as long as the run
    def pictures(self, count: int, side: int, *, mixed: bool) -> Path:
        """A folder of JPEG files."""
        data = self.base / f"pictures-{count}-{side}{'-mixed' if mixed else ''}"
        draw_pictures(data, count, side, mixed=mixed)
        return data


class Text(Contest):
    """Captions of 20 to 100 words through a Qwen3-shaped model."""

    unit = "texts"
    sizes = (128, 256, 512)
    image = {"resolutions": [64]}  # noqa: RUF012 - read only

    def __init__(self, inputs: Inputs, rules: Rules, goals: Mapping[str, float], *, samples: int) -> None:
        super().__init__(inputs.base, rules, goals)
        self.inputs = inputs
        self.samples = 8 if inputs.quick else samples
        self.model, self.tokenizer = inputs.text_model
        self.section = {"uses": "transformers-text", "model": str(self.base / "text"), "max_length": _LENGTH}

    def title(self) -> str:
        """The model's size, and how many texts."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        return f"Text encoder, {count / 1e9:.2f} B parameters, bfloat16, {self.samples * LINES:,} texts"

    def data(self) -> Path:
        """Pictures with ten captions each."""
        return self.inputs.captions(self.samples)[0]

    def loop(self) -> TextLoop:
        """The same texts, from memory."""
        texts = self.inputs.captions(self.samples)[1]
        return TextLoop(self.base / "shelf", self.rules.device, self.model, self.tokenizer, texts)

    def run(self) -> Iterator[Section]:
        """All ways, and where `compile: off` is one of them a loop over single texts."""
        for section in super().run():
            if "off" in self.goals and section.name == "gpu":
                alone = self._one_by_one()
                section.rows.insert(0, ["one by one, nothing stored", alone, *[None] * (len(section.columns) - 2)])
                built = section.value(TITLES["off"], f"{self.unit}/s") or 0.0
                section.goals.append(Goal(f"{TITLES['off']} / one by one", built / alone, 50.0))
            yield section

    def _one_by_one(self) -> float:
        """Texts a second, each padded to the full length, as trainers do."""
        loop = self.loop()
        texts = loop.texts[: 10 if self.rules.quick else 200]
        loop.forward([texts[0]], padding="max_length", max_length=_LENGTH)
        synchronise(self.rules.device)
        start = time.perf_counter()
        for text in texts:
            loop.forward([text], padding="max_length", max_length=_LENGTH)[0].cpu()
        return len(texts) / (time.perf_counter() - start)


class Vae(Contest):
    """Pictures through an SD-shaped VAE with 16 channels."""

    unit = "pictures"

    def __init__(
        self,
        inputs: Inputs,
        rules: Rules,
        goals: Mapping[str, float],
        *,
        count: int,
        side: int,
        mixed: bool = False,
    ) -> None:
        super().__init__(inputs.base, rules, goals)
        self.inputs = inputs
        self.mixed = mixed
        self.count, self.side = (16, side // 8) if inputs.quick else (count, side)
        self.sizes = (8, 16, 32) if side <= 512 else (2, 4, 8)
        self.image = {"resolutions": [self.side if mixed else f"{self.side}x{self.side}"]}
        if inputs.quick:
            self.image["step"] = 8
        self.vae = inputs.vae
        self.section = {"uses": "diffusers-vae", "model": str(self.base / "vae")}

    def title(self) -> str:
        """How many pictures, and of what size."""
        size = f"{self.side} px{' in mixed buckets' if self.mixed else ''}"
        return f"VAE encoder, 16 channels, bfloat16, {self.count:,} pictures of {size}"

    def data(self) -> Path:
        """JPEG files."""
        return self.inputs.pictures(self.count, self.side, mixed=self.mixed)

    def loop(self) -> PictureLoop:
        """The same files, cut to the sizes that a plan gives them."""
        return PictureLoop(self.base / "shelf", self.rules.device, self.vae, self.cut_pictures())


_EXACT = {"off": 0.97, "on": 1.6}
_OTHER = {"off": 0.95, "on": 1.4}
_FEW = {"auto": 0.9}
_PARTS = {
    "text": lambda inputs, rules: Text(inputs, rules, {"off": 1.0, "on": 1.35}, samples=2000),
    "vae-512": lambda inputs, rules: Vae(inputs, rules, _EXACT, count=1200, side=512),
    "vae-1024": lambda inputs, rules: Vae(inputs, rules, _OTHER, count=256, side=1024),
    "vae-mixed": lambda inputs, rules: Vae(inputs, rules, _OTHER, count=1000, side=512, mixed=True),
    "few-text": lambda inputs, rules: Text(inputs, rules, _FEW, samples=200),
    "few-vae": lambda inputs, rules: Vae(inputs, rules, _FEW, count=2000, side=512),
}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--only", **some_of(tuple(_PARTS)))
    asked.add_argument("--runs", type=int, default=3, help="of which medians are taken (default: 3)")
    asked.add_argument("--limit", type=float, default=90, help="seconds after which a part begins no further run")
    asked.add_argument("--no-waits", action="store_true", help="without the look at the threads")
    return asked.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
