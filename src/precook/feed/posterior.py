"""Moments: latents drawn anew each epoch from the posterior that a VAE gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precook.feed.content import EntryColumn
from precook.sources.draws import Purpose, draw
from precook.store.dtypes import load_torch
from precook.store.leaves import Library
from precook.values import Bytes, Numbers


def has_moments(column: EntryColumn) -> bool:
    """Whether an encoder kept mean and logarithm of the variance instead of latents."""
    return column.kind == "diffusers-vae" and column.settings.get("posterior") == "moments"


def sample(moments: dict[str, Any], images: Bytes, draws: Numbers, seed: int, library: Library) -> Any:
    """Latents of a batch; each item's noise follows from its picture, its turn and the seed, whatever the batch."""
    mean, logvar = moments["mean"], moments["logvar"]
    noises = []
    for image, number, one in zip(images, draws.tolist(), mean, strict=True):
        bits = draw(image[np.newaxis], Purpose.NOISE, number=number, seed=seed)
        generator = np.random.Generator(np.random.Philox(int(bits[0])))
        noises.append(generator.standard_normal(tuple(one.shape), np.float32))
    if isinstance(mean, list):
        return [_drawn(*parts, library) for parts in zip(mean, logvar, noises, strict=True)]
    return _drawn(mean, logvar, np.stack(noises), library)


def _drawn(mean: Any, logvar: Any, noise: npt.NDArray[np.float32], library: Library) -> Any:
    if library == "numpy":
        wide = mean.astype(np.float32) + np.exp(logvar.astype(np.float32) / 2) * noise
        return wide.astype(mean.dtype)
    wide = mean.float() + (logvar.float() / 2).exp() * load_torch().from_numpy(noise)
    return wide.to(mean.dtype)
