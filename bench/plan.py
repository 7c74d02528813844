"""The plan benchmark: what it costs to know what is missing, beside a bare walk over the same files.

`python bench/plan.py` takes 100,000 pictures with captions, `--samples 1000000` shows the growth, `--quick` is a smoke
run. Every step is measured next to `os.scandir` + `stat` over the same folder in the same run.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    import script  # noqa: F401 - finds the rest

import numpy as np
from PIL import Image

import precook
from bench.measure import median, median_ratio, resident, seconds
from bench.script import facts, fill, folder, parser, tell
from bench.table import Column, Goal, Section
from precook.store.store import Store

_SETTLED = 2.5
"""Seconds after which a file's stamp is trusted."""
_KINDS = 64


class Words:
    """A text encoder that costs nothing: plans only ask who it is."""

    input = "text"

    def identity(self) -> object:
        return {"version": 1}

    def load(self, device: str) -> None:
        raise NotImplementedError

    def encode(self, batch: list[precook.Item]) -> list[Any]:
        raise NotImplementedError

    def unload(self) -> None:
        raise NotImplementedError


def main(arguments: list[str] | None = None) -> int:
    """Run all steps."""
    options = _parse(arguments)
    gc.freeze()
    tell(facts())
    with folder(options.dir) as made:
        print(Steps(made, options.samples, options.repeats).run())
    return 0


class Steps:
    """The steps, in an order in which each finds what it needs."""

    def __init__(self, base: Path, samples: int, repeats: int) -> None:
        self.base = base
        self.samples = samples
        self.repeats = repeats
        self.data = "data"
        self.section = Section(
            "plan",
            f"Plan of {samples:,} pictures with captions ({2 * samples:,} files in one folder)",
            [
                Column("step"),
                Column("plan, s", ".2f"),
                Column("bare walk, s", ".2f"),
                Column("ratio", ".2f"),
                Column("files opened"),
                Column("missing"),
            ],
        )

    def run(self) -> Section:
        """Measure everything; the table."""
        section = self.section
        generated = seconds(lambda: generate(self.base / self.data, self.samples))
        _settle()
        self.step("first plan, nothing known", once=True)
        built = seconds(self.build)
        with self.project() as project:
            project.plan()
        warm = self.step("nothing changed")
        edited = self.step("one picture edited", before=lambda at: _edit(self.path(at), at), after=self.build)
        self.step("one caption edited", before=self.edit_caption, after=self.build)
        added = self.step("one picture added", before=self.add, after=self.build)
        _settle()
        self.step("root renamed", before=self.rename)
        self.step("everything touched", once=True, before=self.touch)
        _settle()
        section.goals.append(Goal("warm plan / bare walk", warm, 1.5, "at most"))
        section.notes += [
            f"Plan after one edit / nothing changed: {edited / warm:.2f}; after one addition: {added / warm:.2f}.",
            f"Generating took {generated:.1f} s, storing an entry of 32 bytes for each miss {built:.1f} s.",
            f"`precook plan` as a command, from start to end: {self.command():.2f} s.",
            f"Memory of this process: {resident().own / 2**20:.0f} MiB.",
        ]
        return section

    def step(
        self,
        name: str,
        *,
        before: Callable[[int], object] | None = None,
        after: Callable[[], object] | None = None,
        once: bool = False,
    ) -> float:
        """Measure a plan, next to a bare walk each time; the ratio."""
        plans, walks = [], []
        missing = opened = 0
        for at in range(1 if once else self.repeats):
            if before is not None:
                _settle()  # what the last round edited is known by its stamp now
                before(at)
            gc.collect()
            walks.append(seconds(lambda: walk(self.base / self.data)))
            with Opened(self.base / self.data) as watch:
                start = time.perf_counter()
                with self.project() as project:
                    missing = len(project.plan().missing)
                plans.append(time.perf_counter() - start)
            opened = watch.count
            if after is not None:
                after()
        ratio = median_ratio(plans, walks)
        self.section.rows.append([name, median(plans), median(walks), ratio, opened, missing])
        return ratio

    def project(self) -> precook.Project:
        """The project, as if opened for the first time."""
        return precook.Project(
            base=self.base,
            dataset="bench",
            concepts=[{"name": "bench", "path": self.data}],
            image={"resolutions": [64], "step": 8},
            encoders={"pixels": {"uses": "image"}, "words": Words()},
        )

    def build(self) -> None:
        """Store something for every miss."""
        with self.project() as project:
            plan = project.plan()
            _fill(project.store, plan)

    def path(self, number: int) -> Path:
        """A picture."""
        return self.base / self.data / f"picture_{number:07d}.jpg"

    def edit_caption(self, at: int) -> None:
        """Edit one caption."""
        self.path(at).with_suffix(".txt").write_text(f"edited for the {at}th time\n", "utf-8")

    def add(self, at: int) -> None:
        """Add one picture with its caption."""
        _edit(self.path(self.samples + at), self.samples + at)
        self.path(self.samples + at).with_suffix(".txt").write_text("one more\n", "utf-8")

    def rename(self, at: int) -> None:
        """Give the folder another name."""
        name = f"data-{at}"
        (self.base / self.data).rename(self.base / name)
        self.data = name

    def touch(self, _: int) -> None:
        """Give every file another time."""
        for entry in os.scandir(self.base / self.data):
            os.utime(entry.path)

    def command(self) -> float:
        """The command line, from start to end."""
        config = self.base / "precook.yaml"
        config.write_text(
            f"dataset: bench\nconcepts:\n  - {{name: bench, path: {self.data}}}\n"
            "image: {resolutions: [64], step: 8}\n"
            "encoders: {pixels: {uses: image}, words: {uses: 'bench.plan:Words'}}\n",
            "utf-8",
        )
        root = Path(__file__).resolve().parents[1]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
        command = [sys.executable, "-m", "precook", "plan", "--config", str(config)]

        def run() -> None:
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)

        run()
        return median(seconds(run) for _ in range(self.repeats))


class Opened:
    """Counts the files that this process opens in a folder."""

    _watching: Opened | None = None
    _hooked = False

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}/"
        self.count = 0

    def __enter__(self) -> Opened:
        if not Opened._hooked:
            sys.addaudithook(_hook)
            Opened._hooked = True
        Opened._watching = self
        return self

    def __exit__(self, *_: object) -> None:
        Opened._watching = None

    def see(self, path: object) -> None:
        """A file is opened."""
        if isinstance(path, str) and path.startswith(self._folder) and path != self._folder:
            self.count += 1


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and Opened._watching is not None:
        Opened._watching.see(arguments[0])


def walk(folder: Path) -> int:
    """The floor: list a folder and ask for every file's stamp."""
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat()
            count += 1
    return count


def generate(folder: Path, samples: int) -> None:
    """Real small JPEGs of a few shapes, each with bytes of its own, and captions."""
    folder.mkdir()
    for number in range(samples):
        _edit(folder / f"picture_{number:07d}.jpg", number)
        with open(folder / f"picture_{number:07d}.txt", "w", encoding="utf-8") as file:  # noqa: PTH123 - a million of them
            file.write(f"picture number {number}\n")


_PICTURES: list[bytes] = []


def _edit(path: Path, number: int) -> None:
    """Write a JPEG whose comment makes it unlike any other."""
    if not _PICTURES:
        rng = np.random.default_rng(0)
        for kind in range(_KINDS):
            width, height = ((64, 64), (96, 64), (64, 96), (128, 64))[kind % 4]
            stream = io.BytesIO()
            small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
            small.resize((width, height)).save(stream, "JPEG", quality=50)
            _PICTURES.append(stream.getvalue())
    content = _PICTURES[number % _KINDS]
    note = f"{number} {time.time_ns()}".encode()
    comment = b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(content[:2] + comment + content[2:])


def _fill(store: Store, plan: precook.Plan) -> None:
    tree = {"x": np.zeros(8, np.float32)}
    with store.writer() as writer:
        for entry in plan.missing:
            writer.put(entry.key, tree, recipe=plan.encoders[entry.encoder].wants.encoding.recipe)


def _settle() -> None:
    """Let files grow old enough to be known by their stamps."""
    time.sleep(_SETTLED)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--samples", type=int, help="pictures (default: 100000)")
    asked.add_argument("--repeats", type=int, default=5, help="of which medians are taken (default: 5)")
    return fill(asked.parse_args(arguments), full={"samples": 100_000}, quick={"samples": 200})


if __name__ == "__main__":
    sys.exit(main())
