"""The build benchmark: what the engine costs around an encoder, on a machine without a GPU.

**Free encoders** return prepared tensors at no cost, so the build itself is all there is to measure: it stands beside
one sequential write and fsync of the same bytes in the same run. Entries have the size of real latents (128 KiB is fp16
at 512 px and 16 channels, 512 KiB at 1024 px). The goal is for texts, 16 to a file, which cost next to nothing to read;
pictures of 64 px, one to an entry, show what opening and decoding small files adds.

**Real encoders** are small, with random weights, beside the best batched loop written by hand on the same cores, whose
results are durable, too (`bench/by_hand.py`); what the threads of a build wait for is looked at.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

if not __package__:
    import script  # noqa: F401 - finds the rest

# For both sides alike: torch's threads that spin while they wait for each other measure who else uses the machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import diffusers
import numpy as np
import torch
import transformers

import precook
from bench.by_hand import PictureLoop, TextLoop
from bench.contest import Contest, Rules
from bench.inputs import draw_pictures, make_texts, word_tokenizer, write_captions
from bench.measure import median, median_ratio, seconds, settle
from bench.plan import generate
from bench.script import facts, fill, folder, parser, some_of, tell, versions
from bench.table import Column, Goal, Section
from precook.store.format.build import make_entry
from precook.store.leaves import is_finite
from precook.store.tree import take_apart

_KIB = 1024
_SIZES = (128 * _KIB, 512 * _KIB)
_PARTS = ("free", "text", "vae")
_LINES = 16
"""Captions in a file: with one in each, opening files would be most of what is measured."""
_AT_ONCE = 64
"""Entries that one call writes, as the raw write does it."""
_TOKENS = 77
_GOAL = 0.95
"""What a build has to reach of the loop by hand."""


def main(arguments: list[str] | None = None) -> int:
    """Run both parts."""
    options = _parse(arguments)
    transformers.utils.logging.disable_progress_bar()
    tell(facts(versions=versions("torch", "transformers", "diffusers")))
    with folder(options.dir) as made:
        if "free" in options.only:
            print(free_encoders(made / "free", options), flush=True)
        rules = Rules("cpu", options.repeats, options.limit, waits=True, quick=options.quick)
        for name, contest in (("text", Text), ("vae", Vae)):
            if name in options.only:
                for section in contest(made, rules, {"off": _GOAL}).run():
                    print(section, flush=True)
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


class Text(Contest):
    """Captions of 5 to 40 words through a CLIP-shaped text encoder."""

    unit = "texts"
    sizes = (4, 8, 16, 32, 64)
    dtype = "float32"
    image = {"resolutions": [64]}  # noqa: RUF012 - read only

    def __init__(self, base: Path, rules: Rules, goals: Mapping[str, float]) -> None:
        super().__init__(base, rules, goals)
        self.texts = make_texts(80 if rules.quick else 1200, least=5, most=41)
        write_captions(base / "captions", self.texts)
        self.tokenizer = word_tokenizer(_TOKENS, ends=True)
        config = transformers.CLIPTextConfig(
            vocab_size=len(self.tokenizer), hidden_size=256, intermediate_size=1024, num_hidden_layers=4,
            num_attention_heads=4, max_position_embeddings=_TOKENS, bos_token_id=2, eos_token_id=3, pad_token_id=0,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = transformers.CLIPTextModel(config).eval()
        self.model.save_pretrained(base / "text")
        self.tokenizer.save_pretrained(base / "text")
        self.section = {"uses": "transformers-text", "model": str(base / "text"), "pooled": False}

    def title(self) -> str:
        """The model's size, and how many texts."""
        size = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        return f"Text encoder, {size:.1f} M parameters, float32, {len(self.texts):,} texts"

    def data(self) -> Path:
        """Pictures with ten captions each."""
        return self.base / "captions"

    def loop(self) -> TextLoop:
        """The same texts, from memory."""
        return TextLoop(self.base / "shelf", "cpu", self.model, self.tokenizer, self.texts)


class Vae(Contest):
    """Pictures through a small VAE."""

    unit = "pictures"
    sizes = (1, 2, 4, 8)
    dtype = "float32"

    def __init__(self, base: Path, rules: Rules, goals: Mapping[str, float]) -> None:
        super().__init__(base, rules, goals)
        self.side = 64 if rules.quick else 256
        self.count = 8 if rules.quick else 64
        draw_pictures(base / "pictures", self.count, self.side)
        blocks = (32, 64, 64, 64)
        torch.manual_seed(0)
        self.vae = diffusers.AutoencoderKL(
            block_out_channels=blocks,
            down_block_types=("DownEncoderBlock2D",) * len(blocks),
            up_block_types=("UpDecoderBlock2D",) * len(blocks),
            latent_channels=4,
        ).eval()
        self.vae.save_pretrained(base / "vae")
        self.section = {"uses": "diffusers-vae", "model": str(base / "vae")}
        self.image = {"resolutions": [f"{self.side}x{self.side}"]}

    def title(self) -> str:
        """The model's size, and how many pictures."""
        size = sum(parameter.numel() for parameter in self.vae.encoder.parameters()) / 1e6
        return f"VAE encoder, {size:.1f} M parameters, float32, {self.count} pictures of {self.side} px"

    def data(self) -> Path:
        """JPEG files."""
        return self.base / "pictures"

    def loop(self) -> PictureLoop:
        """The same files."""
        return PictureLoop(self.base / "shelf", "cpu", self.vae, self.cut_pictures())


def _project(base: Path, data: Path, encoders: dict[str, Any]) -> precook.Project:
    return precook.Project(
        base=base,
        dataset="bench",
        concepts=[{"name": "bench", "path": str(data)}],
        image={"resolutions": [64], "step": 8},
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
    asked.add_argument("--limit", type=float, default=120, help="seconds after which a part begins no further run")
    full, quick = {"megabytes": 1024, "repeats": 5}, {"megabytes": 8, "repeats": 1}
    return fill(asked.parse_args(arguments), full=full, quick=quick)


if __name__ == "__main__":
    sys.exit(main())
