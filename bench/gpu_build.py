"""The GPU build benchmark: a text encoder of about a billion parameters and a full-size VAE, random weights, bfloat16.

Each is run three ways on the same inputs: one by one, as the best batched loop written by hand (everything prepared in
memory, nothing stored), and as a precook build from files to a store on disk. `python bench/gpu_build.py` needs a CUDA
device, transformers and diffusers; `--quick` runs tiny models on any device: does it run?
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

if not __package__:
    _ROOT = Path(__file__).resolve().parents[1]
    sys.path[:1] = [str(_ROOT), str(_ROOT / "src")]

import diffusers
import numpy as np
import tokenizers
import torch
import transformers
from PIL import Image

import precook
from bench.measure import median
from bench.table import Column, Goal, Section
from precook.config.read import Origin
from precook.encode.catalog import make_worker

_WORDS = 2000


def main(arguments: list[str] | None = None) -> int:
    """Run both encoders."""
    options = _parse(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "CPU"
    print(f"device: {name}; torch {torch.__version__}, transformers {transformers.__version__}, ", end="")
    print(
        f"diffusers {diffusers.__version__}, python {platform.python_version()}, {os.cpu_count()} cores\n", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="precook-bench-", dir=options.dir) as folder:
        if "text" in options.only:
            print(Text(Path(folder), device, options).run(), flush=True)
        if "vae" in options.only:
            print(Vae(Path(folder), device, options).run(), flush=True)
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
        self.texts = [" ".join(rng.choice(words, int(rng.integers(20, 100)))) for _ in range(self.samples * self.lines)]
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
        config = transformers.Qwen3Config(
            **sizes, num_attention_heads=16, num_key_value_heads=8, head_dim=sizes["hidden_size"] // 16
        )
        torch.manual_seed(0)
        with torch.device(self.device):
            model = transformers.Qwen3Model(config).to(torch.bfloat16).eval()
        model.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)
        return model, tokenizer

    @torch.inference_mode()
    def _forward(self, texts: list[str], **padding: Any) -> Any:
        batch = self.tokenizer(texts, truncation=True, max_length=self.length, return_tensors="pt", **padding)
        return self.model(**batch.to(self.device)).last_hidden_state.cpu()

    def one_by_one(self) -> tuple[int, float]:
        """Each padded to the full length, as trainers do."""
        texts = self.texts[: 10 if self.options.quick else 200]
        self._forward(texts[:1], padding="max_length")
        return len(texts), self.timed(lambda: [self._forward([text], padding="max_length") for text in texts])

    def by_hand(self) -> tuple[int, float]:
        """Sorted by length, in batches padded to their longest; the best of three sizes."""
        ordered = sorted(self.texts, key=len)
        self._forward(ordered[-256:], padding=True)

        def run(size: int) -> float:
            return self.timed(
                lambda: [self._forward(ordered[at : at + size], padding=True) for at in range(0, len(ordered), size)]
            )

        return len(ordered), min(run(size) for size in (64, 256, 512))

    def build(self) -> tuple[int, float]:
        """From caption files to entries on disk."""
        del self.model
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
        torch.manual_seed(0)
        with torch.device(device):
            vae = diffusers.AutoencoderKL(
                block_out_channels=blocks,
                down_block_types=("DownEncoderBlock2D",) * len(blocks),
                up_block_types=("UpDecoderBlock2D",) * len(blocks),
                latent_channels=16,
                layers_per_block=2,
            )
        self.vae = vae.to(torch.bfloat16).eval()
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

    def _pixels(self, number: int) -> Any:
        with Image.open(self.data / f"{number}.jpg") as picture:
            cut = picture.resize((self.side, self.side))
        return torch.from_numpy(np.asarray(cut).copy()).permute(2, 0, 1)

    @torch.inference_mode()
    def _forward(self, pixels: Any) -> Any:
        values = pixels.to(self.device, non_blocking=True).to(torch.bfloat16) / 127.5 - 1
        return self.vae.encode(values).latent_dist.mean.cpu()

    def one_by_one(self) -> tuple[int, float]:
        """Read, decode, encode, one after the other."""
        count = min(self.count, 128)
        self._forward(self._pixels(0)[None])
        return count, self.timed(lambda: [self._forward(self._pixels(number)[None]) for number in range(count)])

    def by_hand(self) -> tuple[int, float]:
        """Pictures decoded beforehand, in batches; the best of three sizes."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            pictures = torch.stack(list(pool.map(self._pixels, range(self.count))))
        if self.device == "cuda":
            pictures = pictures.pin_memory()

        def run(size: int) -> float:
            self._forward(pictures[:size])
            return self.timed(lambda: [self._forward(pictures[at : at + size]) for at in range(0, self.count, size)])

        return self.count, min(run(size) for size in (8, 16, 32))

    def build(self) -> tuple[int, float]:
        """From JPEG files to entries on disk."""
        del self.vae
        encoder = {"uses": "diffusers-vae", "model": str(self.folder), "dtype": "bfloat16", "device": self.device}
        return _build(self.base, self.data, {"latent": encoder}, {"resolutions": [f"{self.side}x{self.side}"]})


def _build(base: Path, data: Path, encoders: dict[str, Any], image: dict[str, Any]) -> tuple[int, float]:
    """Entries made, and the seconds from the first of them being prepared to the last being durable."""
    torch.cuda.empty_cache()
    with precook.Project(
        base=base,
        store=f"cache-{data.name}",
        dataset=data.name,
        concepts=[{"name": "bench", "path": str(data)}],
        image=image,
        encoders=encoders,
    ) as project:
        plan = project.plan()
        report = plan.build()
        if report.failed:
            raise SystemExit(f"failed: {report.failed[0]}")
        loading = _loading(project, encoders)
        print(f"(the build took {report.seconds:.1f} s, about {loading:.1f} s of it loading the model)", flush=True)
        return sum(report.encoded.values()), report.seconds - loading


def _loading(project: precook.Project, encoders: dict[str, Any]) -> float:
    """Seconds that loading a model takes, measured apart: a long build does it once."""
    seconds = []
    for name in encoders:
        worker = make_worker(name, project.settings.encoders[name], project.base, Origin())
        start = time.perf_counter()
        worker.load(encoders[name]["device"])
        seconds.append(time.perf_counter() - start)
        worker.unload()
    return sum(seconds)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models: does it run?")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["text", "vae"], help="text, vae")
    parser.add_argument("--dir", type=Path, help="where to write (default: the temp folder)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
