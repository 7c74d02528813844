"""The posterior: latents drawn anew each epoch from the mean and variance that a VAE gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import FeedError
from precook.feed.content import EntryColumn
from precook.sources.draws import Purpose, draw
from precook.store.dtypes import load_torch
from precook.store.leaves import Library
from precook.values import Bytes, Numbers


def has_moments(column: EntryColumn) -> bool:
    """Whether an encoder kept mean and logarithm of the variance instead of latents."""
    return column.kind in ("diffusers-vae", "diffusers-video-vae") and column.settings.get("posterior") == "moments"


def draw_latents(moments: Any, images: Bytes, draws: Numbers, seed: int, library: Library) -> Any:
    """Latents of a batch; each item's noise follows from its picture, its turn and the seed, whatever the batch."""
    given: dict[str, Any] = moments if isinstance(moments, dict) else {}
    means: Any = given.get("mean")
    logvars: Any = given.get("logvar")
    if _shapes(means) is None or _shapes(means) != _shapes(logvars):
        raise FeedError("entries that should hold mean and variance do not", hint="clear and build this encoder again")
    noises = []
    for image, number, mean in zip(images, draws.tolist(), means, strict=True):
        bits = draw(image[np.newaxis], Purpose.NOISE, number=number, seed=seed)
        generator = np.random.Generator(np.random.Philox(int(bits[0])))
        noises.append(generator.standard_normal(tuple(mean.shape), np.float32))
    if isinstance(means, list):
        return [_add_noise(*parts, library) for parts in zip(means, logvars, noises, strict=True)]
    return _add_noise(means, logvars, np.stack(noises), library)


def _shapes(parts: Any) -> list[tuple[int, ...]] | None:
    """The shape of each item's tensor; None where they are no tensors."""
    if not isinstance(parts, list) and not hasattr(parts, "shape"):
        return None
    return [tuple(part.shape) for part in parts] if all(hasattr(part, "shape") for part in parts) else None


def _add_noise(mean: Any, logvar: Any, noise: npt.NDArray[np.float32], library: Library) -> Any:
    if library == "numpy":
        wide = mean.astype(np.float32) + np.exp(logvar.astype(np.float32) / 2) * noise
        return wide.astype(mean.dtype)
    wide = mean.float() + (logvar.float() / 2).exp() * load_torch().from_numpy(noise)
    return wide.to(mean.dtype)
