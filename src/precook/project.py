"""The project: a config and its store, from which plans, builds and feeds are made."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from precook.config.check import check, read_config
from precook.config.encoders import NetworkEncoder, own_class
from precook.config.schema import Settings
from precook.config.yaml import Origin
from precook.encode.build import Build, BuildPlan, BuildReport, lease_build, plan_build, record_build
from precook.encode.encoder import Encoder, missing_methods, read_inputs
from precook.encode.hub import HubSnapshots
from precook.encode.recompute import RecomputeDifference, recompute
from precook.encode.registry import EncoderSpec
from precook.encode.run import BuildOptions
from precook.errors import ConfigError, ConfigProblem, EncodeError
from precook.feed.feed import Feed, feed_plan
from precook.feed.options import FeedOptions
from precook.memo.memo import Memory
from precook.open_store import LocalStore, open_store
from precook.plan.rehash import SourceCheck, UntrustedStamps, compare_plans
from precook.report import SILENT, Reporter
from precook.store.layout import Layout, read_marker
from precook.store.lease import Lease
from precook.store.remote.url import StoreUrl, find_place


class Project:
    """What a config file says, and the store it names; a context manager.

    From Python it takes the sections of the config file as keywords; paths are relative to `base`. An encoder may also
    be an object with the methods of `precook.Encoder`.
    """

    def __init__(self, *, base: str | os.PathLike[str] = ".", **sections: Any) -> None:
        encoders = dict(sections.get("encoders", {}))
        objects = {name: encoder for name, encoder in encoders.items() if not isinstance(encoder, Mapping)}
        for name, encoder in objects.items():
            where, kind = f"encoders.{name}", type(encoder).__name__
            absent = missing_methods(encoder)
            if absent:
                message = f"{kind} is not an encoder: it has no {' and no '.join(absent)}"
                raise ConfigError(ConfigProblem(where, None, message))
            try:
                read_inputs(encoder)
            except EncodeError as error:
                raise ConfigError(ConfigProblem(where, None, f"{kind}: {error.message}", error.hint or "")) from error
        if objects:
            # A stand-in takes the object's place while the rest is checked.
            stand_in = {"uses": "precook.encode:object"}
            sections = {**sections, "encoders": {**encoders, **dict.fromkeys(objects, stand_in)}}
        self._start(check(sections), Path(base), Origin(), objects)

    def _start(self, settings: Settings, base: Path, origin: Origin, objects: Mapping[str, Encoder]) -> None:
        self.settings = settings
        self.base = base
        self._origin = origin
        self._store: LocalStore | None = None
        snapshots = HubSnapshots()
        self._not_loaded: dict[str, str] = {}
        self._specs = {
            name: EncoderSpec(
                name,
                objects.get(name, section),
                base=base,
                origin=origin,
                devices=(section.device,),
                batch_size=None if section.batch_size == "auto" else section.batch_size,
                compile=section.compile if isinstance(section, NetworkEncoder) else "auto",
                trust=settings.stamps == "trust",
                snapshots=snapshots,
            )
            for name, section in settings.encoders.items()
        }

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, code: bool = True) -> Project:
        """The project of a config file; `ConfigError` says everything that is wrong with it.

        A config that names classes of its own is a program: planning imports and runs them. With `code=False` they are
        never loaded, so that a stranger's config can be looked at: plans name them in `not_loaded`, and builds and
        feeds that would need them are refused.
        """
        settings, origin = read_config(Path(path))
        project = cls.__new__(cls)
        project._start(settings, Path(path).parent, origin, {})  # noqa: SLF001 - the other way to make one
        if not code:
            project._leave_out_own_classes()  # noqa: SLF001
        return project

    def _leave_out_own_classes(self) -> None:
        own = {name: section.uses for name, section in self.settings.encoders.items() if own_class(section)}
        self._not_loaded = own
        # Where there is no spec, nothing can load it.
        self._specs = {name: spec for name, spec in self._specs.items() if name not in own}

    @property
    def store_path(self) -> Path | StoreUrl:
        """Where the store lies: a folder, or a URL."""
        return find_place(self.settings, self.base)

    @property
    def store(self) -> LocalStore:
        """The store, opened when first asked for."""
        return self._opened(write=True)

    def _opened(self, *, write: bool) -> LocalStore:
        """The store; whoever does not want to write gets it read-only, so that opening it changes nothing either."""
        if self._store is not None and write and self._store.asked_read_only:
            self.close()
        if self._store is None:
            place = self.store_path
            if isinstance(place, StoreUrl):
                self._store = open_store(place)  # which changes nothing in a bucket
            else:
                self._store = open_store(place, read_only=not write and read_marker(Layout(place)) is not None)
        return self._store

    @property
    def _has_store(self) -> bool:
        place = self.store_path
        return self.store.exists if isinstance(place, StoreUrl) else read_marker(Layout(place)) is not None

    def plan(
        self,
        *,
        encoders: list[str] | None = None,
        write: bool = True,
        report: Reporter = SILENT,
        lease: Lease | None = None,
        memory: Memory | None = None,
    ) -> BuildPlan:
        """Look at the sources and say what is ready, what is missing and why.

        Nothing is encoded and no entry is written; what was learnt about the sources is remembered in the store unless
        `write` is False. `encoders` names those of interest; without it, all. A `lease` protects all that is planned;
        `memory` takes the place of what the store remembers.
        """
        specs = self._chosen(encoders)
        store = self._opened(write=write)
        plan = plan_build(
            self.settings, self.base, specs, store, memory=memory, write=write, report=report, lease=lease
        )
        return BuildPlan(plan, specs, not_loaded=self._not_loaded) if encoders is None else plan

    def build(self, *, report: Reporter = SILENT, stop: Any = None, **options: Any) -> BuildReport:
        """Plan, and encode what is missing; with everything there, the dataset is frozen as its latest snapshot.

        Options: `report`, a `Reporter`; `stop`, an event that ends it after the batches in flight; `devices`, such
        as `["cuda:0", "cuda:1"]`, for encoders whose device is auto (one given as an object runs on the first of them);
        `memory`, bytes that sources may take from when they are read until they are encoded; `threads` that decode;
        `retry_failed`, to try again what failed before; `fail_fast`, to stop at the first failure; `crowded`, to start
        although the disk cannot hold the forecast; `processes`, how many build the same at the same time, this one
        among them, so that each claims its part and no more.
        """
        self.check_loaded()
        started = int(time.time())
        chosen = BuildOptions(**options)
        with lease_build(self.store, self.settings) as lease:
            plan = self.plan(report=report, lease=lease)
            done = Build(lease, chosen, stop=stop, report=report).run(plan, fresh=True)
        self.record(started, done)
        return done

    def record(self, started: int, done: BuildReport, *, processes: int = 1) -> None:
        """Remember what a build did, for `precook status`; `started` in Unix seconds."""
        record_build(self.store, self.settings.dataset, started, done, processes=processes)

    def verify_sources(self, *, report: Reporter = SILENT) -> SourceCheck:
        """Read every source and model again and compare it with what is remembered of it.

        It finds edits that left a file's stamp as it was. What was remembered wrongly is forgotten: the next plan sees
        the files as they are.
        """
        before = self.plan(report=report)
        memory = UntrustedStamps(self.store.internals().index)
        return compare_plans(before, self.plan(report=report, memory=memory), memory)

    def recompute(
        self, share: float, *, seed: int = 0, devices: Sequence[str] = (), report: Reporter = SILENT
    ) -> list[RecomputeDifference]:
        """Encode a random part of what is ready once more and say how far it is from what is stored, by encoder.

        At least one entry of each encoder is made; the same seed takes the same entries. The store is not changed.
        """
        purpose = f"recomputation of {self.settings.dataset}"
        # No store is made to hold a lease on nothing.
        with self.store.lease(purpose) if self._has_store else nullcontext() as lease:
            plan = self.plan(write=False, report=report, lease=lease)
            return recompute(plan, share, seed=seed, devices=devices, report=report)

    def feed(
        self,
        *,
        batch_size: int,
        captions: bool = True,
        devices: Sequence[str] = (),
        report: Reporter = SILENT,
        **options: Any,
    ) -> Feed:
        """Batches for training of what the config describes now; see `precook.FeedOptions` for the other options.

        Sources are looked at once, here. `on_missing="encode"` makes what a batch lacks when it is needed, on the
        `devices`, and stores it; `captions=False` spares reading every caption file.
        """
        self.check_loaded()
        chosen = FeedOptions(batch_size=batch_size, **options)
        specs = {name: spec.on(devices) for name, spec in self._specs.items()}
        return feed_plan(self.plan(report=report), chosen, specs=specs, captions=captions)

    def check_loaded(self, encoders: Sequence[str] | None = None) -> None:
        """Refuse to go on without own classes that are needed for some encoders, or for all, and are not loaded."""
        for name, uses in self._not_loaded.items():
            if encoders is None or name in encoders:
                hint = (
                    f"read {uses.partition(':')[0]} and leave out --no-code, or name the other encoders with --encoder"
                )
                raise self._origin.error(("encoders", name, "uses"), f"own class, not loaded: {uses}", hint=hint)

    def _chosen(self, names: list[str] | None) -> dict[str, EncoderSpec]:
        if names is not None:
            self.check_loaded(names)
        unknown = [name for name in names or () if name not in self._specs]
        if unknown:
            hint = f"there are {', '.join(self._specs)}"
            raise self._origin.error(("encoders",), f"no encoder {unknown[0]!r}", hint=hint)
        return self._specs if names is None else {name: self._specs[name] for name in names}

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


def load(path: str | os.PathLike[str] = "precook.yaml", *, code: bool = True) -> Project:
    """The project of a config file; with `code=False` nothing that it names is imported, see `Project.read`."""
    return Project.read(path, code=code)
