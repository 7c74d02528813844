"""Equal to live: the losses of LoRA training, fed from a store and encoded live, step by step.

The loops are those of diffusers' example scripts, in `bench/loops.py`: SD 1.5, SDXL, FLUX and Qwen-Image on tiny random
models, in float32. Once their batches come from a feed, once from the script's own transforms, VAE and text encoders,
with the same pictures and captions in the same order and the same seeds. The scripts draw latents from the VAE's
posterior in each step; both sides take the noise for that from the feed, which draws it by picture, epoch and seed.

A loss that would not notice other captions, pictures or sizes says nothing, so the first step is taken again with those
of other samples, one of them at a time: that has to show.

`python bench/equal.py` takes about a minute, `--quick` is a smoke run. Exit code 1: some losses differ.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

import diffusers
import numpy as np
import torch
import transformers
from PIL import Image

import precook
from bench.loops import LOOPS, Example, Loop, train
from bench.script import facts, fill, folder, parser, some_of, tell, versions
from bench.table import Column, Section
from precook.feed.posterior import draw_latents

_NEAR = 1e-6
"""By how much a loss may differ, as a part of it."""
_SEEN = 10 * _NEAR
"""By how much at least it differs with what belongs to others."""
_OTHERS = ("captions", "pictures", "sizes")
_SIDE = 64
_BATCH = 2
_SEED = 0
_SIZES = ((64, 64), (96, 64), (64, 97), (131, 88), (77, 101), (200, 123), (90, 90))
"""Of the pictures, as many as there are: square, lying, standing, odd, and a last batch that is not full."""
_WORDS = ("a", "photo", "of", "the", "small", "red", "old", "house", "cat", "river", "with", "light", "under", "stone")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one script's loop."""

    loop: Loop
    fed: list[float]
    live: list[float]
    others: dict[str, float]
    """How much the first loss changes, as a part of it, with captions, pictures or sizes of other samples."""

    @property
    def difference(self) -> float:
        """The largest of any step, as a part of the loss."""
        return float(np.max([_relative(*pair) for pair in zip(self.fed, self.live, strict=True)]))  # NaN stays

    @property
    def verdict(self) -> str:
        """Whether the losses are equal, and whether that says something."""
        if not self.difference <= _NEAR:  # NaN is not equal either
            return "differs"
        return "equal" if min(self.others.values()) >= _SEEN else "blind"


class Contest:
    """One script: its models, pictures and captions, and a build of them."""

    def __init__(self, base: Path, loop: type[Loop], steps: int) -> None:
        self.base = base
        self.steps = steps
        from tests.support.pipelines import tiny_pipeline  # noqa: PLC0415 - it asks pytest for the libraries

        tiny_pipeline(loop.family, base / "model")
        self.loop = loop(base / "model", _SIDE)
        self.paths = _draw(base / "data")
        self.project = precook.Project(
            base=base,
            dataset="bench",
            concepts=[{"name": "bench", "path": "data"}],
            image={
                "resolutions": [f"{_SIDE}x{_SIDE}"],
                "resampling": self.loop.resampling.name.lower(),
                **self.loop.image,
            },
            encoders={
                "latent": {
                    "uses": "diffusers-vae",
                    "model": "model",
                    "subfolder": "vae",
                    "posterior": "moments",
                    "scaled": True,
                },
                "prompt": {"uses": "diffusers-prompt", "model": "model", **self.loop.prompt},
            },
        )

    def run(self) -> Outcome:
        """Train both ways."""
        report = self.project.build()
        if report.failed:
            raise SystemExit(f"failed: {report.failed[0]}")
        order: list[tuple[int, list[str]]] = []
        fed = train(self.loop, self._fed(order))
        live = train(self.loop, (self._live(*shown) for shown in order))
        epoch, captions = order[0]
        known = list(self.paths)
        here, other = (self._live(epoch, [known[known.index(line) - back] for line in captions]) for back in (0, 1))
        changes = {"captions": {"prompt": other.prompt}, "pictures": {"latents": other.latents}}
        if other.time_ids is not None:
            changes["sizes"] = {"time_ids": other.time_ids}
        others = {
            name: _relative(train(self.loop, [replace(here, **change)])[0], live[0]) for name, change in changes.items()
        }
        return Outcome(self.loop, fed, live, others)

    def _fed(self, order: list[tuple[int, list[str]]]) -> Iterator[Example]:
        """Batches of the feed; what they show is noted in `order`."""
        with self.project.feed(batch_size=_BATCH, seed=_SEED) as feed:
            epoch = 0
            while True:
                for batch in feed.epoch(epoch):
                    if len(order) == self.steps:
                        return
                    order.append((epoch, batch["caption"]))
                    yield self.loop.take(batch)
                epoch += 1

    @torch.no_grad()
    def _live(self, epoch: int, captions: list[str]) -> Example:
        """The samples that have these captions, as the script encodes them."""
        paths = [self.paths[caption] for caption in captions]
        images = np.stack([np.frombuffer(precook.digest(path).bytes, np.uint8) for path in paths])

        def sample(distribution: Any) -> Any:
            moments = {"mean": distribution.mean, "logvar": distribution.logvar}
            return draw_latents(moments, images, np.full(len(paths), epoch), _SEED, "torch")

        return self.loop.encode(paths, captions, sample)


def main(arguments: list[str] | None = None) -> int:
    """Run the loops that were asked for."""
    options = _parse(arguments)
    warnings.simplefilter("ignore", FutureWarning)  # of settings that tiny schedulers leave out
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    tell(facts(versions=versions("torch", "diffusers", "transformers", "peft", "pillow")))
    columns = [
        Column("family"),
        Column("steps"),
        Column("first loss", ".6f"),
        Column("last loss", ".6f"),
        Column("largest difference", ".1e"),
        *(Column(f"other {name}", ".1e") for name in _OTHERS),
        Column("verdict"),
    ]
    section = Section("equal", "Losses of LoRA training, fed from precook against encoded live", columns)
    outcomes = []
    with folder(options.dir) as made:
        for loop in LOOPS:
            if loop.name in options.only:
                (made / loop.__name__).mkdir()
                outcomes.append(Contest(made / loop.__name__, loop, options.steps).run())
    for one in outcomes:
        row = [one.loop.name, len(one.fed), one.live[0], one.live[-1], one.difference]
        section.rows.append([*row, *(one.others.get(name) for name in _OTHERS), one.verdict])
    section.notes += [
        (
            f"differences are parts of the live loss; equal: at most {_NEAR:.0e} in every step, and at least "
            f"{_SEEN:.0e} in the first one with captions, pictures or sizes of other samples."
        ),
        "loops: " + ", ".join(f"{one.loop.name} as in {one.loop.script}" for one in outcomes) + ".",
    ]
    print(section)
    return 0 if all(one.verdict == "equal" for one in outcomes) else 1


def _draw(folder: Path) -> dict[str, Path]:
    """Pictures of different sizes, each with a caption of its own; where each lies, by its caption."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = {}
    for number, size in enumerate(_SIZES):
        small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8))
        path = folder / f"{number}.png"
        small.resize(size, Image.Resampling.BICUBIC).save(path)
        caption = " ".join(rng.choice(_WORDS, 3 + 4 * number))
        path.with_suffix(".txt").write_text(caption, "utf-8")
        paths[caption] = path
    return paths


def _relative(found: float, wanted: float) -> float:
    return abs(found - wanted) / abs(wanted)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--only", **some_of([loop.name for loop in LOOPS]))
    asked.add_argument("--steps", type=int, help="of training (default: 20)")
    return fill(asked.parse_args(arguments), full={"steps": 20}, quick={"steps": 3})


if __name__ == "__main__":
    sys.exit(main())
