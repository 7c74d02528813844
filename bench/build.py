"""The build benchmark: what the engine costs around an encoder, on a machine without a GPU.

**Free encoders** return prepared tensors at no cost, so the build itself is all there is to measure: it stands beside
one sequential write and fsync of the same bytes in the same run. Entries have the size of real latents (128 KiB is fp16
at 512 px and 16 channels, 512 KiB at 1024 px). The goal is for texts, 16 to a file, which cost next to nothing to read;
pictures of 64 px, one to an entry, show what opening and decoding small files adds.

**Real encoders** are small, with random weights, beside a loop over single items that stores nothing.

`python bench/build.py` takes about three minutes, `--quick` is a smoke run.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

if not __package__:
    import script  # noqa: F401 - finds the rest

# For both sides alike: torch's threads that spin while they wait for each other measure who else uses the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import diffusers
import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image

import precook
from bench.measure import median, median_ratio, seconds, settle
from bench.plan import generate
from bench.script import facts, fill, folder, parser, some_of, tell, versions
from bench.table import Column, Goal, Section
from precook.store.format.build import make_entry
from precook.store.leaves import is_finite
from precook.store.tree import take_apart

_KIB = 1024
_SIZES = (128 * _KIB, 512 * _KIB)
_PARTS = ("free", "real")
_LINES = 16
"""Captions in a file: with one in each, opening files would be most of what is measured."""
_AT_ONCE = 64
"""Entries that one call writes, as the raw write does it."""
_WORDS = 2000
_TOKENS = 77


def main(arguments: list[str] | None = None) -> int:
    """Run both parts."""
    options = _parse(arguments)
    transformers.utils.logging.disable_progress_bar()
    tell(facts(versions=versions("torch", "transformers", "diffusers")))
    with folder(options.dir) as made:
        if "free" in options.only:
            print(free_encoders(made / "free", options), flush=True)
        if "real" in options.only:
            for contest in (Text, Vae):
                print(contest(made / contest.__name__, options).run(), flush=True)
    return 0


class Free:
    """An encoder that hands out prepared tensors, one after the other, and never writes to them."""

    gives_away = True

    def __init__(self, input_: Literal["image", "text"], tensors: list[torch.Tensor]) -> None:
        self.input = input_
        self._tensors = tensors
        self._at = 0
        self._turn = threading.Lock()

    def identity(self) -> object:
        return {"version": 1}

    def load(self, device: str) -> None:  # noqa: ARG002 - it runs nowhere
        self._at = 0

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        with self._turn:
            start, self._at = self._at, self._at + len(batch)
        return self._tensors[start : start + len(batch)]

    def unload(self) -> None:
        pass


def free_encoders(base: Path, options: argparse.Namespace) -> Section:
    """Builds with free encoders beside a sequential write of the same bytes."""
    base.mkdir()
    payload = options.megabytes << 20
    columns = [
        Column("input"),
        Column("entry, KiB"),
        Column("entries"),
        Column("raw write, s", ".2f"),
        Column("build, s", ".2f"),
        Column("GB/s", ".2f"),
        Column("of raw", ".2f"),
        Column("with plans, s", ".2f"),
    ]
    section = Section("free", f"Build with a free encoder, {options.megabytes} MiB of entries", columns)
    for size in _SIZES:
        count = payload // size
        tensors = _prepared(count, size)
        for input_ in ("text", "image"):
            data = base / f"{input_}-{count}"
            generate(data, count // _LINES if input_ == "text" else count)
            if input_ == "text":
                _caption(data)
            raws, builds, wholes = [], [], []
            for _ in range(options.repeats):
                raws.append(_raw_write(base / "raw", tensors))
                built, whole = _free_build(base, data, input_, tensors)
                builds.append(built)
                wholes.append(whole)
            ratio = median_ratio(raws, builds)
            row = [input_, size // _KIB, count, median(raws), median(builds), payload / median(builds) / 1e9]
            section.rows.append([*row, ratio, median(wholes)])
            if input_ == "text":
                what = f"build with a free encoder, entries of {size // _KIB} KiB, share of raw write + fsync"
                section.goals.append(Goal(what, ratio, 0.70, unit=""))
            shutil.rmtree(data)
        if size == max(_SIZES):
            section.notes.append(_work(tensors))
    section.notes.append(
        f"medians of {options.repeats} runs in turn; a build counts from the first claim to the last durable entry, "
        "'with plans' adds the plan before it, the look at the sources after it, and the snapshot."
    )
    return section


def _caption(folder: Path) -> None:
    """Give every picture as many captions as a file is to have, each of its own."""
    for path in folder.glob("*.txt"):
        path.write_text("".join(f"{path.stem}, line {line}\n" for line in range(_LINES)), "utf-8")


def _prepared(count: int, size: int) -> list[torch.Tensor]:
    """Latents in half precision: random bits, but for those that would make infinities and NaNs."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, (count, 16, size // 32), np.uint16)
    bits &= np.uint16(0xBBFF)
    return list(torch.from_numpy(bits.view(np.float16)))


def _raw_write(path: Path, tensors: list[torch.Tensor]) -> float:
    """One file, written as fast as the system takes it, and synced once."""
    buffers = [memoryview(tensor.numpy().reshape(-1).view(np.uint8)) for tensor in tensors]
    path.unlink(missing_ok=True)
    settle(path.parent)
    _warm(2 * sum(buffer.nbytes for buffer in buffers))

    def action() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for at in range(0, len(buffers), _AT_ONCE):
                if os.writev(descriptor, some := buffers[at : at + _AT_ONCE]) != sum(one.nbytes for one in some):
                    raise SystemExit("the disk took only a part of the bytes")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    return seconds(action)


def _free_build(base: Path, data: Path, input_: Any, tensors: list[torch.Tensor]) -> tuple[float, float]:
    """Seconds of the build, and of everything from the first look at the sources to the snapshot."""
    shutil.rmtree(base / "cache", ignore_errors=True)
    with _project(base, data, {"free": Free(input_, tensors)}) as project:
        start = time.perf_counter()
        plan = project.plan()
        planned = time.perf_counter() - start
        settle(base)
        _warm(2 * sum(tensor.nbytes for tensor in tensors))
        start = time.perf_counter()
        report = plan.build()
        whole = planned + time.perf_counter() - start
        _check(report, len(tensors))
    return report.seconds, whole


def _warm(nbytes: int) -> None:
    """Touch memory and give it back: a virtual machine's may be lent to others by now, and cost its first user dear.

    Measured: the same raw write takes four times as long on memory that was idle for two seconds.
    """
    gc.collect()
    np.ones(nbytes, np.uint8)


def _work(tensors: list[torch.Tensor]) -> str:
    """What has to be done with every byte before it can be written, step by step in one thread."""
    recipe, key = precook.Recipe("bench", {}), precook.Recipe("bench", {}).key("x").bytes
    parts: list[Any] = []
    _warm(2 * sum(tensor.nbytes for tensor in tensors))
    copied = seconds(lambda: parts.extend(take_apart(tensor) for tensor in tensors))
    looked = seconds(lambda: [is_finite(one.leaves[0]) for one in parts])
    summed = seconds(lambda: [make_entry(key, one, recipe=recipe) for one in parts])
    return (
        f"in one thread, alone, the same bytes take {copied:.2f} s to be copied, {looked:.2f} s to be searched for "
        f"what is not finite, and {summed:.2f} s to get checksums."
    )


class Contest:
    """A small real encoder: a loop over single items, and a build."""

    unit = ""
    title = ""
    encoder: dict[str, Any]
    image: dict[str, Any]

    def __init__(self, base: Path, options: argparse.Namespace) -> None:
        self.base = base
        self.quick = options.quick
        self.repeats = options.repeats
        self.data = base / "data"
        base.mkdir()
        torch.manual_seed(0)

    def run(self) -> Section:
        """Measure both, in turn."""
        columns = [Column("way"), Column(f"{self.unit}/s", ",.1f"), Column("seconds", ".2f")]
        section = Section("real", self.title, columns)
        count = self.count()
        loops, builds = [], []
        self.loop(3)
        for _ in range(self.repeats):
            loops.append(seconds(lambda: self.loop(count)))
            builds.append(self.build(count))
        for way, taken in (("one by one, nothing stored", loops), ("precook build", builds)):
            section.rows.append([way, count / median(taken), median(taken)])
        section.notes.append(
            f"precook build / one by one: {median_ratio(loops, builds):.2f}x, median of {self.repeats} runs in turn; "
            "the build loads its model, the loop has it loaded."
        )
        return section

    def count(self) -> int:
        """How many items there are."""
        raise NotImplementedError

    def loop(self, count: int) -> None:
        """The first so many items, one by one."""
        raise NotImplementedError

    def build(self, count: int) -> float:
        """Seconds of a build, from files to durable entries."""
        shutil.rmtree(self.base / "cache", ignore_errors=True)
        settle(self.base)
        gc.collect()
        with _project(self.base, self.data, {"real": self.encoder}, self.image) as project:
            report = project.plan().build()
            _check(report, count)
        return report.seconds


class Text(Contest):
    """Captions of 5 to 40 words through a CLIP-shaped text encoder."""

    unit = "texts"

    def __init__(self, base: Path, options: argparse.Namespace) -> None:
        super().__init__(base, options)
        rng = np.random.default_rng(0)
        words = [f"w{number}" for number in range(_WORDS)]
        generate(self.data, 4 if self.quick else 60)
        lines = 5 if self.quick else 10
        self.texts: list[str] = []
        for path in sorted(self.data.glob("*.txt")):
            texts = [" ".join(rng.choice(words, int(rng.integers(5, 41)))) for _ in range(lines)]
            path.write_text("\n".join(texts) + "\n", "utf-8")
            self.texts += texts
        vocabulary = {word: number for number, word in enumerate(["<pad>", "<unk>", "<s>", "</s>", *words])}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
        )
        names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=_TOKENS, **names)
        config = transformers.CLIPTextConfig(
            vocab_size=len(vocabulary), hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
            num_attention_heads=4, max_position_embeddings=_TOKENS, bos_token_id=2, eos_token_id=3, pad_token_id=0,
        )  # fmt: skip
        self.model = transformers.CLIPTextModel(config).eval()
        self.model.save_pretrained(base / "model")
        self.tokenizer.save_pretrained(base / "model")
        self.encoder = {"uses": "transformers-text", "model": str(base / "model"), "device": "cpu"}
        self.image = {"resolutions": [64], "step": 8}
        size = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        self.title = f"Text encoder, {size:.1f} M parameters, float32, {len(self.texts):,} texts"

    def count(self) -> int:
        """How many texts there are."""
        return len(self.texts)

    @torch.inference_mode()
    def loop(self, count: int) -> None:
        """Each padded to the full length, as trainers do."""
        for text in self.texts[:count]:
            self.model(**self.tokenizer(text, padding="max_length", truncation=True, return_tensors="pt"))


class Vae(Contest):
    """Pictures through a small VAE."""

    unit = "pictures"

    def __init__(self, base: Path, options: argparse.Namespace) -> None:
        super().__init__(base, options)
        self.data.mkdir()
        self.side = 64 if self.quick else 256
        self.paths = [self._draw(number) for number in range(4 if self.quick else 40)]
        blocks = (32, 64, 64, 64)
        self.vae = diffusers.AutoencoderKL(
            block_out_channels=blocks,
            down_block_types=("DownEncoderBlock2D",) * len(blocks),
            up_block_types=("UpDecoderBlock2D",) * len(blocks),
            latent_channels=4,
        ).eval()
        self.vae.save_pretrained(base / "model")
        self.encoder = {"uses": "diffusers-vae", "model": str(base / "model"), "device": "cpu"}
        self.image = {"resolutions": [f"{self.side}x{self.side}"]}
        size = sum(parameter.numel() for parameter in self.vae.encoder.parameters()) / 1e6
        self.title = f"VAE encoder, {size:.1f} M parameters, float32, {len(self.paths)} pictures of {self.side} px"

    def _draw(self, number: int) -> Path:
        rng = np.random.default_rng(number)
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        path = self.data / f"{number}.jpg"
        small.resize((self.side * 4, self.side * 3), Image.Resampling.BICUBIC).save(path, quality=90)
        return path

    def count(self) -> int:
        """How many pictures there are."""
        return len(self.paths)

    @torch.inference_mode()
    def loop(self, count: int) -> None:
        """Read, decode, cut, encode, one after the other."""
        for path in self.paths[:count]:
            with Image.open(path) as picture:
                cut = picture.convert("RGB").resize((self.side, self.side), Image.Resampling.LANCZOS)
            pixels = torch.from_numpy(np.asarray(cut).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
            self.vae.encode(pixels)


def _project(base: Path, data: Path, encoders: dict[str, Any], image: dict[str, Any] | None = None) -> precook.Project:
    return precook.Project(
        base=base,
        dataset="bench",
        concepts=[{"name": "bench", "path": str(data)}],
        image=image or {"resolutions": [64], "step": 8},
        text={"empty_prompt": False},
        encoders=encoders,
    )


def _check(report: Any, count: int) -> None:
    if report.failed or sum(report.encoded.values()) != count:
        raise SystemExit(f"encoded {report.encoded}, wanted {count}; failed: {report.failed[:1]}")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--only", **some_of(_PARTS))
    asked.add_argument("--megabytes", type=int, help="MiB of entries of a free encoder (default: 1024)")
    asked.add_argument("--repeats", type=int, help="of which medians are taken (default: 5)")
    full, quick = {"megabytes": 1024, "repeats": 5}, {"megabytes": 8, "repeats": 1}
    return fill(asked.parse_args(arguments), full=full, quick=quick)


if __name__ == "__main__":
    sys.exit(main())
