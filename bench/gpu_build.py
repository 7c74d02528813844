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
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

# Some virtual machines announce AMX and then refuse its instructions: bfloat16 on the CPU ends there with SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import diffusers
import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image
from torch._inductor.utils import fresh_cache

import precook
from bench.by_hand import Loop, PictureLoop, TextLoop, synchronise
from bench.measure import median, median_ratio, settle
from bench.script import facts, folder, parser, some_of, tell, versions
from bench.table import Column, Goal, Section
from bench.waits import Waits
from precook.encode.registry import EncoderSpec
from precook.sources.geometry import TARGET

_WORDS = 2000
_LINES = 10
"""Captions in a file."""
_LENGTH = 512
"""Most tokens of a text."""
_HAND = "batched by hand, eager"
_TITLES = {
    "off": "precook, compile: off",
    "on": "precook, compile: on, compiled before",
    "auto": "precook, compile: auto",
}
_PART = 4
"""Every so many-th sample is in the part that is built once for nothing, and that loops try batch sizes on."""


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that were asked for."""
    options = _parse(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    tell(facts(device=name, versions=versions("torch", "transformers", "diffusers")))
    transformers.utils.logging.disable_progress_bar()
    with folder(options.dir) as made:
        inputs = Inputs(made, device, quick=options.quick)
        for name in options.only:
            start = time.perf_counter()
            for section in _PARTS[name](inputs, options).run():
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
        words = ["<pad>", "<unk>", *(f"w{number}" for number in range(_WORDS))]
        inner = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
        )
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", model_max_length=_LENGTH
        )
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
        rng = np.random.default_rng(0)
        words = np.array([f"w{number}" for number in range(_WORDS)])
        counts = rng.integers(20, 100, samples * _LINES)
        texts = [" ".join(words[rng.integers(0, _WORDS, count)]) for count in counts]
        data = self.base / f"captions-{samples}"
        data.mkdir()
        for number in range(samples):
            picture = np.full((16, 16, 3), number % 256, np.uint8)
            picture[0, 0] = (number // 256, number % 256, 7)
            Image.fromarray(picture).save(data / f"{number}.png")
            lines = texts[number * _LINES : (number + 1) * _LINES]
            (data / f"{number}.txt").write_text("\n".join(lines), "utf-8")
        return data, texts

    @cache  # noqa: B019 - as long as the run
    def pictures(self, count: int, side: int, *, mixed: bool) -> Path:
        """A folder of JPEG files, each 1.7 times as many pixels as it is cut to; mixed: of many aspect ratios."""
        data = self.base / f"pictures-{count}-{side}{'-mixed' if mixed else ''}"
        data.mkdir()

        def draw(number: int) -> None:
            rng = np.random.default_rng(number)
            aspect = float(np.exp(rng.uniform(-0.75, 0.75))) if mixed else 4 / 3
            width, height = (round(side * 1.3 * aspect**power) for power in (0.5, -0.5))
            small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
            small.resize((width, height), Image.Resampling.BICUBIC).save(data / f"{number}.jpg", quality=90)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(draw, range(count)))
        return data

    @cache  # noqa: B019 - as long as the run
    def part(self, data: Path) -> Path:
        """A folder with some of the samples of another."""
        part = data.with_name(f"{data.name}-part")
        part.mkdir()
        for path in data.iterdir():
            if int(path.stem) % _PART == 0:
                os.link(path, part / path.name)
        return part


@dataclass(frozen=True, slots=True)
class Built:
    """What a build did."""

    count: int
    seconds: float


class Contest:
    """One set of inputs: the best loop by hand and builds of the same files, in turn."""

    unit = ""
    section: dict[str, Any]
    """The encoder, as a config has it."""
    image: dict[str, Any]
    sizes: tuple[int, ...]
    """Batch sizes that the loop by hand may choose from."""

    def __init__(self, inputs: Inputs, options: argparse.Namespace, goals: Mapping[str, float]) -> None:
        self.inputs = inputs
        self.base = inputs.base
        self.device = inputs.device
        self.options = options
        self.goals = goals
        """What each setting of `compile` has to reach, in rates of the loop by hand."""
        self.end = time.perf_counter() + options.limit

    def title(self) -> str:
        """What is measured."""
        raise NotImplementedError

    def data(self) -> Path:
        """The folder of samples."""
        raise NotImplementedError

    def loop(self) -> Loop:
        """The loop by hand."""
        raise NotImplementedError

    def run(self) -> Iterator[Section]:
        """Measure all ways in turn, then look at the threads of the builds."""
        loop = self.loop()
        loop.settle_size(self.sizes[:1] if self.inputs.quick else self.sizes)
        seconds: dict[str, list[float]] = {way: [] for way in (_HAND, *self.goals)}
        busy: dict[str, list[float]] = {way: [] for way in seconds}
        compiled = 0
        count = 0
        with ExitStack() as stack:
            kept = {way: stack.enter_context(self.ready(way)) for way in self.goals if way != "auto"}
            for _ in range(self.options.runs):
                with Utilisation(busy[_HAND]):
                    seconds[_HAND].append(loop.run())
                for way in self.goals:
                    with ExitStack() as once:
                        encoder = kept[way] if way in kept else once.enter_context(self.ready(way))
                        with Utilisation(busy[way]):
                            built = self.build(encoder, way)
                        compiled += way == "auto" and encoder.compiled
                    count = built.count
                    seconds[way].append(built.seconds)
                if time.perf_counter() > self.end:
                    break
            yield self.table(count, seconds, busy, batch=loop.size, compiled=compiled)
            for way, encoder in kept.items():
                if time.perf_counter() < self.end and not self.options.no_waits:
                    seen: list[float] = []
                    waits = Waits()
                    with Utilisation(seen):
                        self.build(encoder, way, waits=waits)
                    title = f"Where threads wait: {self.title()}, {_TITLES[way]}"
                    yield waits.section(title, device=median(seen) if seen else None)

    def table(
        self,
        count: int,
        seconds: Mapping[str, list[float]],
        busy: Mapping[str, list[float]],
        *,
        batch: int,
        compiled: int,
    ) -> Section:
        """What was measured, and what it was to be."""
        columns = [
            Column("way"),
            Column(f"{self.unit}/s", ",.1f"),
            Column("seconds", ".2f"),
            Column("of by hand", ".2f"),
            Column("GPU busy, %"),
        ]
        section = Section("gpu", self.title(), columns)
        runs = len(seconds[_HAND])
        for way, taken in seconds.items():
            ratio = median_ratio(seconds[_HAND], taken)
            section.rows.append(
                [
                    _TITLES.get(way, way),
                    count / median(taken),
                    median(taken),
                    ratio,
                    median(busy[way]) if busy[way] else None,
                ]
            )
            if way in self.goals:
                section.goals.append(Goal(f"{_TITLES[way]} / {_HAND}", ratio, self.goals[way]))
        section.notes.append(
            f"medians of {runs} {'runs' if runs > 1 else 'run'} in turn; the loop by hand takes {batch} at a time."
        )
        section.notes += [
            f"{_TITLES.get(way, way)}: {', '.join(f'{one:.2f}' for one in taken)} s" for way, taken in seconds.items()
        ]
        if "auto" in self.goals:
            section.notes.append(f"compile: auto compiled in {compiled} of {runs} runs; that is on the clock.")
        return section

    @contextmanager
    def ready(self, way: str) -> Iterator[Any]:
        """An encoder that is loaded, and has built a part of the samples: as the loop by hand has tried its sizes.

        For `auto` it is not compiled, and torch remembers nothing of what was compiled before.
        """
        with ExitStack() as stack:
            if way == "auto":
                torch._dynamo.reset()
                stack.enter_context(fresh_cache())
            data = self.inputs.part(self.data())
            setting = "off" if way == "auto" else way
            with self.project(data, setting) as project:
                ((_, spec),) = project.plan().specs.items()
                encoder: Any = spec.make()
            encoder.load(self.device)
            unload = encoder.unload
            encoder.load = encoder.unload = lambda *_: None
            try:
                self.build(encoder, setting, data)
                yield encoder
            finally:
                unload()

    def build(self, encoder: Any, setting: str, data: Path | None = None, *, waits: Waits | None = None) -> Built:
        """A build into a store of its own, from the first claim to the last durable entry."""
        with self.project(data or self.data(), setting) as project:
            plan = project.plan()
            settle(self.base)
            gc.collect()
            synchronise(self.device)
            with _made_by(encoder), waits or nullcontext():
                report = plan.build()
            if report.failed:
                raise SystemExit(f"failed: {report.failed[0]}")
        return Built(sum(report.encoded.values()), report.seconds)

    @contextmanager
    def project(self, data: Path, setting: str) -> Iterator[precook.Project]:
        """A project over a folder, whose store goes away with it."""
        store = self.base / "store"
        try:
            with precook.Project(
                base=self.base,
                store=str(store),
                dataset="bench",
                concepts=[{"name": "bench", "path": str(data)}],
                image=self.image,
                text={"empty_prompt": False},
                encoders={"encoder": {**self.section, "dtype": "bfloat16", "device": self.device, "compile": setting}},
            ) as project:
                yield project
        finally:
            shutil.rmtree(store, ignore_errors=True)


class Text(Contest):
    """Captions of 20 to 100 words through a Qwen3-shaped model."""

    unit = "texts"
    sizes = (128, 256, 512)
    image = {"resolutions": [64]}  # noqa: RUF012 - read only

    def __init__(
        self, inputs: Inputs, options: argparse.Namespace, goals: Mapping[str, float], *, samples: int
    ) -> None:
        super().__init__(inputs, options, goals)
        self.samples = 8 if inputs.quick else samples
        self.model, self.tokenizer = inputs.text_model
        self.section = {"uses": "transformers-text", "model": str(self.base / "text"), "max_length": _LENGTH}

    def title(self) -> str:
        """The model's size, and how many texts."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        return f"Text encoder, {count / 1e9:.2f} B parameters, bfloat16, {self.samples * _LINES:,} texts"

    def data(self) -> Path:
        """Pictures with ten captions each."""
        return self.inputs.captions(self.samples)[0]

    def loop(self) -> TextLoop:
        """The same texts, from memory."""
        texts = self.inputs.captions(self.samples)[1]
        return TextLoop(self.base / "shelf", self.device, self.model, self.tokenizer, texts)

    def run(self) -> Iterator[Section]:
        """All ways, and where `compile: off` is one of them a loop over single texts."""
        for section in super().run():
            if "off" in self.goals and section.name == "gpu":
                alone = self._one_by_one()
                section.rows.insert(0, ["one by one, nothing stored", alone, None, None, None])
                built = section.value(_TITLES["off"], f"{self.unit}/s") or 0.0
                section.goals.append(Goal(f"{_TITLES['off']} / one by one", built / alone, 50.0))
            yield section

    def _one_by_one(self) -> float:
        """Texts a second, each padded to the full length, as trainers do."""
        loop = self.loop()
        texts = loop.texts[: 10 if self.inputs.quick else 200]
        loop.forward([texts[0]], padding="max_length", max_length=_LENGTH)
        synchronise(self.device)
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
        options: argparse.Namespace,
        goals: Mapping[str, float],
        *,
        count: int,
        side: int,
        mixed: bool = False,
    ) -> None:
        super().__init__(inputs, options, goals)
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
        with self.project(self.data(), "off") as project:
            plan = project.plan()
            ((cuts,), samples) = plan.targets.cuts, plan.samples
            pictures = []
            for number in range(samples.count):
                concept, row = samples.in_concept(number)
                width, height = cuts[number][TARGET].tolist()
                pictures.append((concept.full_path(row), (width, height)))
        return PictureLoop(self.base / "shelf", self.device, self.vae, pictures)


_EXACT = {"off": 0.97, "on": 1.6}
_OTHER = {"off": 0.95, "on": 1.4}
_FEW = {"auto": 0.9}
_PARTS = {
    "text": lambda inputs, options: Text(inputs, options, {"off": 1.0, "on": 1.35}, samples=2000),
    "vae-512": lambda inputs, options: Vae(inputs, options, _EXACT, count=1200, side=512),
    "vae-1024": lambda inputs, options: Vae(inputs, options, _OTHER, count=256, side=1024),
    "vae-mixed": lambda inputs, options: Vae(inputs, options, _OTHER, count=1000, side=512, mixed=True),
    "few-text": lambda inputs, options: Text(inputs, options, _FEW, samples=200),
    "few-vae": lambda inputs, options: Vae(inputs, options, _FEW, count=2000, side=512),
}


@contextmanager
def _made_by(encoder: Any) -> Iterator[None]:
    """A build finds its encoder loaded, as the loop by hand does."""
    make = EncoderSpec.make
    EncoderSpec.make = lambda _: encoder  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        EncoderSpec.make = make  # type: ignore[method-assign]


class Utilisation:
    """How busy the GPU is, by its own account: the upper half's middle, because a run has its beginning and end."""

    def __init__(self, found: list[float]) -> None:
        self._found = found
        """Where it goes, if there is a GPU to ask."""
        self._seen: list[float] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Utilisation:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            return self
        threading.Thread(target=self._read, name="bench-utilisation", daemon=True).start()
        return self

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._seen.append(float(line))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if upper := sorted(self._seen)[len(self._seen) // 2 :]:
            self._found.append(median(upper))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--only", **some_of(tuple(_PARTS)))
    asked.add_argument("--runs", type=int, default=3, help="of which medians are taken (default: 3)")
    asked.add_argument("--limit", type=float, default=90, help="seconds after which a part begins no further run")
    asked.add_argument("--no-waits", action="store_true", help="without the look at the threads")
    return asked.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
