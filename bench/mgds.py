"""The mgds benchmark: what a cache module costs around an encoder that costs nothing, in CPU seconds.

`make bench-mgds CLIENTS=folder` takes 10,000 samples of 250 kB and runs three caches on the same files, one after the
other: ours, mgds' own DiskCache and the SmartDiskCache of its pull request 49, both from checkouts in that folder by
the names `mgds` and `mgds-pr49`. Every step is a process of its own; imports and the listing of files do not count.
`--quick` is a smoke run; without checkouts it runs ours alone, around a stand-in.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

from bench.script import ROOT, facts, fill, folder, parser, tell
from bench.table import Cell, Column, Section
from precook.report import SILENT

STEPS = ("cold build", "first warm start", "warm start", "one file added", "one file edited", "folder renamed")
_SETTLED = 2.5
"""Seconds after which a file's stamp is trusted."""


@dataclass(frozen=True)
class System:
    """A cache module, and the checkout it is run from."""

    name: str
    checkout: str


SYSTEMS = (System("precook", "mgds"), System("DiskCache", "mgds"), System("SmartDiskCache", "mgds-pr49"))


def main(arguments: list[str] | None = None) -> int:
    """Run every step of every cache, or one of one."""
    options = _parse(arguments)
    if options.step:
        print(json.dumps(_step(options)))
        return 0
    systems = [system for system in SYSTEMS if options.clients and Path(options.clients, system.checkout).is_dir()]
    tell(facts(mgds="checkouts" if systems else "a stand-in, and no other caches: give --clients"))
    with folder(options.dir) as base:
        found = {system.name: _run_all(base, system, options) for system in systems or SYSTEMS[:1]}
    _print(found, f"mgds: {options.samples:,} samples of {options.size // 1000} kB")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--samples", type=int, help="pictures (default: 10000)")
    asked.add_argument("--size", type=int, help="bytes of a cached sample (default: 250000)")
    asked.add_argument("--steps", type=int, default=len(STEPS), help="how many of the steps")
    asked.add_argument("--clients", help="the folder with the checkouts")
    asked.add_argument("--step", help=argparse.SUPPRESS)
    asked.add_argument("--system", default="precook", help=argparse.SUPPRESS)
    full, quick = {"samples": 10_000, "size": 250_000}, {"samples": 200, "size": 10_000}
    return fill(asked.parse_args(arguments), full=full, quick=quick)


def _print(found: dict[str, dict[str, dict[str, Any]]], title: str) -> None:
    """The tables: what each step cost, and how often it encoded."""
    rows: list[tuple[str, str, str]] = [(step, step, "cpu") for step in STEPS]
    rows += [("start of epoch 2", "warm start", "second"), ("item read, ms", "warm start", "item")]
    columns = [Column("step", ""), *(Column(name, ".3f") for name in found)]
    cpu = Section("mgds", f"{title}, CPU seconds", columns)
    for label, step, what in rows:
        values: list[Cell] = [steps.get(step, {}).get(what) for steps in found.values()]
        cpu.rows.append([label, *values])
    encoded = Section(
        "encoded", "Samples that were encoded, or why not", [Column("step", ""), *(Column(name, "") for name in found)]
    )
    for step in next(iter(found.values())):
        encoded.rows.append(
            [step, *(str(steps[step].get("encoded", steps[step].get("error"))) for steps in found.values())]
        )
    print(cpu)
    print(encoded)


def _run_all(base: Path, system: System, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Every step of one cache, on files of its own."""
    place = base / system.name
    (place / "data").mkdir(parents=True)
    print(f"{system.name} …", file=sys.stderr, flush=True)
    old = time.time() - 3600
    for number in range(options.samples):
        path = place / "data" / f"{number:06}.png"
        path.write_bytes(number.to_bytes(8, "little") * 16)
        os.utime(path, (old, old))
    time.sleep(_SETTLED)
    found = {}
    for step in STEPS[: options.steps]:
        if step == "one file added":
            (place / "data" / "000000-a.png").write_bytes(b"added")
        if step == "one file edited":
            (place / "data" / "000005.png").write_bytes(b"edited")
        if step == "folder renamed":
            (place / "data").rename(place / "elsewhere")
        found[step] = _run(place, step, system, options)
    shutil.rmtree(place)
    return found


def _run(place: Path, step: str, system: System, options: argparse.Namespace) -> dict[str, Any]:
    """One step in a process of its own."""
    command = [sys.executable, __file__, "--step", step, "--system", system.name, "--dir", str(place)]
    command += ["--size", str(options.size)]
    checkout = Path(options.clients, system.checkout, "src") if options.clients else None
    mgds = checkout if checkout is not None and checkout.is_dir() else ROOT / "tests" / "support" / "mgds_stand_in"
    paths = [str(mgds.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _step(options: argparse.Namespace) -> dict[str, Any]:
    """Start an epoch, read a part of it, start the next one, and say what that cost."""
    base = Path(options.dir)
    folder = base / ("elsewhere" if options.step == "folder renamed" else "data")
    data, cache, encoder = _pipeline(base, folder, options)
    cpu = time.process_time()
    try:
        data.start_next_epoch()
    except Exception as error:  # noqa: BLE001 - a cache that cannot do the step: its row says so
        return {"error": type(error).__name__}
    cpu = time.process_time() - cpu
    encoded = len(encoder.calls)
    length = cache.length()
    chosen = [at * 7919 % length for at in range(min(length, 4000))]
    item = time.process_time()
    try:
        for index in chosen:
            # A number of each page: what is mapped only costs when it is touched.
            cache.get_item(index, "latent_image")["latent_image"].view(-1).numpy()[::2048].max()
    except Exception as error:  # noqa: BLE001 - as above
        return {"error": f"{type(error).__name__} at an item"}
    item = time.process_time() - item
    second = time.process_time()
    data.start_next_epoch()
    second = time.process_time() - second
    return {"cpu": cpu, "encoded": encoded, "item": 1000 * item / len(chosen), "second": second}


def _pipeline(base: Path, folder: Path, options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """A list of files, an encoder and a cache; what mgds has of these is imported here, after the step's own begin."""
    import torch  # noqa: PLC0415
    from mgds.MGDS import MGDS  # noqa: PLC0415
    from mgds.OutputPipelineModule import OutputPipelineModule  # noqa: PLC0415
    from mgds.PipelineModule import PipelineModule, PipelineState  # noqa: PLC0415
    from mgds.pipelineModules.CollectPaths import CollectPaths  # noqa: PLC0415
    from mgds.pipelineModuleTypes.RandomAccessPipelineModule import RandomAccessPipelineModule  # noqa: PLC0415

    values = torch.randn(options.size // 2 + 4096).half()

    class Encoder(PipelineModule, RandomAccessPipelineModule):
        """Reads its file, and gives a piece of what is there already."""

        def __init__(self) -> None:
            super().__init__()
            self.path_in_name = "image_path"
            self.calls: list[int] = []

        def length(self) -> int:
            return int(self._get_previous_length(self.path_in_name))

        def get_inputs(self) -> list[str]:
            return [self.path_in_name]

        def get_outputs(self) -> list[str]:
            return ["latent_image", "crop_resolution"]

        def get_item(self, variation: int, index: int, _: str | None = None) -> dict[str, Any]:
            content = Path(self._get_previous_item(variation, self.path_in_name, index)).read_bytes()
            self.calls.append(index)
            at = content[0] * 8
            latent = values[at : at + options.size // 2].view(8, -1)
            return {"latent_image": latent, "crop_resolution": (64 * (1 + content[0] % 9), 512)}

    encoder = Encoder()
    cache = _cache(base, options.system)
    collect = CollectPaths(
        concept_in_name="concept",
        path_in_name="path",
        include_subdirectories_in_name="concept.include_subdirectories",
        enabled_in_name="enabled",
        path_out_name="image_path",
        concept_out_name="concept",
        extensions=[".png"],
        include_postfix=None,
        exclude_postfix=[],
    )
    concept = {
        "name": "data",
        "path": str(folder),
        "seed": 7,
        "enabled": True,
        "include_subdirectories": False,
        "image_variations": 1,
        "balancing": 1.0,
        "balancing_strategy": "REPEATS",
        "image": {},
    }
    modules = [collect, encoder, cache, OutputPipelineModule(names=["latent_image"])]
    data = MGDS(torch.device("cpu"), [concept], {}, modules, batch_size=1, state=PipelineState(2))
    data.loading_pipeline.modules[2].started = True  # listing files is none of the cache's work
    collect.start(0)
    return data, cache, encoder


def _cache(base: Path, system: str) -> Any:
    """The cache that is measured."""
    arguments: dict[str, Any] = {
        "cache_dir": str(base / "cache"),
        "split_names": ["latent_image"],
        "aggregate_names": ["crop_resolution", "image_path"],
        "variations_in_name": "concept.image_variations",
        "balancing_in_name": "concept.balancing",
        "balancing_strategy_in_name": "concept.balancing_strategy",
        "variations_group_in_name": [
            "concept.path", "concept.seed", "concept.include_subdirectories", "concept.image",
        ],
        "group_enabled_in_name": "concept.enabled",
    }  # fmt: skip
    if system == "DiskCache":
        return importlib.import_module("mgds.pipelineModules.DiskCache").DiskCache(**arguments)
    arguments["source_path_in_name"] = "image_path"
    if system == "SmartDiskCache":
        smart = importlib.import_module("mgds.pipelineModules.SmartDiskCache").SmartDiskCache
        return smart(**arguments, modeltype="bench")
    return importlib.import_module("precook.integrations.mgds").DiskCache(**arguments, report=SILENT)


if __name__ == "__main__":
    sys.exit(main())
