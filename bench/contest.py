"""A contest: builds of one encoder beside the best loop by hand over the same inputs, in turn.

Models are loaded before the clock starts, and every way has run over a part of the inputs before. Each build has a
store of its own, so that none remembers another.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._inductor.utils import fresh_cache

import precook
from bench.by_hand import Loop, synchronise
from bench.measure import median, median_ratio, settle
from bench.table import Column, Goal, Section
from bench.waits import Waits
from precook.encode.registry import EncoderSpec
from precook.sources.geometry import TARGET

HAND = "batched by hand, eager"
TITLES = {
    "off": "precook, compile: off",
    "on": "precook, compile: on, compiled before",
    "auto": "precook, compile: auto",
}
_CHUNK = 64 << 20
PART = 4
"""Every so many-th sample is in the part that is built once for nothing, and that loops try batch sizes on."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a contest is run."""

    device: str
    runs: int
    """Of which medians are taken."""
    limit: float
    """Seconds after which no further run begins."""
    waits: bool
    """Whether to look at the threads of the builds, in runs of their own."""
    quick: bool


@dataclass(frozen=True, slots=True)
class Built:
    """What a build did."""

    count: int
    seconds: float
    computed: float
    """Seconds of all threads: on a shared machine that says more than the time that passed."""
    nbytes: int


class Contest:
    """One set of inputs: the best loop by hand and builds of the same files, in turn."""

    unit = ""
    section: dict[str, Any]
    """The encoder, as a config has it."""
    image: dict[str, Any]
    sizes: tuple[int, ...]
    """Batch sizes that the loop by hand may choose from."""
    dtype = "bfloat16"

    def __init__(self, base: Path, rules: Rules, goals: Mapping[str, float]) -> None:
        self.base = base
        self.rules = rules
        self.goals = goals
        """What each setting of `compile` has to reach, in rates of the loop by hand."""
        self.end = time.perf_counter() + rules.limit

    def title(self) -> str:
        """What is measured."""
        raise NotImplementedError

    def data(self) -> Path:
        """The folder of samples."""
        raise NotImplementedError

    def loop(self) -> Loop:
        """The loop by hand."""
        raise NotImplementedError

    def run(self) -> Iterator[Section]:
        """Measure all ways in turn, after a look at the threads of the builds."""
        loop = self.loop()
        loop.settle_size(self.sizes[:1] if self.rules.quick else self.sizes)
        seconds: dict[str, list[float]] = {way: [] for way in (HAND, *self.goals)}
        busy: dict[str, list[float]] = {way: [] for way in seconds}
        computed: dict[str, list[float]] = {way: [] for way in seconds}
        compiled = 0
        count = nbytes = 0
        with ExitStack() as stack:
            kept = {way: stack.enter_context(self.ready(way)) for way in self.goals if way != "auto"}
            looks = [self._look(encoder, way) for way, encoder in kept.items()] if self.rules.waits else []
            for _ in range(self.rules.runs):
                settle(self.base)
                start = time.process_time()
                with Utilisation(busy[HAND]):
                    seconds[HAND].append(loop.run())
                computed[HAND].append(time.process_time() - start)
                for way in self.goals:
                    with ExitStack() as once:
                        encoder = kept[way] if way in kept else once.enter_context(self.ready(way))
                        with Utilisation(busy[way]):
                            built = self.build(encoder, way)
                        compiled += way == "auto" and encoder.compiled
                    count, nbytes = built.count, built.nbytes
                    seconds[way].append(built.seconds)
                    computed[way].append(built.computed)
                if time.perf_counter() > self.end:
                    break
            section = self.table(count, seconds, batch=loop.size)
            if self.rules.device == "cpu":
                _add(section, Column("CPU s", ".2f"), computed)
            elif busy[HAND]:
                _add(section, Column("GPU busy, %"), busy)
            if "auto" in self.goals:
                runs = len(seconds["auto"])
                section.notes.append(f"compile: auto compiled in {compiled} of {runs} runs; that is on the clock.")
            section.notes.append(
                f"the entries are {nbytes / 1e9:.2f} GB; writing as many bytes in a row and syncing them, and nothing "
                f"else, takes {_write_alone(self.base / 'raw', nbytes):.2f} s here."
            )
            if "on" in kept and not kept["on"].compiled:
                section.notes.append("compile: on ran eager code: this model could not be compiled.")
            yield section
            yield from looks

    def _look(self, encoder: Any, way: str) -> Section:
        """What threads do in a build of its own, which is not measured."""
        busy: list[float] = []
        waits = Waits()
        with Utilisation(busy):
            self.build(encoder, way, waits=waits)
        title = f"Where threads wait: {self.title()}, {TITLES[way]}"
        return waits.section(title, device=median(busy) if busy else None)

    def table(self, count: int, seconds: Mapping[str, list[float]], *, batch: int) -> Section:
        """What was measured, and what it was to be."""
        columns = [
            Column("way"),
            Column(f"{self.unit}/s", ",.1f"),
            Column("seconds", ".2f"),
            Column("of by hand", ".2f"),
        ]
        section = Section("gpu", self.title(), columns)
        runs = len(seconds[HAND])
        for way, taken in seconds.items():
            ratio = median_ratio(seconds[HAND], taken)
            section.rows.append([TITLES.get(way, way), count / median(taken), median(taken), ratio])
            if way in self.goals:
                section.goals.append(Goal(f"{TITLES[way]} / {HAND}", ratio, self.goals[way]))
        section.notes.append(
            f"medians of {runs} {'runs' if runs > 1 else 'run'} in turn; the loop by hand takes {batch} at a time."
        )
        section.notes += [
            f"{TITLES.get(way, way)}: {', '.join(f'{one:.2f}' for one in taken)} s" for way, taken in seconds.items()
        ]
        return section

    @contextmanager
    def ready(self, way: str) -> Iterator[Any]:
        """An encoder that is loaded, and has built a part of the samples: as the loop by hand has tried its sizes.

        For `auto` it is not compiled, and torch remembers nothing of what was compiled before.
        """
        with ExitStack() as stack:
            if way == "auto":
                torch._dynamo.reset()
                stack.enter_context(fresh_cache())
            data = self._part()
            setting = "off" if way == "auto" else way
            with self.project(data, setting) as project:
                ((_, spec),) = project.plan().specs.items()
                encoder: Any = spec.make()
            encoder.load(self.rules.device)
            unload = encoder.unload
            encoder.load = encoder.unload = lambda *_: None
            try:
                self.build(encoder, setting, data)
                yield encoder
            finally:
                unload()

    def build(self, encoder: Any, setting: str, data: Path | None = None, *, waits: Waits | None = None) -> Built:
        """A build into a store of its own, from the first claim to the last durable entry."""
        with self.project(data or self.data(), setting) as project:
            plan = project.plan()
            settle(self.base)
            gc.collect()
            synchronise(self.rules.device)
            start = time.process_time()
            with _made_by(encoder), waits or nullcontext():
                report = plan.build()
            computed = time.process_time() - start
            if report.failed:
                raise SystemExit(f"failed: {report.failed[0]}")
        return Built(sum(report.encoded.values()), report.seconds, computed, report.bytes)

    @contextmanager
    def project(self, data: Path, setting: str) -> Iterator[precook.Project]:
        """A project over a folder, whose store goes away with it."""
        store = self.base / "store"
        try:
            with precook.Project(
                base=self.base,
                store=str(store),
                dataset="bench",
                concepts=[{"name": "bench", "path": str(data)}],
                image=self.image,
                text={"empty_prompt": False},
                encoders={
                    "encoder": {**self.section, "dtype": self.dtype, "device": self.rules.device, "compile": setting}
                },
            ) as project:
                yield project
        finally:
            shutil.rmtree(store, ignore_errors=True)

    def cut_pictures(self) -> list[tuple[str, tuple[int, int]]]:
        """Picture files, with the width and the height that a plan cuts each to."""
        with self.project(self.data(), "off") as project:
            plan = project.plan()
            ((cuts,), samples) = plan.targets.cuts, plan.samples
            pictures = []
            for number in range(samples.count):
                concept, row = samples.in_concept(number)
                width, height = cuts[number][TARGET].tolist()
                pictures.append((concept.full_path(row), (width, height)))
        return pictures

    def _part(self) -> Path:
        """A folder with some of the samples."""
        data = self.data()
        part = data.with_name(f"{data.name}-part")
        if not part.exists():
            part.mkdir()
            for path in data.iterdir():
                if int(path.stem) % PART == 0:
                    os.link(path, part / path.name)
        return part


def _write_alone(path: Path, nbytes: int) -> float:
    """Seconds that the disk takes for so many bytes: where it limits builds, no way can be quicker."""
    some = os.urandom(min(nbytes, _CHUNK))
    settle(path.parent)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for left in range(nbytes, 0, -_CHUNK):
            file.write(some[:left])
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return seconds


def _add(section: Section, column: Column, found: Mapping[str, list[float]]) -> None:
    """Add a column of medians to the rows of all ways."""
    section.columns.append(column)
    for row, values in zip(section.rows, found.values(), strict=True):
        row.append(median(values))


@contextmanager
def _made_by(encoder: Any) -> Iterator[None]:
    """A build finds its encoder loaded, as the loop by hand does."""
    make = EncoderSpec.make
    EncoderSpec.make = lambda _: encoder  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        EncoderSpec.make = make  # type: ignore[method-assign]


class Utilisation:
    """How busy the GPU is, by its own account: the upper half's middle, because a run has its beginning and end."""

    def __init__(self, found: list[float]) -> None:
        self._found = found
        """Where it goes, if there is a GPU to ask."""
        self._seen: list[float] = []
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Utilisation:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            return self
        threading.Thread(target=self._read, name="bench-utilisation", daemon=True).start()
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
        if upper := sorted(self._seen)[len(self._seen) // 2 :]:
            self._found.append(median(upper))
