"""Latents of a VAE of diffusers.

Any VAE that diffusers can load and that takes pictures: the class that the folder's config.json names.

`posterior: sample` draws its noise on the CPU, in the model's dtype, from a generator that is seeded with the picture
as it was cut: the first eight bytes, little-endian, of BLAKE3 in the context `precook noise 1` over the height and the
width (four bytes each, little-endian) and the RGB bytes row by row. So the noise is the same in any batch and for any
device, and each picture, crop and size has its own. Of a clip it is the context `precook clip noise 1`, over the number
of frames, the height, the width and the RGB bytes frame by frame.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precook.config.encoders import VaeSection
from precook.encode.encoder import BaseEncoder, Cost, Item
from precook.encode.torch_tools import DeviceRun, library, loading, send, torch_dtype
from precook.encode.vae_model import Posterior, Scale, Vae, check_scaling
from precook.errors import EncodeError
from precook.identity.digest import derived_digest
from precook.plan.wanted import Input
from precook.store.tree import Tree
from precook.values import Pixels

_NOISE_CONTEXT = "precook noise 1"
_CLIP_NOISE_CONTEXT = "precook clip noise 1"


class VaeEncoder(BaseEncoder):
    """A tensor C x h x w for each picture, or with `posterior: moments` a dict of two, `mean` and `logvar`.

    Tensors are on the CPU, in the settings' dtype, and each has its storage for itself. `scaled` applies the model's
    shift and scaling to whatever is kept: moments are those of the scaled latents.
    """

    input: Input = "image"
    gives_away = True
    can_stage = True
    _clips = False
    """Whether it takes clips and not pictures."""

    def __init__(self, section: VaeSection, place: Path, config: Path | None = None) -> None:
        self._section = section
        self._place = place
        self._config = config
        """Where the config of a model that is one file lies."""
        self._vae: Vae | None = None
        self._scale: Scale | None = None

    def load(self, device: str) -> None:
        """Load the model and try it with a small picture; whatever the settings ask and it cannot do is refused."""
        self.unload()
        section = self._section
        vae = Vae.load(section, self._place, self._config, device, clips=self._clips)
        posterior = vae.probe()
        if section.posterior != "mean" and posterior.logvar is None:
            hint = "set posterior to mean"
            raise EncodeError(f"{vae.name} has no distribution, so no posterior: {section.posterior}", hint=hint)
        if section.scaled:
            check_scaling(vae.name, vae.model.config, self._place)
            with loading("VAE", self._place):
                self._scale = Scale.of(vae.model, posterior.mean)
        self._vae = vae

    @property
    def can_compile(self) -> bool:  # type: ignore[override]
        """Whether its encoder has blocks that can be compiled."""
        return self._vae is not None and self._vae.compiled.possible

    @property
    def compiled(self) -> bool:  # type: ignore[override]
        """Whether they run on compiled code."""
        return self._vae is not None and self._vae.compiled.on

    @property
    def most_work(self) -> int | None:  # type: ignore[override]
        """Pixels up to which 32 bits number the elements of every tensor inside."""
        return None if self._vae is None else self._vae.most_pixels

    def compile(self, batch: Sequence[Item] = ()) -> None:
        """Compile the blocks of the encoder."""
        if self._vae is None:
            raise EncodeError("this VAE is not loaded", hint="call load before compile")
        height, width = next((item.image.shape[:2] for item in batch if item.image is not None), (0, 0))
        self._vae.compile((height, width) if height else None)

    def encode(self, batch: list[Item]) -> list[Tree]:
        """A tree for each item; all pictures of a batch have the same size."""
        if not batch and self._vae is not None:
            return []
        staged = self.stage(batch)
        staged.launch()
        return [_own(tree) for tree in staged.land()]

    def stage(self, batch: list[Item]) -> StagedPictures:
        """A batch of pictures as the model takes it, on its device."""
        if self._vae is None:
            raise EncodeError("this VAE is not loaded", hint="call load before encode")
        return StagedPictures(self._section, self._vae, self._scale, self._pixels(batch))

    def _pixels(self, batch: list[Item]) -> list[Pixels]:
        """The pictures of a batch, each H x W x 3."""
        return check_pixels([item.image for item in batch], "pictures", "(height, width, 3)")

    def unload(self) -> None:
        """Free the model and the memory of its device."""
        if self._vae is None:
            return
        on_cuda = self._vae.device.startswith("cuda")
        self._vae = self._scale = None
        gc.collect()  # an error caught meanwhile may hold frames, and they the model or its activations
        if on_cuda:
            library("torch").cuda.empty_cache()


class StagedPictures:
    """A batch of pictures, or of clips, on its way through a VAE; the trees it gives share the batch's memory."""

    def __init__(self, section: VaeSection, vae: Vae, scale: Scale | None, pictures: list[Pixels]) -> None:
        *frames, height, width, _ = pictures[0].shape
        vae.check_size(height, width)
        for count in frames:
            vae.check_frames(count)
        self._section = section
        self._vae = vae
        self._scale = scale
        # Bytes go over the bus, a quarter of what floats would be.
        self._pixels = send(pictures, vae.device)
        self._seeds = [noise_seed(picture) for picture in pictures] if section.posterior == "sample" else []
        self._names: list[str] = []
        self._run: DeviceRun | None = None
        self.cost: Cost | None = None
        self.not_finite: frozenset[int] | None = None

    def launch(self) -> None:
        """Begin to encode."""
        with library("torch").inference_mode():
            run = DeviceRun(self._vae.device)
            results = self._results(self._vae.posterior(self._pixels))
            self._pixels = None
            self._names = list(results)
            run.ordered(list(results.values()), torch_dtype(self._section.dtype), [1] * len(results))
            self._run = run

    def land(self) -> list[Tree]:
        """A tree for each picture."""
        assert self._run is not None, "launched before"
        rows = zip(*self._run.fetch(), strict=True)
        self.cost = self._run.cost
        if self._run.finite is not None:
            self.not_finite = frozenset(np.flatnonzero(~np.logical_and.reduce(self._run.finite)).tolist())
        if self._section.posterior != "moments":
            return [latent for (latent,) in rows]
        return [dict(zip(self._names, row, strict=True)) for row in rows]

    def _results(self, posterior: Posterior) -> dict[str, Any]:
        """What is kept of a batch, one row for each picture."""
        results = {"latent": posterior.mean}
        if self._section.posterior == "sample":
            results = {"latent": posterior.draw(self._seeds)}
        elif self._section.posterior == "moments":
            results = {"mean": posterior.mean, "logvar": posterior.logvar}
        if self._scale is not None:
            results = {name: self._scale.apply(name, result) for name, result in results.items()}
        return results


def check_pixels(pixels: Sequence[Pixels | None], what: str, form: str) -> list[Pixels]:
    """What a batch is to be made of, all of one shape such as `form`."""
    found = [one for one in pixels if one is not None]
    shapes = sorted({one.shape for one in found})
    right = len(found) == len(pixels) and all(one.dtype == np.uint8 for one in found)
    if not right or len(shapes) != 1 or len(shapes[0]) != form.count(",") + 1 or shapes[0][-1] != 3:  # noqa: PLR2004 - RGB
        hint = f"give each batch {what} of one size"
        raise EncodeError(f"a batch is {what} of uint8 and one shape {form}, not {shapes}", hint=hint)
    return found


def noise_seed(pixels: Pixels) -> int:
    """What decides the noise of a picture or a clip, as the top of this module says it."""
    *sides, _ = pixels.shape
    content = struct.pack(f"<{len(sides)}I", *sides) + pixels.tobytes()
    context = _NOISE_CONTEXT if len(sides) == 2 else _CLIP_NOISE_CONTEXT  # noqa: PLR2004 - a picture
    return int.from_bytes(derived_digest(context, content)[:8], "little")


def _own(tree: Tree) -> Tree:
    """Copied outside of inference mode, so that one can train with it as it is, and without the rest of its batch."""
    if isinstance(tree, dict):
        return {name: _own(tensor) for name, tensor in tree.items()}
    return tree.clone(memory_format=library("torch").contiguous_format)
