"""The plan: what is ready, what is missing, what failed before, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.config.schema import Settings
from precook.errors import IncompleteError
from precook.memo.memo import Memory
from precook.plan.entries import Entries, Failure, rows_where
from precook.plan.explain import Explanation, explain
from precook.plan.forecast import Forecast, find_rates, forecast
from precook.plan.freeze import complete_samples, snapshot_content
from precook.plan.ready import find_ready, read_failures
from precook.plan.reasons import History, Reasons, Why
from precook.plan.show import show
from precook.plan.targets import Samples, Target, Targets, frame
from precook.plan.wanted import Encoding, WantedEntries, rows_with, want
from precook.report import SILENT, Reporter
from precook.sources.samples import ConceptSamples, collect_samples
from precook.store import files
from precook.store.lease import Lease
from precook.store.snapshot import Snapshot
from precook.store.store import Store
from precook.values import Key, Numbers


@dataclass(frozen=True)
class EncoderPlan:
    """What one encoder needs, and what of it is there."""

    wants: WantedEntries
    ready_rows: npt.NDArray[np.bool_]
    """Which rows have their entry."""
    failures: dict[int, str]
    """Rows that failed before, and why."""
    samples: Samples
    targets: tuple[Target, ...]
    finder: Reasons

    @cached_property
    def ready(self) -> Numbers:
        """Rows of entries that are there, each entry once."""
        return rows_where(self.wants.first & self.ready_rows)

    @cached_property
    def missing(self) -> Numbers:
        """Rows of entries that are to be made, each entry once."""
        wanted = self.wants.first & ~self.ready_rows
        wanted[list(self.failures)] = False
        return rows_where(wanted)

    @cached_property
    def failed_rows(self) -> npt.NDArray[np.bool_]:
        """Which rows have no entry because it failed before, also where several rows share it."""
        failed = np.zeros_like(self.ready_rows)
        failed[rows_with(self.wants.keys, {self.wants.keys[row].tobytes() for row in self.failures})] = True
        return failed

    def reasons(self, rows: Numbers) -> list[Why]:
        """Why each row has no entry."""
        return self.finder.of(rows)

    @cached_property
    def why(self) -> list[Why]:
        """Why each missing entry is missing, in order."""
        return self.reasons(self.missing)


class Plan:
    """What a build would do: `str(plan)` is the table, `plan.missing` the work. Making one changes nothing.

    Made by `project.plan()`; it describes the moment it was made in.
    """

    def __init__(
        self,
        settings: Settings,
        base: Path,
        store: Store,
        memory: Memory,
        samples: Samples,
        framed: Targets,
        encoders: dict[str, EncoderPlan],
        generation: str = "",
    ) -> None:
        self.settings = settings
        self.base = base
        self.store = store
        self.samples = samples
        self.framed = framed
        self.encoders = encoders
        """The plan of each encoder, by its name in the config."""
        self.generation = generation
        """The store's generation when it was asked what is there: until that changes, what was ready is."""
        self.memory = memory
        """What is remembered about its sources and keys."""

    def pads(self) -> dict[str, int]:
        """What token ids are padded with, by encoder; nobody knows it without the encoders themselves."""
        return {}

    @cached_property
    def ready(self) -> Entries:
        """Entries that are in the store."""
        return Entries([(plan, plan.ready) for plan in self.encoders.values()])

    @cached_property
    def missing(self) -> Entries:
        """Entries that a build would make."""
        return Entries([(plan, plan.missing) for plan in self.encoders.values()])

    @cached_property
    def failed(self) -> tuple[Failure, ...]:
        """Sources that cannot be used, and entries that could not be made before."""
        problems = [problem for concept in self.samples.gathered for problem in concept.problems]
        failures = [Failure(one.reason, one.path, one.concept) for one in (*problems, *self.framed.problems)]
        for plan in self.encoders.values():
            for row, reason in plan.failures.items():
                sample = int(plan.wants.samples[row])
                home, number = self.samples.home(sample) if sample >= 0 else (None, 0)
                failures.append(
                    Failure(
                        reason,
                        home.path(number) if home else None,
                        home.concept.name if home else None,
                        plan.wants.encoding.name,
                        Key(plan.wants.keys[row].tobytes()),
                    )
                )
        return tuple(failures)

    @cached_property
    def forecast(self) -> Forecast:
        """What a build would write, how long it would take, and the space that is left."""
        plans = [plan for plan in self.encoders.values() if len(plan.missing)]
        recipes = {plan.wants.encoding.recipe.digest.bytes: plan.wants.encoding.recipe for plan in plans}
        counts = dict.fromkeys(recipes, 0)
        for plan in plans:
            counts[plan.wants.encoding.recipe.digest.bytes] += len(plan.missing)
        rates = find_rates(list(recipes.values()), self.store, self.memory) if recipes else {}
        return forecast(counts, rates, self.store.path)

    @cached_property
    def complete(self) -> int:
        """How many samples have everything that is wanted of them."""
        return len(complete_samples(self))

    def explain(self, path: str | Path) -> Explanation:
        """Every entry of the samples at a path: its key, its state and, where it is missing, what differs."""
        return explain(self, Path(path))

    def build(self, **options: Any) -> Any:  # noqa: ARG002 - whoever has encoders takes them
        """Encode what is missing; see `precook.Project.build` for the options. The report tells what was done."""
        raise IncompleteError("this plan was made without encoders to build with", hint="use project.plan()")

    def freeze(self) -> Snapshot:
        """Keep the samples and their keys as the dataset's latest snapshot.

        Samples that failed are left out of it. While entries are missing there is nothing to keep: `IncompleteError`;
        nor is there where no sample is left, so that an empty folder takes no older snapshot's place.
        """
        if set(self.encoders) != set(self.settings.encoders):
            raise IncompleteError("a plan of some encoders only cannot be frozen", hint="plan for all of them")
        if len(self.missing):
            raise IncompleteError(f"{len(self.missing):,} entries of {self.settings.dataset} are missing")
        if not self.complete:
            hint = "is the drive mounted? `precook plan` says what is left out, and why"
            raise IncompleteError(f"{self.settings.dataset}: no sample to keep", hint=hint)
        chosen, content = snapshot_content(self)
        keys = np.concatenate([one.wants.keys[one.ready_rows] for one in self.encoders.values()])
        snapshot = self.store.freeze(self.settings.dataset, content, needs=keys, seen=self.generation)
        History(self.settings.dataset, self.samples, self.memory).record(chosen)
        self.store.remember(self.memory)
        return snapshot

    def __str__(self) -> str:
        return show(self)

    def __repr__(self) -> str:
        counts = f"{len(self.ready)} ready, {len(self.missing)} missing, {len(self.failed)} failed"
        return f"<Plan of {self.settings.dataset}: {counts}>"


def make_plan(
    settings: Settings,
    base: Path,
    encodings: list[Encoding],
    store: Store,
    memory: Memory,
    *,
    concepts: Sequence[ConceptSamples] | None = None,
    write: bool = True,
    report: Reporter = SILENT,
    lease: Lease | None = None,
) -> Plan:
    """Look at the sources and say what is missing; with `write`, remember what was learnt on the way.

    `concepts` spares looking at the sources where somebody just has. With a lease, all that is wanted is protected by
    it before it is looked up.
    """
    if concepts is None:
        concepts = collect_sources(settings, base, encodings, store, memory, write=write, report=report)
    samples = Samples(concepts)
    framed = frame(samples, settings.image)
    wanted = [want(encoding, samples, framed, settings.image, settings.text, memory) for encoding in encodings]
    plan = Plan(settings, base, store, memory, samples, framed, {})
    return look_up(plan, wanted, memory, write=write, lease=lease)


def collect_sources(
    settings: Settings,
    base: Path,
    encodings: Sequence[Encoding],
    store: Store,
    memory: Memory,
    *,
    write: bool = True,
    report: Reporter = SILENT,
) -> list[ConceptSamples]:
    """Look at the files of every concept; those whose stamp memory knows are not opened."""

    def save() -> None:
        if write:
            store.remember(memory)

    with_masks = any(encoding.input == "mask" for encoding in encodings)
    try:
        return [
            collect_samples(
                concept,
                base,
                settings.image,
                memory,
                trust=settings.stamps == "trust",
                with_masks=with_masks,
                save=save,
                report=report,
            )
            for concept in settings.concepts
        ]
    finally:
        save()  # whatever was read need not be read again


def look_up(
    plan: Plan, wanted: Sequence[WantedEntries], memory: Memory, *, write: bool = True, lease: Lease | None = None
) -> Plan:
    """The plan of the same samples by what the store has now; the sources are not looked at."""
    store, samples = plan.store, plan.samples
    history = History(plan.settings.dataset, samples, memory)
    failed = read_failures(memory)
    encoders = {}
    generation = store.generation()
    for wants in wanted:
        if lease is not None:
            lease.protect(wants.keys[wants.first])
        ready = find_ready(wants.keys, store, memory)
        failures = {}
        if failed:
            for row in np.flatnonzero(wants.first & ~ready).tolist():
                reason = failed.get(wants.keys[row].tobytes())
                if reason is not None:
                    failures[row] = reason
        finder = Reasons(wants, samples, store, memory, history)
        encoders[wants.encoding.name] = EncoderPlan(wants, ready, failures, samples, plan.framed.targets, finder)
    if write:
        store.remember(memory)
    files.reached("plan.looked_up")
    return Plan(plan.settings, plan.base, store, memory, samples, plan.framed, encoders, generation)
