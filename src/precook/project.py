"""The project: a config and its store, from which plans are made."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from precook.config.models import Settings
from precook.config.read import Origin, check, read_config
from precook.encode.build import BuildReport, Hand, Options, build, default_threads, joined
from precook.encode.catalog import encodings, make_worker
from precook.encode.crew import AUTO
from precook.encode.encoder import Encoder
from precook.errors import ConfigError, NoSpaceError
from precook.errors import Problem as ConfigProblem
from precook.plan.plan import Plan, make_plan
from precook.report import SILENT, Reporter
from precook.sources.remembered import remembered_digests
from precook.store.layout import Layout, read_marker
from precook.store.store import Store, open_store
from precook.units import format_size

MEMORY = 1 << 30
_ROUNDS = 2
"""How often sources that change during a build are planned again by it; then they are left to the next one."""


class Project:
    """What a config file says, and the store it names; a context manager.

    From Python it takes the sections of the config file as keywords; paths are relative to `base`. An encoder may also
    be an object with the methods of `precook.Encoder`.
    """

    def __init__(self, *, base: str | os.PathLike[str] = ".", **sections: Any) -> None:
        objects = {
            name: one for name, one in dict(sections.get("encoders", {})).items() if not isinstance(one, Mapping)
        }
        for name, one in objects.items():
            if not isinstance(one, Encoder):
                raise ConfigError(ConfigProblem(f"encoders.{name}", None, f"{type(one).__name__} is not an encoder"))
        if objects:
            # A stand-in takes the object's place while the rest is checked.
            stand_in = {"uses": "precook.encode:object"}
            encoders = {name: stand_in if name in objects else one for name, one in sections["encoders"].items()}
            sections = {**sections, "encoders": encoders}
        self._start(check(sections), Path(base), Origin(None, {}), objects)

    def _start(self, settings: Settings, base: Path, origin: Origin, objects: dict[str, Encoder]) -> None:
        self.settings = settings
        self.base = base
        self._origin = origin
        self._objects = objects
        self._store: Store | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Project:
        """The project of a config file; `ConfigError` says everything that is wrong with it."""
        settings, origin = read_config(Path(path))
        project = cls.__new__(cls)
        project._start(settings, Path(path).parent, origin, {})  # noqa: SLF001 - the other way to make one
        return project

    @property
    def store_path(self) -> Path:
        """Where the store lies."""
        return self.base / self.settings.store

    @property
    def store(self) -> Store:
        """The store, opened when first asked for."""
        return self._opened(write=True)

    def _opened(self, *, write: bool) -> Store:
        """The store; whoever does not want to write gets it read-only, so that opening it changes nothing either."""
        if self._store is not None and write and self._store.asked_read_only:
            self.close()
        if self._store is None:
            absent = read_marker(Layout(self.store_path)) is None
            self._store = open_store(self.store_path, read_only=not write and not absent)
        return self._store

    def plan(self, *, encoders: list[str] | None = None, write: bool = True, report: Reporter = SILENT) -> Plan:
        """Look at the sources and say what is ready, what is missing and why.

        Nothing is encoded and no entry is written; what was learnt about the sources is remembered in the store unless
        `write` is False. `encoders` names those of interest; without it, all.
        """
        chosen = self._chosen(encoders)
        store = self._opened(write=write)
        memory = store.memory()
        digest_of = partial(remembered_digests, memory=memory, trust=self.settings.stamps == "trust", report=report)
        try:
            wanted = encodings(chosen, self.base, digest_of=digest_of, origin=self._origin)
        finally:
            if write:
                store.remember(memory)  # weights that were read need not be read again
        return make_plan(
            self.settings, self.base, wanted, store, memory, write=write, report=report, builder=self._build
        )

    def build(self, **options: Any) -> BuildReport:
        """Plan, and encode what is missing; with everything there, the dataset is frozen as its latest snapshot.

        Options: `report`, a `Reporter`; `stop`, an event that ends it after the batches in flight; `devices`, such
        as `["cuda:0", "cuda:1"]`, for encoders whose device is auto (one given as an object runs on the first of them);
        `memory`, bytes that sources may take from when they are read until they are encoded; `threads` that decode;
        `retry_failed`, to try again what failed before; `fail_fast`, to stop at the first failure; `crowded`, to start
        although the disk cannot hold the forecast.
        """
        return self._build(self.plan(report=options.get("report", SILENT)), **options)

    def _build(
        self,
        plan: Plan,
        *,
        report: Reporter = SILENT,
        stop: threading.Event | None = None,
        devices: Sequence[str] = (),
        memory: int = MEMORY,
        threads: int | None = None,
        retry_failed: bool = False,
        fail_fast: bool = False,
        crowded: bool = False,
    ) -> BuildReport:
        if not crowded and not plan.forecast.fits:
            needed, free = format_size(plan.forecast.nbytes or 0), format_size(plan.forecast.free or 0)
            hint = "free some space, or build all the same with crowded=True (--crowded)"
            raise NoSpaceError(plan.store.path, f"about {needed} are to be written and {free} are free", hint=hint)
        options = Options(memory, threads or default_threads(), retry_failed=retry_failed, fail_fast=fail_fast)
        names = list(plan.encoders)
        hands = {name: self._hand(name, one, devices) for name, one in self._chosen(names).items()}
        stop = stop or threading.Event()
        done = build(plan, hands, options=options, stop=stop, report=report)
        rounds = 0
        while not stop.is_set():
            # Sources that changed meanwhile are what they are now.
            plan = self.plan(encoders=names, report=report)
            told = {(failure.encoder, failure.key) for failure in done.failed}
            if rounds == _ROUNDS or all((entry.encoder, entry.key) in told for entry in plan.missing):
                if set(names) == set(self.settings.encoders) and not len(plan.missing):
                    plan.freeze()
                return done
            rounds += 1
            # What failed for good, now or before, is known by now.
            options = dataclasses.replace(options, retry_failed=False)
            done = joined(done, build(plan, hands, options=options, stop=stop, report=report), plan)
        return dataclasses.replace(done, stopped=True)

    def _hand(self, name: str, one: Any, devices: Sequence[str]) -> Hand:
        section = self.settings.encoders[name]
        chosen: tuple[str, ...] = (section.device,)
        if section.device == AUTO and devices:
            # An object is one encoder and cannot be loaded twice.
            chosen = (devices[0],) if name in self._objects else tuple(devices)
        return Hand(
            make=partial(make_worker, name, one, self.base, self._origin),
            devices=chosen,
            batch_size=None if section.batch_size == "auto" else section.batch_size,
        )

    def _chosen(self, names: list[str] | None) -> dict[str, Any]:
        all_ = {name: self._objects.get(name, section) for name, section in self.settings.encoders.items()}
        unknown = [name for name in names or () if name not in all_]
        if unknown:
            raise self._origin.error(("encoders",), f"no encoder {unknown[0]!r}", hint=f"there are {', '.join(all_)}")
        return all_ if names is None else {name: all_[name] for name in names}

    def close(self) -> None:
        """Close the store."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def __enter__(self) -> Project:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Project {self.settings.dataset} in {self.store_path}>"


def load(path: str | os.PathLike[str] = "precook.yaml") -> Project:
    """The project of a config file."""
    return Project.read(path)
