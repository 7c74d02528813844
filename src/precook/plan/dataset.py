"""The planned dataset: its samples, how each is cut, and what every encoder needs and has of it at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np

from precook.config.schema import Settings
from precook.identity.recipe import Recipe
from precook.memo.memo import Memory
from precook.plan.entries import EncoderPlan, Entries, Failure
from precook.plan.forecast import Forecast, find_rates, forecast
from precook.plan.targets import Samples, Targets
from precook.plan.versions import VersionDifference
from precook.plan.wanted import NOBODY
from precook.store.store import Store
from precook.values import Key, Numbers


@dataclass(frozen=True, eq=False, repr=False)
class PlannedDataset:
    """Everything that a plan knows; `precook.Plan` adds what can be done with it."""

    settings: Settings
    base: Path
    """What the paths of the config are relative to."""
    store: Store
    memory: Memory
    """What is remembered about its sources and keys."""
    samples: Samples
    targets: Targets
    encoders: dict[str, EncoderPlan]
    """The plan of each encoder, by its name in the config."""
    generation: str = ""
    """The store's generation when it was asked what is there: until that changes, what was ready is."""
    not_loaded: dict[str, str] = field(default_factory=dict)
    """Encoders that are classes of the config's own and were not to be loaded, with what they use; nothing of them is
    planned."""
    version_differences: tuple[VersionDifference, ...] = ()
    """Ready entries that were made with other versions of libraries, or of an encoder's own code, than today's."""

    @cached_property
    def ready(self) -> Entries:
        """Entries that are in the store."""
        return Entries([(encoder, encoder.ready) for encoder in self.encoders.values()])

    @cached_property
    def missing(self) -> Entries:
        """Entries that a build would make."""
        return Entries([(encoder, encoder.missing) for encoder in self.encoders.values()])

    @cached_property
    def failed(self) -> tuple[Failure, ...]:
        """Sources that cannot be used, and entries that could not be made before."""
        problems = [problem for concept in self.samples.by_concept for problem in concept.problems]
        problems += self.targets.problems
        failures = [Failure(problem.reason, problem.path, problem.concept) for problem in problems]
        for encoder in self.encoders.values():
            wants = encoder.wants
            for row, reason in encoder.failures.items():
                sample, path, concept = int(wants.samples[row]), None, None
                if sample != NOBODY:
                    concept_samples, number = self.samples.in_concept(sample)
                    path, concept = concept_samples.path(number), concept_samples.concept.name
                failures.append(Failure(reason, path, concept, wants.encoding.name, Key(wants.keys[row].tobytes())))
        return tuple(failures)

    @cached_property
    def forecast(self) -> Forecast:
        """What a build would write, how long it would take, and the space that is left."""
        recipes: dict[bytes, Recipe] = {}
        counts: dict[bytes, int] = {}
        for encoder in self.encoders.values():
            if len(encoder.missing):
                recipe = encoder.wants.encoding.recipe
                recipes[recipe.digest.bytes] = recipe
                counts[recipe.digest.bytes] = counts.get(recipe.digest.bytes, 0) + len(encoder.missing)
        rates = find_rates(list(recipes.values()), self.store, self.memory) if recipes else {}
        return forecast(counts, rates, self.store.path)

    @cached_property
    def complete(self) -> int:
        """How many samples have everything that is wanted of them."""
        return len(self.complete_samples())

    def complete_samples(self, *, missing: bool = False) -> Numbers:
        """Samples of which nothing failed, and nothing is missing unless that is allowed."""
        complete = self.targets.kept.copy()
        for encoder in self.encoders.values():
            lacking = encoder.wants.samples[encoder.failed_rows if missing else ~encoder.ready_rows]
            complete[lacking[lacking != NOBODY]] = False
        return np.flatnonzero(complete)

    def full_path(self, failure: Failure) -> str | None:
        """Where a failure's file lies, as a path that `precook explain` takes; None where no file is to blame."""
        for concept in self.samples.by_concept:
            if failure.path is not None and concept.concept.name == failure.concept:
                return str(PurePath(concept.listing.root, failure.path))
        return failure.path
