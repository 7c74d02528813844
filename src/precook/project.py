"""The project: a config and its store, from which plans are made."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from precook.config.check import check, read_config
from precook.config.schema import Settings
from precook.config.yaml import Origin
from precook.encode.build import BuildOptions, BuildReport, EncoderSpec, build, default_threads, joined
from precook.encode.encoder import Encoder
from precook.encode.pool import AUTO
from precook.encode.recompute import RecomputeDifference, compare, sampled_plan
from precook.encode.registry import check_files, encodings, make_worker
from precook.encode.tokens import pad_ids
from precook.errors import ConfigError, ConfigProblem, IncompleteError, NoSpaceError, printable
from precook.feed.feed import Feed, FeedOptions, feed_plan
from precook.identity.recipe import Recipe
from precook.maintain.build_log import Run, record_run
from precook.memo.memo import Memory
from precook.open_store import open_store
from precook.plan.plan import Plan, make_plan
from precook.plan.rehash import Doubting, SourceCheck, compare_plans
from precook.plan.wanted import Encoding
from precook.report import SILENT, Reporter
from precook.sources.facts import remembered_digests
from precook.store.layout import Layout, read_marker
from precook.store.lease import Lease
from precook.store.store import Store
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

    def plan(
        self,
        *,
        encoders: list[str] | None = None,
        write: bool = True,
        report: Reporter = SILENT,
        lease: Lease | None = None,
        memory: Memory | None = None,
    ) -> Plan:
        """Look at the sources and say what is ready, what is missing and why.

        Nothing is encoded and no entry is written; what was learnt about the sources is remembered in the store unless
        `write` is False. `encoders` names those of interest; without it, all. A `lease` protects all that is planned;
        `memory` takes the place of what the store remembers.
        """
        chosen = self._chosen(encoders)
        store = self._opened(write=write)
        memory = memory or store.memory()
        digest_of = partial(remembered_digests, memory=memory, trust=self.settings.stamps == "trust", report=report)
        try:
            wanted = encodings(chosen, self.base, digest_of=digest_of, origin=self._origin, report=report)
        finally:
            if write:
                store.remember(memory)  # weights that were read need not be read again
        return make_plan(
            self.settings,
            self.base,
            wanted,
            store,
            memory,
            write=write,
            report=report,
            builder=self._build,
            lease=lease,
            pads=partial(self._pads, wanted, memory),
        )

    def build(self, **options: Any) -> BuildReport:
        """Plan, and encode what is missing; with everything there, the dataset is frozen as its latest snapshot.

        Options: `report`, a `Reporter`; `stop`, an event that ends it after the batches in flight; `devices`, such
        as `["cuda:0", "cuda:1"]`, for encoders whose device is auto (one given as an object runs on the first of them);
        `memory`, bytes that sources may take from when they are read until they are encoded; `threads` that decode;
        `retry_failed`, to try again what failed before; `fail_fast`, to stop at the first failure; `crowded`, to start
        although the disk cannot hold the forecast; `processes`, how many build the same at the same time, this one
        among them, so that each claims its part and no more.
        """
        started = int(time.time())
        with self._lease(self.store) as lease:
            plan = self.plan(report=options.get("report", SILENT), lease=lease)
            done = self._build_leased(plan, lease, **options)
        self.record(started, done)
        return done

    def verify_sources(self, *, report: Reporter = SILENT) -> SourceCheck:
        """Read every source and model again and compare it with what is remembered of it.

        It finds edits that left a file's stamp as it was. What was remembered wrongly is forgotten: the next plan sees
        the files as they are.
        """
        before = self.plan(report=report)
        memory = Doubting(self.store.internals().index)
        after = self.plan(report=report, memory=memory)
        memory.settle()
        self.store.remember(memory)
        return compare_plans(before, after, memory.files)

    def recompute(
        self, share: float, *, seed: int = 0, devices: Sequence[str] = (), report: Reporter = SILENT
    ) -> list[RecomputeDifference]:
        """Encode a random part of what is ready once more and say how far it is from what is stored, by encoder.

        At least one entry of each encoder is made; the same seed takes the same entries. The store is not changed.
        """
        # No store is made to hold a lease on nothing.
        absent = read_marker(Layout(self.store_path)) is None
        holding = nullcontext() if absent else self.store.lease(f"recomputation of {self.settings.dataset}")
        with (
            holding as lease,
            tempfile.TemporaryDirectory(prefix="precook-recompute-") as folder,
            open_store(folder) as scratch,
        ):
            plan = self.plan(write=False, report=report, lease=lease)
            part, chosen = sampled_plan(plan, share, seed=seed, scratch=scratch)
            hands = self._hands(None, devices)
            options = BuildOptions(MEMORY, default_threads(), retry_failed=False, fail_fast=False)
            build(part, hands, options=options, stop=threading.Event(), report=report)
            return [compare(name, plan.store, scratch, keys) for name, keys in chosen.items()]

    def _lease(self, store: Store) -> Lease:
        return store.lease(f"build of {self.settings.dataset}")

    def _build(self, plan: Plan, *, record: bool = True, **options: Any) -> BuildReport:
        """Build a plan that was made without a lease: what it found ready and is gone by now, the end of it makes.

        Where several processes share the work, `record` is False and whoever adds up their reports records one.
        """
        started = int(time.time())
        with self._lease(plan.store) as lease:
            for one in plan.encoders.values():
                lease.protect(one.wants.keys[one.wants.first])
            done = self._build_leased(plan, lease, **options)
        if record:
            self.record(started, done)
        return done

    def record(self, started: int, done: BuildReport, *, processes: int = 1) -> None:
        """Remember what a build did, for `precook status`; `started` in Unix seconds."""
        run = Run(
            started=started,
            dataset=self.settings.dataset,
            encoded=sum(done.encoded.values()),
            reused=sum(done.reused.values()),
            failed=len(done.failed),
            nbytes=done.bytes,
            seconds=round(done.seconds, 3),
            stopped=done.stopped,
            processes=processes,
        )
        record_run(self.store, run)

    def _build_leased(
        self,
        plan: Plan,
        lease: Lease,
        *,
        report: Reporter = SILENT,
        stop: threading.Event | None = None,
        devices: Sequence[str] = (),
        memory: int = MEMORY,
        threads: int | None = None,
        retry_failed: bool = False,
        fail_fast: bool = False,
        crowded: bool = False,
        processes: int = 1,
    ) -> BuildReport:
        if not plan.samples.count and not plan.failed:
            # An error, as a folder that is not there: a dataset is never emptied by a drive that is not mounted.
            folders = ", ".join(printable(self.base / concept.path) for concept in self.settings.concepts)
            hint = "is the drive mounted? What was built before is as it was"
            raise IncompleteError(f"{self.settings.dataset} has no samples: no pictures in {folders}", hint=hint)
        if not crowded and not plan.forecast.fits:
            needed, free = format_size(plan.forecast.nbytes or 0), format_size(plan.forecast.free or 0)
            hint = "free some space, or build all the same with crowded=True (--crowded)"
            raise NoSpaceError(plan.store.path, f"about {needed} are to be written and {free} are free", hint=hint)
        options = BuildOptions(
            memory,
            threads or default_threads(),
            retry_failed=retry_failed,
            fail_fast=fail_fast,
            processes=processes,
        )
        names = list(plan.encoders)
        hands = self._hands(names, devices)
        stop = stop or threading.Event()
        done = build(plan, hands, options=options, stop=stop, report=report)
        rounds = 0
        while not stop.is_set():
            # Sources that changed meanwhile are what they are now.
            plan = self.plan(encoders=names, report=report, lease=lease)
            told = {(failure.encoder, failure.key) for failure in done.failed}
            if rounds == _ROUNDS or all((entry.encoder, entry.key) in told for entry in plan.missing):
                if set(names) == set(self.settings.encoders) and not len(plan.missing) and plan.complete:
                    plan.freeze()
                return done
            rounds += 1
            # What failed for good, now or before, is known by now.
            options = dataclasses.replace(options, retry_failed=False)
            done = joined(done, build(plan, hands, options=options, stop=stop, report=report), plan)
        return dataclasses.replace(done, stopped=True)

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
        chosen = FeedOptions(batch_size=batch_size, **options)
        return feed_plan(self.plan(report=report), chosen, hands=self._hands(None, devices), captions=captions)

    def _pads(self, wanted: Sequence[Encoding], memory: Memory) -> dict[str, int]:
        sections = self._chosen(None)
        return pad_ids(
            {encoding.name: encoding for encoding in wanted},
            lambda name: make_worker(name, sections[name], self.base, self._origin),
            memory,
        )

    def _hands(self, names: list[str] | None, devices: Sequence[str]) -> dict[str, EncoderSpec]:
        return {name: self._hand(name, one, devices) for name, one in self._chosen(names).items()}

    def _hand(self, name: str, one: Any, devices: Sequence[str]) -> EncoderSpec:
        section = self.settings.encoders[name]
        chosen: tuple[str, ...] = (section.device,)
        if section.device == AUTO and devices:
            # An object is one encoder and cannot be loaded twice.
            chosen = (devices[0],) if name in self._objects else tuple(devices)
        return EncoderSpec(
            make=partial(make_worker, name, one, self.base, self._origin),
            devices=chosen,
            batch_size=None if section.batch_size == "auto" else section.batch_size,
            check=partial(self._check, name, one),
        )

    def _check(self, name: str, one: Any, recipe: Recipe) -> None:
        """Refuse an encoder whose files have changed since its recipe was made."""
        trust = self.settings.stamps == "trust"
        memory = self._opened(write=False).memory()
        digest_of = partial(remembered_digests, memory=memory, trust=trust, report=SILENT)
        check_files(name, one, self.base, recipe, digest_of=digest_of, origin=self._origin)

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
