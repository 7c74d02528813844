"""The GPU build benchmark: a text encoder of about a billion parameters and a full-size VAE, random weights, bfloat16.

Each is run three ways on the same inputs, with the model loaded and warm: one by one, with nothing stored; as the best
batched loop written by hand, whose results are durable on disk; and as a precook build. The loop by hand has what a
careful user would give it: texts sorted by length, attention that needs no plan for each shape, pictures decoded by
worker processes, pinned memory both ways, one safetensors file for each batch, synced, in a thread of its own, and the
better of two batch sizes. The build starts from the same files, finds its batch size by itself and also claims, digests
and checks what it makes.

`python bench/gpu_build.py` needs a CUDA device, transformers and diffusers; `--quick` runs tiny models on any device:
does it run?
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

import precook
from bench.measure import median
from bench.script import facts, folder, parser, some_of, tell, versions
from bench.table import Column, Goal, Section
from precook.encode.build import BuildPlan
from precook.encode.registry import EncoderSpec

_WORDS = 2000
_BUFFERS = 3
"""Batches that may be on their way to the disk."""


def main(arguments: list[str] | None = None) -> int:
    """Run both encoders."""
    options = _parse(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    tell(facts(device=name, versions=versions("torch", "transformers", "diffusers")))
    with folder(options.dir) as made:
        if "text" in options.only:
            print(Text(made, device, options).run(), flush=True)
        if "vae" in options.only:
            print(Vae(made, device, options).run(), flush=True)
    return 0


class Contest:
    """One encoder, three ways."""

    title = ""
    unit = ""
    goal = 1.0

    def __init__(self, base: Path, device: str, options: argparse.Namespace) -> None:
        self.base = base
        self.device = device
        self.options = options

    def run(self) -> Section:
        """Measure all three; the table."""
        columns = [Column("way"), Column(f"{self.unit}/s", ",.1f"), Column("seconds", ".1f"), Column("GPU busy, %")]
        section = Section("gpu", self.title, columns)
        rates: dict[str, float] = {}
        for way, run in (
            ("one by one", self.one_by_one),
            ("batched by hand", self.by_hand),
            ("precook build", self.build),
        ):
            with Utilisation() as busy:
                count, seconds = run()
            rates[way] = count / seconds
            section.rows.append([way, rates[way], seconds, busy.mean()])
        section.goals += [
            Goal("precook / batched by hand", rates["precook build"] / rates["batched by hand"], 0.95),
            Goal("precook / one by one", rates["precook build"] / rates["one by one"], self.goal),
        ]
        return section

    def one_by_one(self) -> tuple[int, float]:
        """Items and seconds of a loop over single items."""
        raise NotImplementedError

    def by_hand(self) -> tuple[int, float]:
        """Items and seconds of the best batched loop."""
        raise NotImplementedError

    def build(self) -> tuple[int, float]:
        """Items and seconds of a build."""
        raise NotImplementedError

    def timed(self, action: Callable[[], object]) -> float:
        """How long the device takes for it."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start


class Text(Contest):
    """Captions of 20 to 100 words through a Qwen3-shaped model."""

    unit = "texts"
    goal = 50.0

    def __init__(self, base: Path, device: str, options: argparse.Namespace) -> None:
        super().__init__(base, device, options)
        self.samples = 20 if options.quick else 2_000
        self.lines = 10
        self.length = 512
        rng = np.random.default_rng(0)
        words = [f"w{number}" for number in range(_WORDS)]
        choices = np.array(words)
        counts = rng.integers(20, 100, self.samples * self.lines)
        self.texts = [" ".join(choices[rng.integers(0, _WORDS, count)]) for count in counts]
        self.folder = base / "text"
        self.model, self.tokenizer = self._make(words)
        count = sum(parameter.numel() for parameter in self.model.parameters())
        self.title = f"Text encoder, {count / 1e9:.2f} B parameters, bfloat16, {len(self.texts):,} texts"

    def _make(self, words: list[str]) -> tuple[Any, Any]:
        vocabulary = {word: number for number, word in enumerate(["<pad>", "<unk>", *words])}
        inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", unk_token="<unk>", model_max_length=self.length
        )
        sizes: dict[str, Any] = (
            {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 4096}
            if self.options.quick
            else {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 16, "vocab_size": 151_936}
        )
        self.width = sizes["hidden_size"]
        config = transformers.Qwen3Config(
            **sizes, num_attention_heads=16, num_key_value_heads=8, head_dim=self.width // 16
        )
        torch.manual_seed(0)
        with torch.device(self.device):
            model = transformers.Qwen3Model(config).to(torch.bfloat16).eval()
        model.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)
        return model, tokenizer

    @torch.inference_mode()
    def _forward(self, texts: list[str], **padding: Any) -> tuple[Any, list[int]]:
        """Hidden states on the device, and how many tokens of each text are real."""
        batch = self.tokenizer(texts, truncation=True, max_length=self.length, return_tensors="pt", **padding)
        lengths = batch["attention_mask"].sum(1).tolist()
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            return self.model(**batch.to(self.device), use_cache=False).last_hidden_state, lengths

    def one_by_one(self) -> tuple[int, float]:
        """Each padded to the full length, as trainers do."""
        texts = self.texts[: 10 if self.options.quick else 200]
        self._forward(texts[:1], padding="max_length")
        return len(texts), self.timed(lambda: [self._forward([text], padding="max_length")[0].cpu() for text in texts])

    def by_hand(self) -> tuple[int, float]:
        """Sorted by length, in batches padded to their longest; the better of two sizes."""
        ordered = sorted(self.texts, key=len)

        def run(size: int, *, count: int) -> float:
            most = size * max(len(text.split()) for text in ordered) * self.width
            with Shelf(self.base / "shelf", most, self.device) as shelf:
                return self.timed(lambda: self._store(ordered[-count:], size, shelf))

        for size in (256, 512):
            run(size, count=2 * size)
        return len(ordered), min(run(size, count=len(ordered)) for size in (256, 512))

    def _store(self, texts: list[str], size: int, shelf: Shelf) -> None:
        for at in range(0, len(texts), size):
            states, lengths = self._forward(texts[at : at + size], padding=True)
            shelf.put(states, lengths)
        shelf.finish()

    def build(self) -> tuple[int, float]:
        """From caption files to entries on disk."""
        self.model = None
        data = self.base / "captions"
        data.mkdir()
        for number in range(self.samples):
            picture = np.full((16, 16, 3), number % 256, np.uint8)
            picture[0, 0] = (number // 256, number % 256, 7)
            Image.fromarray(picture).save(data / f"{number}.png")
            lines = self.texts[number * self.lines : (number + 1) * self.lines]
            (data / f"{number}.txt").write_text("\n".join(lines), "utf-8")
        encoder = {
            "uses": "transformers-text",
            "model": str(self.folder),
            "dtype": "bfloat16",
            "max_length": self.length,
            "device": self.device,
        }
        return _build(self.base, data, {"prompt": encoder}, {"resolutions": [64]})


class Vae(Contest):
    """Pictures of 512 px through an SD-shaped VAE with 16 channels."""

    unit = "pictures"
    goal = 2.0

    def __init__(self, base: Path, device: str, options: argparse.Namespace) -> None:
        super().__init__(base, device, options)
        self.count = 12 if options.quick else 2_048
        self.side = 64 if options.quick else 512
        self.folder = base / "vae"
        blocks = (32, 64) if options.quick else (128, 256, 512, 512)
        self.channels, self.factor = 16, 2 ** (len(blocks) - 1)
        torch.manual_seed(0)
        with torch.device(device):
            vae = diffusers.AutoencoderKL(
                block_out_channels=blocks,
                down_block_types=("DownEncoderBlock2D",) * len(blocks),
                up_block_types=("UpDecoderBlock2D",) * len(blocks),
                latent_channels=self.channels,
                layers_per_block=2,
            )
        self.vae: Any = vae.to(torch.bfloat16).eval()
        self.vae.save_pretrained(self.folder)
        self.title = f"VAE encoder, 16 channels, bfloat16, {self.count:,} pictures of {self.side} px"
        self.data = base / "pictures"
        self.data.mkdir()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._draw, range(self.count)))

    def _draw(self, number: int) -> None:
        rng = np.random.default_rng(number)
        small = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        small.resize((self.side * 3 // 2, self.side * 9 // 8), Image.Resampling.BICUBIC).save(
            self.data / f"{number}.jpg", quality=90
        )

    @torch.inference_mode()
    def _forward(self, pixels: Any) -> Any:
        values = pixels.to(self.device, non_blocking=True).to(torch.bfloat16) / 127.5 - 1
        return self.vae.encode(values).latent_dist.mean

    def one_by_one(self) -> tuple[int, float]:
        """Read, decode, encode, one after the other."""
        count = min(self.count, 128)
        pictures = Pictures([self.data / f"{number}.jpg" for number in range(count)], self.side)
        self._forward(pictures[0][None])
        return count, self.timed(lambda: [self._forward(pictures[number][None]).cpu() for number in range(count)])

    def by_hand(self) -> tuple[int, float]:
        """Pictures decoded by worker processes ahead of the device; the better of two sizes."""
        return self.count, min(self._by_hand(size) for size in (16, 32))

    def _by_hand(self, size: int) -> float:
        pictures = Pictures([self.data / f"{number}.jpg" for number in range(self.count)], self.side)
        loader: Any = torch.utils.data.DataLoader(
            pictures,
            batch_size=size,
            num_workers=os.cpu_count() or 1,
            pin_memory=self.device == "cuda",
            persistent_workers=True,
        )
        # Once for nothing: the workers are there, the model has seen the size.
        warm = [batch for _, batch in zip(range(4), loader, strict=False)]
        for batch in warm:
            self._forward(batch)
        most = size * self.channels * (self.side // self.factor) ** 2
        with Shelf(self.base / "shelf", most, self.device) as shelf:

            def run() -> None:
                for batch in loader:
                    shelf.put(self._forward(batch))
                shelf.finish()

            return self.timed(run)

    def build(self) -> tuple[int, float]:
        """From JPEG files to entries on disk."""
        self.vae = None
        encoder = {"uses": "diffusers-vae", "model": str(self.folder), "dtype": "bfloat16", "device": self.device}
        return _build(self.base, self.data, {"latent": encoder}, {"resolutions": [f"{self.side}x{self.side}"]})


class Pictures(torch.utils.data.Dataset[Any]):
    """Picture files as a user's own dataset reads them: 3 x H x W, bytes."""

    def __init__(self, files: list[Path], side: int) -> None:
        self._files = files
        self._side = side

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> Any:
        with Image.open(self._files[number]) as picture:
            cut = picture.convert("RGB").resize((self._side, self._side), Image.Resampling.LANCZOS)
        return torch.from_numpy(np.asarray(cut).copy()).permute(2, 0, 1)


class Shelf:
    """Results made durable by a thread of their own: a safetensors file for each batch, in a folder that goes away."""

    def __init__(self, folder: Path, numbers: int, device: str) -> None:
        self._folder = folder
        self._free: queue.Queue[Any] = queue.Queue()
        for _ in range(_BUFFERS):
            self._free.put(torch.empty(numbers, dtype=torch.bfloat16, pin_memory=device == "cuda"))
        self._waiting: queue.SimpleQueue[tuple[Any, Any, Any, list[int] | None] | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(1)
        self._work: Future[None] | None = None

    def __enter__(self) -> Shelf:
        self._folder.mkdir()
        self._work = self._pool.submit(self._write)
        return self

    def put(self, results: Any, lengths: list[int] | None = None) -> None:
        """Fetch a batch's results without waiting, and have them written; of texts the real tokens only."""
        buffer = self._free.get()
        host = buffer[: results.numel()].view(results.shape)
        host.copy_(results, non_blocking=True)
        arrived = torch.cuda.Event() if results.is_cuda else None
        if arrived is not None:
            arrived.record()
        self._waiting.put((buffer, host, arrived, lengths))

    def finish(self) -> None:
        """Wait until everything is durable."""
        self._waiting.put(None)
        assert self._work is not None
        self._work.result()

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        shutil.rmtree(self._folder)

    def _write(self) -> None:
        count = 0
        while (one := self._waiting.get()) is not None:
            buffer, host, arrived, lengths = one
            if arrived is not None:
                arrived.synchronize()
            path = self._folder / f"{count}.safetensors"
            if lengths is None:
                save_file({"latents": host}, path)
            else:
                save_file({str(row): host[row, :length] for row, length in enumerate(lengths)}, path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            self._free.put(buffer)
            count += 1


def _build(
    base: Path, data: Path, encoders: dict[str, Any], image: dict[str, Any], store: str = "cache"
) -> tuple[int, float]:
    """Entries made, and the seconds from the first look for them to the last being durable."""
    with precook.Project(
        base=base,
        store=f"{store}-{data.name}",
        dataset=data.name,
        concepts=[{"name": "bench", "path": str(data)}],
        image=image,
        encoders=encoders,
    ) as project:
        plan = project.plan()
        with _loaded(plan):
            report = plan.build()
        if report.failed:
            raise SystemExit(f"failed: {report.failed[0]}")
        return sum(report.encoded.values()), report.seconds


@contextmanager
def _loaded(plan: BuildPlan) -> Iterator[None]:
    """The encoder is loaded before the build begins, as in the other two ways."""
    ((name, spec),) = plan.specs.items()
    encoder: Any = spec.make()
    encoder.load(plan.settings.encoders[name].device)
    unload = encoder.unload
    encoder.load = encoder.unload = lambda *_: None
    make = EncoderSpec.make
    EncoderSpec.make = lambda _: encoder  # type: ignore[method-assign]
    try:
        yield
    finally:
        EncoderSpec.make = make  # type: ignore[method-assign]
        unload()


class Utilisation:
    """How busy the GPU is, by its own account."""

    def __init__(self) -> None:
        self._seen: list[float] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Utilisation:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            return self
        threading.Thread(target=self._read, daemon=True).start()
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

    def mean(self) -> float | None:
        """The upper half's middle: a run has its beginning and end."""
        upper = sorted(self._seen)[len(self._seen) // 2 :]
        return median(upper) if upper else None


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--only", **some_of(("text", "vae")))
    return asked.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
