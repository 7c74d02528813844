"""The loops that a careful user writes by hand around an encoder; their results are durable on disk.

Texts are sorted by length and padded to the longest of a batch, with attention that needs no plan for each shape;
pictures are sorted by size and, for a GPU, decoded by worker processes. For a GPU memory is pinned both ways, so that
it computes while the next batch is made and the last is fetched. Threads of their own write a safetensors file for each
batch and sync it. The batch size is the best of several, found on a part of the same inputs.
"""

from __future__ import annotations

import os
import queue
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

_BUFFERS = 4
"""Batches that may be on their way to the disk."""
_WRITERS = 2
"""Threads that write them: with one, the disk would limit texts."""
_WARM = 2
"""Batches that a model sees before it is measured."""
_ATTENTION = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


class Loop:
    """A loop over batches; `run` takes the seconds from the first batch to the last durable file."""

    def __init__(self, folder: Path, device: str, model: Any) -> None:
        self.folder = folder
        self.device = device
        self.model = model
        self.size = 0
        """Items in a batch."""

    def settle_size(self, sizes: Sequence[int]) -> None:
        """Try each size on a part of the inputs, twice because the first is cold, and keep the best."""
        rates = {}
        for size in sizes:
            self.size = size
            rates[size] = min(self._timed(part=True) for _ in range(2))
        self.size = min(rates, key=lambda size: rates[size])

    def run(self) -> float:
        """Seconds for all inputs."""
        return self._timed(part=False)

    def _timed(self, *, part: bool) -> float:
        start, numbers = self._begin(part=part)
        with Shelf(self.folder, numbers, self.model.dtype, self.device) as shelf:
            synchronise(self.device)
            begun = time.perf_counter()
            start(shelf)
            shelf.finish()
            return time.perf_counter() - begun

    def _begin(self, *, part: bool) -> tuple[Callable[[Shelf], None], int]:
        """What encodes all inputs or a part of them, and the most numbers that a batch of them gives."""
        raise NotImplementedError


class TextLoop(Loop):
    """Hidden states of texts, sorted by length."""

    def __init__(self, folder: Path, device: str, model: Any, tokenizer: Any, texts: Sequence[str]) -> None:
        super().__init__(folder, device, model)
        self.tokenizer = tokenizer
        self.texts = texts
        self._options = {"use_cache": False} if hasattr(model.config, "use_cache") else {}

    @torch.inference_mode()
    def forward(self, texts: list[str], **padding: Any) -> tuple[Any, list[int]]:
        """Hidden states on the device, and how many tokens of each text are real."""
        batch = self.tokenizer(texts, truncation=True, return_tensors="pt", **padding)
        lengths = batch["attention_mask"].sum(1).tolist()
        inputs = {name: self._sent(tensor) for name, tensor in batch.items()}
        with sdpa_kernel(list(_ATTENTION)):
            return self.model(**inputs, **self._options).last_hidden_state, lengths

    def _sent(self, tensor: Any) -> Any:
        """On the device soon; from pinned memory, so that nobody waits for it."""
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device == "cuda" else tensor

    def _begin(self, *, part: bool) -> tuple[Callable[[Shelf], None], int]:
        size, texts = self.size, self.texts[::4] if part else self.texts
        longest = max(map(len, self.tokenizer(list(texts), truncation=True)["input_ids"]))

        def run(shelf: Shelf) -> None:
            ordered = sorted(texts, key=len)
            for at in range(0, len(ordered), size):
                shelf.put(*self.forward(ordered[at : at + size], padding=True))

        return run, size * longest * self.model.config.hidden_size


class PictureLoop(Loop):
    """Latents of pictures, sorted by the size that each is cut to."""

    def __init__(self, folder: Path, device: str, vae: Any, pictures: Sequence[tuple[str, tuple[int, int]]]) -> None:
        super().__init__(folder, device, vae)
        self.pictures = sorted(pictures, key=lambda picture: picture[1])
        self._loaders: dict[tuple[int, bool], Any] = {}

    @torch.inference_mode()
    def forward(self, pixels: Any) -> Any:
        """Latents on the device."""
        values = pixels.to(self.device, non_blocking=True).to(self.model.dtype) / 127.5 - 1
        return self.model.encode(values).latent_dist.mean

    def _begin(self, *, part: bool) -> tuple[Callable[[Shelf], None], int]:
        pictures = self.pictures[::4] if part else self.pictures
        loader = self._loaders.get((self.size, part))
        if loader is None:
            if not part:
                self._loaders.clear()  # the workers of those that were tried go
            loader = self._loaders[self.size, part] = self._loader(pictures)
            # Once for nothing: the workers are there, the model has seen the size. To the end, because what workers
            # have read ahead is thrown away at the beginning of the next run.
            for number, batch in enumerate(loader):
                if number < _WARM:
                    self.forward(batch)

        def run(shelf: Shelf) -> None:
            for batch in loader:
                shelf.put(self.forward(batch))

        config = self.model.config
        factor = 2 ** (len(config.block_out_channels) - 1)
        largest = max(width * height for _, (width, height) in pictures) // factor**2
        return run, self.size * largest * config.latent_channels

    def _loader(self, pictures: Sequence[tuple[str, tuple[int, int]]]) -> Any:
        batches: list[list[int]] = []
        for number, (_, size) in enumerate(pictures):
            if batches and len(batches[-1]) < self.size and pictures[batches[-1][0]][1] == size:
                batches[-1].append(number)
            else:
                batches.append([number])
        return torch.utils.data.DataLoader(
            Pictures(pictures),
            batch_sampler=batches,
            # Without a GPU the model has all cores, and decoding is a small part.
            num_workers=(os.cpu_count() or 1) if self.device == "cuda" else 0,
            pin_memory=self.device == "cuda",
            persistent_workers=self.device == "cuda",
        )


class Pictures(torch.utils.data.Dataset[Any]):
    """Picture files as a user's own dataset reads them: 3 x H x W, bytes."""

    def __init__(self, pictures: Sequence[tuple[str, tuple[int, int]]]) -> None:
        self._pictures = pictures

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, number: int) -> Any:
        path, size = self._pictures[number]
        with Image.open(path) as picture:
            cut = ImageOps.fit(picture.convert("RGB"), size, Image.Resampling.LANCZOS)
        return torch.from_numpy(np.asarray(cut).copy()).permute(2, 0, 1)


class Shelf:
    """Results made durable by threads of their own: a safetensors file for each batch, in a folder that goes away."""

    def __init__(self, folder: Path, numbers: int, dtype: Any, device: str) -> None:
        self._folder = folder
        self._free: queue.Queue[Any] = queue.Queue()
        for _ in range(_BUFFERS):
            self._free.put(torch.empty(numbers, dtype=dtype, pin_memory=device == "cuda"))
        self._pool = ThreadPoolExecutor(_WRITERS)
        self._work: list[Future[None]] = []

    def __enter__(self) -> Shelf:
        self._folder.mkdir()
        return self

    def put(self, results: Any, lengths: list[int] | None = None) -> None:
        """Fetch a batch's results without waiting, and have them written; of texts the real tokens only."""
        buffer = self._free.get()
        host = buffer[: results.numel()].view(results.shape)
        host.copy_(results, non_blocking=True)
        arrived = torch.cuda.Event() if results.is_cuda else None
        if arrived is not None:
            arrived.record()
        path = self._folder / f"{len(self._work)}.safetensors"
        self._work.append(self._pool.submit(self._write, path, buffer, host, arrived, lengths))

    def finish(self) -> None:
        """Wait until everything is durable."""
        for work in self._work:
            work.result()

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        shutil.rmtree(self._folder)

    def _write(self, path: Path, buffer: Any, host: Any, arrived: Any, lengths: list[int] | None) -> None:
        try:
            if arrived is not None:
                arrived.synchronize()
            if lengths is None:
                save_file({"latents": host}, path)
            else:
                save_file({str(row): host[row, :length] for row, length in enumerate(lengths)}, path)
            with path.open("rb") as file:
                os.fsync(file.fileno())
        finally:
            self._free.put(buffer)


def synchronise(device: str) -> None:
    """Wait for a GPU to be done with what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()
