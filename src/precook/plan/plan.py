"""The plan: what is ready, what is missing, what failed before, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precook.config.further_pictures import PARTS
from precook.config.messages import did_you_mean
from precook.config.schema import Settings
from precook.errors import ConfigError, ConfigProblem, IncompleteError
from precook.memo.memo import Memory
from precook.plan.dataset import PlannedDataset
from precook.plan.entries import EncoderPlan
from precook.plan.explain import Explanation, explain
from precook.plan.freeze import SpecialTokens, freeze
from precook.plan.ready import find_ready, read_failures
from precook.plan.reasons import History, ReasonFinder
from precook.plan.show import show
from precook.plan.targets import Samples, cut_samples
from precook.plan.versions import find_version_differences
from precook.plan.wanted import Encoding, WantedEntries, want
from precook.report import SILENT, Reporter
from precook.sources.samples import ConceptSamples, collect_samples, stray_problems
from precook.sources.text_samples import collect_texts
from precook.store import files
from precook.store.lease import Lease
from precook.store.snapshot import Snapshot
from precook.store.store import Store


class Plan(PlannedDataset):
    """What a build would do: `str(plan)` is the table, `plan.missing` the work. Making one changes nothing.

    Made by `project.plan()`; it describes the moment it was made in.
    """

    def special_tokens(self) -> dict[str, SpecialTokens]:
        """What texts are padded and end with, by encoder of token ids; nobody knows it without the encoders."""
        return {}

    def explain(self, path: str | Path) -> Explanation:
        """Every entry of the samples at a path: its key, its state and, where it is missing, what differs.

        The first digits of an entry's key or of a sample, at least four, stand for the files behind it.
        """
        return explain(self, Path(path))

    def build(self, **options: Any) -> Any:  # noqa: ARG002 - whoever has encoders takes them
        """Encode what is missing; see `precook.Project.build` for the options. The report tells what was done."""
        raise IncompleteError("this plan was made without encoders to build with", hint="use project.plan()")

    def freeze(self) -> Snapshot:
        """Keep the samples and their keys as the dataset's latest snapshot.

        Samples that failed are left out of it. While entries are missing there is nothing to keep: `IncompleteError`;
        nor is there where no sample is left, so that an empty folder takes no older snapshot's place.
        """
        return freeze(self, self.special_tokens())

    def __str__(self) -> str:
        return show(self)

    def __repr__(self) -> str:
        counts = f"{len(self.ready)} ready, {len(self.missing)} missing, {len(self.failed)} failed"
        return f"<Plan of {self.settings.dataset}: {counts}>"


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

    taken = {part for encoding in encodings for part in encoding.inputs}
    _check_further(settings, encodings)
    try:
        found = [
            collect_samples(
                concept,
                base,
                settings,
                memory,
                taken=taken,
                save=save,
                report=report,
            )
            if concept.texts is None
            else collect_texts(concept, base, settings, memory, save=save, report=report)
            for concept in settings.used_concepts
        ]
    finally:
        save()  # whatever was read need not be read again
    return stray_problems(found)


def _check_further(settings: Settings, encodings: Sequence[Encoding]) -> None:
    """Refuse an encoder that takes a picture which no concept has."""
    known = {name for concept in settings.used_concepts for name in concept.further}
    problems = []
    for encoding in encodings:
        for part in encoding.inputs:
            if part not in (*PARTS, *known):
                hint = f'name it in images of a concept, such as `images: {{{part}: "../{part}/{{stem}}.png"}}`'
                message = f"it takes a picture that no concept has: {part}{did_you_mean(part, [*PARTS, *known])}"
                problems.append(ConfigProblem(f"encoders.{encoding.name}", None, message, hint))
    if problems:
        raise ConfigError(*problems)


def make_plan(
    settings: Settings,
    base: Path,
    encodings: Sequence[Encoding],
    concepts: Sequence[ConceptSamples],
    store: Store,
    memory: Memory,
    *,
    write: bool = True,
    lease: Lease | None = None,
) -> Plan:
    """Say what is missing of the sources as they were collected; with `write`, remember what was learnt on the way.

    With a lease, all that is wanted is protected by it before it is looked up.
    """
    samples = Samples(concepts)
    targets = cut_samples(samples, settings.image)
    wanted = [want(encoding, samples, targets, settings.text, memory) for encoding in encodings]
    plan = Plan(settings, base, store, memory, samples, targets, {})
    return look_up(plan, wanted, memory, write=write, lease=lease)


def look_up(
    plan: Plan, wanted: Sequence[WantedEntries], memory: Memory, *, write: bool = True, lease: Lease | None = None
) -> Plan:
    """The plan of the same samples by what the store has now; the sources are not looked at."""
    store, samples, targets = plan.store, plan.samples, plan.targets
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
        finder = ReasonFinder(wants, samples, store, memory, history)
        encoders[wants.encoding.name] = EncoderPlan(wants, ready, failures, samples, targets.all, finder)
    if write:
        store.remember(memory)
    files.reached("plan.looked_up")
    differences = find_version_differences(encoders.values(), store)
    return Plan(
        plan.settings,
        plan.base,
        store,
        memory,
        samples,
        targets,
        encoders,
        generation,
        version_differences=tuple(differences),
    )
