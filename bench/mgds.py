"""The mgds benchmark: what a cache module costs around an encoder that costs nothing, in CPU seconds.

`python bench/mgds.py` takes 10,000 samples of 250 kB; `--quick` is a smoke run. Where mgds can be imported its own
DiskCache runs beside ours on the same files; without it a stand-in drives ours, and mgds' figures are those that were
noted when this project began. Every step is a process of its own, and imports do not count.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

from bench.script import ROOT, facts, fill, folder, parser, tell
from bench.table import Cell, Column, Section

REAL = importlib.util.find_spec("mgds") is not None
STEPS = ("cold build", "warm start, first", "warm start", "one file added", "one file edited", "folder renamed")
NOTED: dict[str, dict[str, str]] = {
    "DiskCache": {"cold build": "8-14", "warm start": "1.0-1.3", "one file added": "IndexError"}
    | {"folder renamed": "all again", "item read, ms": "1.1-1.4"},
    "SmartDiskCache": {"cold build": "41", "warm start": "2.7-3.2", "one file added": "5.1"}
    | {"one file edited": "5", "folder renamed": "40", "item read, ms": "1.1-1.4"},
}
"""On two shared cores, 10,000 samples of 250 kB."""
_SETTLED = 2.5
"""Seconds after which a file's stamp is trusted."""


def main(arguments: list[str] | None = None) -> int:
    """Run every step, or one of them."""
    options = _parse(arguments)
    if options.step:
        print(json.dumps(_step(options)))
        return 0
    tell(facts(mgds="real" if REAL else "stand-in"))
    columns = [Column("step", ""), Column("precook", ".2f"), Column("wall", ".2f"), Column("encoded", ",.0f")]
    if REAL:
        columns.append(Column("DiskCache, measured", ".2f"))
    columns += [Column(f"{name}, noted", "") for name in NOTED]
    title = f"mgds: {options.samples:,} samples of {options.size // 1000} kB, CPU seconds"
    section = Section("mgds", title, columns)
    with folder(options.dir) as base:
        _write(base / "data", options.samples)
        theirs = {step: _run(base, step, options, theirs=True) for step in STEPS[:3] if REAL}
        ours = {step: _run(base, step, options) for step in STEPS[: options.steps]}
    for step, found in ours.items():
        row: list[Cell] = [step, found["cpu"], found["wall"], found["encoded"]]
        section.rows.append([*row, *_beside(step, theirs, "cpu")])
    last = list(ours.values())[-1]
    row = ["item read, ms", last["item"], last["item_wall"], None]
    section.rows.append([*row, *_beside("item read, ms", {"item read, ms": theirs.get("warm start", {})}, "item")])
    print(section)
    return 0


def _beside(step: str, theirs: dict[str, dict[str, Any]], what: str) -> list[Cell]:
    """What the others need for a step."""
    measured = [theirs.get(step, {}).get(what)] if REAL else []
    return [*measured, *(noted.get(step) for noted in NOTED.values())]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--samples", type=int, help="pictures (default: 10000)")
    asked.add_argument("--size", type=int, help="bytes of a cached sample (default: 250000)")
    asked.add_argument("--steps", type=int, default=len(STEPS), help="how many of the steps")
    asked.add_argument("--step", help=argparse.SUPPRESS)
    asked.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    full, quick = {"samples": 10_000, "size": 250_000}, {"samples": 200, "size": 10_000}
    return fill(asked.parse_args(arguments), full=full, quick=quick)


def _write(folder: Path, samples: int) -> None:
    folder.mkdir()
    old = time.time() - 3600
    for number in range(samples):
        path = folder / f"{number:06}.png"
        path.write_bytes(number.to_bytes(8, "little") * 16)
        os.utime(path, (old, old))
    time.sleep(_SETTLED)


def _run(base: Path, step: str, options: argparse.Namespace, *, theirs: bool = False) -> dict[str, Any]:
    """One step in a process of its own."""
    if step == "one file added":
        (base / "data" / "000000-a.png").write_bytes(b"added")
    if step == "one file edited":
        (base / "data" / "000005.png").write_bytes(b"edited")
    if step == "folder renamed":
        (base / "data").rename(base / "elsewhere")
    command = [sys.executable, __file__, "--step", step, "--dir", str(base), "--size", str(options.size)]
    command += ["--theirs"] if theirs else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _step(options: argparse.Namespace) -> dict[str, Any]:
    """Start an epoch, read a part of it, and say what that cost."""
    if not REAL:
        sys.path.insert(1, str(ROOT / "tests" / "support" / "mgds_stand_in"))
    from tests.support.mgds_pipelines import Theirs  # noqa: PLC0415 - the step's own imports

    base = Path(options.dir)
    folder = base / ("elsewhere" if options.step == "folder renamed" else "data")
    data, cache, encoder = _pipeline(base, folder, options, Theirs if options.theirs else None)
    cpu, wall = time.process_time(), time.perf_counter()
    data.start_next_epoch()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    length = cache.length()
    chosen = [at * 7919 % length for at in range(min(length, 4000))]
    item, item_wall = time.process_time(), time.perf_counter()
    for index in chosen:
        # A number of each page: what is mapped only costs when it is touched.
        cache.get_item(index, "latent_image")["latent_image"].view(-1).numpy()[::2048].max()
    item, item_wall = time.process_time() - item, time.perf_counter() - item_wall
    return {
        "cpu": cpu,
        "wall": wall,
        "encoded": len(encoder.calls),
        "item": 1000 * item / len(chosen),
        "item_wall": 1000 * item_wall / len(chosen),
    }


def _pipeline(base: Path, folder: Path, options: argparse.Namespace, theirs: Any) -> tuple[Any, Any, Any]:
    import torch  # noqa: PLC0415
    from tests.support import mgds_pipelines as parts  # noqa: PLC0415

    from precook.report import SILENT  # noqa: PLC0415

    values = torch.randn(options.size // 2 + 4096).half()

    class Encoder(parts.Module):
        """Reads its file, and gives a piece of what is there already."""

        def __init__(self) -> None:
            super().__init__("image_path", "latent_image")
            self.calls: list[int] = []

        def get_outputs(self) -> list[str]:
            return ["latent_image", "crop_resolution"]

        def get_item(self, variation: int, index: int, _: str | None = None) -> dict[str, Any]:
            content = Path(self.given(variation, index)).read_bytes()
            self.calls.append(index)
            at = content[0] * 8
            latent = values[at : at + options.size // 2].view(8, -1)
            return {"latent_image": latent, "crop_resolution": (64 * (1 + content[0] % 9), 512)}

    encoder = Encoder()
    names = {"split_names": ["latent_image"], "aggregate_names": ["crop_resolution", "image_path"]}
    group = {
        "variations_in_name": "concept.image_variations",
        "balancing_in_name": "concept.balancing",
        "balancing_strategy_in_name": "concept.balancing_strategy",
        "variations_group_in_name": parts.IMAGE_GROUP,
        "group_enabled_in_name": "concept.enabled",
    }
    if theirs is not None:
        cache = theirs(cache_dir=str(base / "theirs"), **names, **group)
    else:
        cache = parts.DiskCache(
            cache_dir=str(base / "ours"), **names, **group, source_path_in_name="image_path", report=SILENT
        )
    collect = parts.collect_pictures(but=())
    modules = [collect, encoder, cache, parts.OutputPipelineModule(names=["latent_image"])]
    state = parts.PipelineState(2)
    data = parts.MGDS(torch.device("cpu"), [parts.concept(folder, name="data")], {}, modules, batch_size=1, state=state)
    data.loading_pipeline.modules[2].started = True  # listing files is none of the cache's work
    collect.start(0)
    return data, cache, encoder


if __name__ == "__main__":
    sys.exit(main())
