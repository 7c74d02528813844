"""Builds: encoders run over exactly what is missing, and what they make is kept as it goes.

A build plans once. At its end it looks at the sources once more; only what has changed meanwhile is planned and built
again. With everything there, the dataset is frozen as its latest snapshot.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from precook.config.schema import Settings
from precook.encode.progress import BuildProgress
from precook.encode.registry import EncoderSpec, special_tokens
from precook.encode.run import BuildOptions, run_together
from precook.encode.schedule import group_encoders, run_lanes, share_devices
from precook.encode.stages import find_limit
from precook.errors import ConfigError, IncompleteError, NoSpaceError, printable
from precook.fs.system import system
from precook.interrupt import interruption
from precook.maintain.build_log import Run, record_run
from precook.memo.memo import Memory
from precook.plan.entries import EncoderPlan, Failure
from precook.plan.freeze import SpecialTokens
from precook.plan.plan import Plan, collect_sources, look_up, make_plan
from precook.plan.wanted import Encoding
from precook.report import SILENT, Reporter
from precook.sources.samples import ConceptSamples
from precook.store.layout import Layout
from precook.store.lease import Lease
from precook.store.snapshot import SnapshotFile, check_dataset
from precook.store.store import Store
from precook.units import format_size
from precook.values import Numbers

_ROUNDS = 2
"""How often sources that change during a build are planned again by it; then they are left to the next one."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a build did: what was planned is encoded, reused, failed, changed, or left where it was stopped."""

    encoded: dict[str, int]
    """New entries, by encoder."""
    reused: dict[str, int]
    """Entries that were there already or that another builder made meanwhile, by encoder."""
    failed: tuple[Failure, ...]
    """Sources that cannot be used, and entries that could not be made, now or before."""
    changed: int
    """Entries whose source changed meanwhile and is left to the next build."""
    left: int
    """Entries that were not tried, because the build was stopped."""
    truncated: dict[str, int]
    """Texts that were cut to the encoder's length, by encoder."""
    seconds: float
    bytes: int
    """Of the new entries."""
    peak_memory: int
    """Most memory the process has taken so far."""
    stopped: bool
    """Whether it was stopped before the end; the next build goes on."""
    busy: dict[str, float] = field(default_factory=dict)
    """How busy reading, decoding, the devices and the disk were, each from 0 to 1; empty where nothing was encoded."""
    missing: int = 0
    """Entries that a build would make now, although this one came to its end: their files came or changed meanwhile."""
    snapshot: SnapshotFile | None = None
    """The dataset as it was frozen at the end; None where it is not complete."""

    @property
    def limit(self) -> str | None:
        """What kept it from being faster, of those in `busy`; None where none of them was busy most of the time."""
        return find_limit(self.busy)


class BuildPlan(Plan):
    """A plan with the encoders that can build it."""

    def __init__(
        self, plan: Plan, specs: Mapping[str, EncoderSpec], *, not_loaded: dict[str, str] | None = None
    ) -> None:
        super().__init__(
            plan.settings,
            plan.base,
            plan.store,
            plan.memory,
            plan.samples,
            plan.targets,
            plan.encoders,
            plan.generation,
            not_loaded or {},
            plan.version_differences,
        )
        self.specs = specs

    @property
    def encodings(self) -> list[Encoding]:
        """Its encoders as it sees them."""
        return [encoder.wants.encoding for encoder in self.encoders.values()]

    def special_tokens(self) -> dict[str, SpecialTokens]:
        """What texts are padded and end with, by encoder of token ids."""
        recipes = {encoding.name: encoding.recipe for encoding in self.encodings}
        return special_tokens(self.specs.values(), recipes, self.memory)

    def build(
        self,
        *,
        report: Reporter = SILENT,
        stop: threading.Event | None = None,
        fresh: bool = False,
        record: bool = True,
        **options: Any,
    ) -> BuildReport:
        """Encode what is missing; see `precook.Project.build` for the options. The report tells what was done.

        `fresh` says that the plan was made just now: where it has nothing to encode, the sources need not be looked at
        again. Where several processes share the work, `record` is False and whoever adds up their reports records one.
        """
        if self.not_loaded:
            names = ", ".join(self.not_loaded)
            hint = "load the project with code=True, or plan for the other encoders only"
            raise IncompleteError(f"this plan was made without {names}: own classes, not loaded", hint=hint)
        started = int(time.time())
        with lease_build(self.store, self.settings) as lease:
            # The plan was made without it: what was ready then and is gone by now is missing in the end, and made.
            for encoder in self.encoders.values():
                lease.protect(encoder.wants.keys[encoder.wants.first])
            done = Build(lease, BuildOptions(**options), stop=stop, report=report).run(self, fresh=fresh)
        if record:
            record_build(self.store, self.settings.dataset, started, done)
        return done


def plan_build(
    settings: Settings,
    base: Path,
    specs: Mapping[str, EncoderSpec],
    store: Store,
    *,
    memory: Memory | None = None,
    write: bool = True,
    report: Reporter = SILENT,
    lease: Lease | None = None,
) -> BuildPlan:
    """Look at models and sources, and say what is missing; what was learnt is remembered if `write` is set."""
    memory = memory or store.memory()
    encodings = _look_at_models(specs, store, memory, write=write, report=report)
    for encoding in encodings:
        specs[encoding.name].check_texts(encoding, settings.used_concepts)
        specs[encoding.name].check_clips(settings)
    concepts = collect_sources(settings, base, encodings, store, memory, write=write, report=report)
    plan = make_plan(settings, base, encodings, concepts, store, memory, write=write, lease=lease)
    return BuildPlan(plan, specs)


def _look_at_models(
    specs: Mapping[str, EncoderSpec], store: Store, memory: Memory, *, write: bool = True, report: Reporter
) -> list[Encoding]:
    """The encoders as a plan sees them; what is wrong with their models is told at once, before weights are read."""
    wrong: list[ConfigError] = []
    for spec in specs.values():
        try:
            spec.check(memory, report)
        except ConfigError as error:
            wrong.append(error)
    if wrong:
        raise ConfigError(*(problem for error in wrong for problem in error.problems), file=wrong[0].file)
    try:
        return [spec.encoding(memory, report) for spec in specs.values()]
    finally:
        if write:
            store.remember(memory)  # weights that were read need not be read again


def lease_build(store: Store, settings: Settings) -> Lease:
    """What protects the entries of a dataset while it is built."""
    return store.lease(f"build of {settings.dataset}")


class Build:
    """A build, from a plan to the sources as they are at its end; the lease protects what the plan wants."""

    def __init__(
        self, lease: Lease, options: BuildOptions, *, stop: threading.Event | None = None, report: Reporter = SILENT
    ) -> None:
        self._lease = lease
        self._options = options
        self._stop = stop or threading.Event()
        self._report = report

    def run(self, plan: BuildPlan, *, fresh: bool) -> BuildReport:
        """Build a plan, and once or twice more what becomes of it meanwhile; `fresh` as in `BuildPlan.build`."""
        self._check(plan)
        idle = fresh and not any(len(_rows(encoder, self._options)) for encoder in plan.encoders.values())
        done = encode_missing(plan, options=self._options, stop=self._stop, report=self._report)
        # What failed for good, now or before, is known by now.
        self._options = dataclasses.replace(self._options, retry_failed=False)
        for rounds in range(_ROUNDS + 1):
            if self._stop.is_set():
                break
            # With nothing encoded the plan is as good as new, unless something was removed from the store.
            if not idle or plan.store.generation() != plan.generation:
                plan = self._look_again(plan, sources=not idle)
            known = {(failure.encoder, failure.key) for failure in done.failed}
            unmade = sum((entry.encoder, entry.key) not in known for entry in plan.missing)
            if rounds == _ROUNDS or not unmade:
                return dataclasses.replace(done, missing=unmade, snapshot=_freeze(plan))
            again = encode_missing(plan, options=self._options, stop=self._stop, report=self._report)
            done, idle = _joined(done, again, plan), False
        return dataclasses.replace(done, stopped=True)

    def _check(self, plan: BuildPlan) -> None:
        """Refuse to build nothing at all, more than the disk can hold, or a dataset whose name is taken."""
        settings = plan.settings
        # Not only at its end, where the snapshot is written.
        check_dataset(Layout(plan.store.path), settings.dataset)
        if not plan.samples.count and not plan.failed:
            # An error, as a folder that is not there: a dataset is never emptied by a drive that is not mounted.
            folders = ", ".join(printable(plan.base / concept.path) for concept in settings.used_concepts)
            hint = "is the drive mounted? What was built before is as it was"
            sought = "texts" if all(concept.texts is not None for concept in settings.used_concepts) else "pictures"
            raise IncompleteError(f"{settings.dataset} has no samples: no {sought} in {folders}", hint=hint)
        if not self._options.crowded and not plan.forecast.fits:
            needed, free = format_size(plan.forecast.nbytes or 0), format_size(plan.forecast.free or 0)
            hint = "free some space, or build all the same with crowded=True (--crowded)"
            raise NoSpaceError(plan.store.location, f"about {needed} are to be written and {free} are free", hint=hint)

    def _look_again(self, plan: BuildPlan, *, sources: bool) -> BuildPlan:
        """The plan by what the store has now and, with `sources`, by the models and sources as they are now."""
        store, settings, report = plan.store, plan.settings, self._report
        memory = store.memory()
        if sources:
            encodings = _look_at_models(plan.specs, store, memory, report=report)
            concepts = collect_sources(settings, plan.base, encodings, store, memory, report=report)
            before = plan.samples.by_concept
            if encodings != plan.encodings or not all(map(ConceptSamples.same_as, before, concepts)):
                now = make_plan(settings, plan.base, encodings, concepts, store, memory, lease=self._lease)
                return BuildPlan(now, plan.specs)
        wanted = [encoder.wants for encoder in plan.encoders.values()]
        return BuildPlan(look_up(plan, wanted, memory, lease=self._lease), plan.specs)


def _freeze(plan: Plan) -> SnapshotFile | None:
    """Freeze a dataset of which nothing is missing, if the plan is one of all its encoders."""
    if set(plan.encoders) == set(plan.settings.encoders) and not len(plan.missing) and plan.complete:
        return plan.freeze().file
    return None


def encode_missing(plan: BuildPlan, *, options: BuildOptions, stop: threading.Event, report: Reporter) -> BuildReport:
    """Encode what a plan has as missing; `stop` ends it after the batches in flight.

    Encoders of pictures run together, those on different devices at the same time, and the others in turn.
    """
    start = time.monotonic()
    progress = BuildProgress(plan.store.memory())
    work = {name: rows for name, encoder in plan.encoders.items() if len(rows := _rows(encoder, options))}
    lanes = share_devices(group_encoders(plan, [plan.specs[name].on(options.devices) for name in work]))
    options = dataclasses.replace(options, memory=max(1, options.memory // max(1, len(lanes))))

    def run(lane: Sequence[Sequence[EncoderSpec]], stop: threading.Event) -> None:
        for specs in lane:
            if not stop.is_set():
                run_together(plan, specs, work, progress, options=options, stop=stop, report=report)

    with interruption():
        run_lanes(lanes, run, stop)
    tried = sum(progress.encoded.values()) + sum(progress.reused.values()) + len(progress.failed) + progress.changed
    return BuildReport(
        encoded={name: progress.encoded[name] for name in plan.encoders},
        reused={name: len(encoder.ready) + progress.reused[name] for name, encoder in plan.encoders.items()},
        failed=(*_failed_before(plan, options), *progress.failed),
        changed=progress.changed,
        left=sum(len(rows) for rows in work.values()) - tried,
        truncated=dict(progress.truncated),
        seconds=time.monotonic() - start,
        bytes=progress.nbytes_by.total(),
        # In KiB, but on macOS in bytes.
        peak_memory=system.peak_memory(),
        stopped=stop.is_set(),
        busy=progress.times.shares(),
    )


def record_build(store: Store, dataset: str, started: int, done: BuildReport, *, processes: int = 1) -> None:
    """Remember what a build did, for `precook status`; `started` in Unix seconds."""
    run = Run(
        started=started,
        dataset=dataset,
        encoded=sum(done.encoded.values()),
        reused=sum(done.reused.values()),
        failed=len(done.failed),
        nbytes=done.bytes,
        seconds=round(done.seconds, 3),
        stopped=done.stopped,
        processes=processes,
    )
    record_run(store, run)


def _joined(first: BuildReport, second: BuildReport, plan: Plan) -> BuildReport:
    """One report for two passes, one after the other, the second of which did this plan."""
    known = {(entry.encoder, entry.key) for entry in (*second.failed, *plan.missing)}
    # A failure that the second pass knows nothing of: its source is gone, and it is told here or nowhere.
    gone = [failure for failure in first.failed if failure.encoder and (failure.encoder, failure.key) not in known]
    return BuildReport(
        encoded={name: first.encoded[name] + second.encoded[name] for name in second.encoded},
        reused={name: max(0, second.reused[name] - first.encoded[name]) for name in second.reused},
        failed=(*gone, *second.failed),
        changed=second.changed,
        left=second.left,
        truncated={name: first.truncated.get(name, 0) + second.truncated.get(name, 0) for name in second.encoded},
        seconds=first.seconds + second.seconds,
        bytes=first.bytes + second.bytes,
        peak_memory=second.peak_memory,
        stopped=second.stopped,
        # Of the longer of the two: the other is about what changed meanwhile.
        busy=max(first, second, key=lambda one: one.seconds).busy,
    )


def _rows(encoder: EncoderPlan, options: BuildOptions) -> Numbers:
    """What an encoder has to make."""
    again = list(encoder.failures) if options.retry_failed else []
    return np.concatenate([encoder.missing, np.array(again, np.int64)])


def _failed_before(plan: Plan, options: BuildOptions) -> Iterator[Failure]:
    """What failed before this build and is not tried again."""
    yield from (failure for failure in plan.failed if failure.encoder is None)
    for name, encoder in plan.encoders.items() if not options.retry_failed else ():
        for row, reason in encoder.failures.items():
            entry = encoder.entry(row)
            yield Failure(reason, entry.path, entry.concept, name, entry.key)
