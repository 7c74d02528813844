"""Versions in a plan: which ready entries were made with other versions than today's.

They are told, never made anew by themselves: most versions change no result, and nobody but the user can weigh what
encoding again costs. What the packs recorded stands in the index in short, so a plan without such entries opens none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from precook.identity.versions import VersionChange, compare_versions, describe_changes, join_changes
from precook.plan.entries import EncoderPlan
from precook.store.store import Store
from precook.units import format_count


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """Entries of one encoder that were made with other versions than today's."""

    encoder: str
    entries: int
    """How many of its ready entries."""
    changes: tuple[VersionChange, ...]
    advice: str
    """How to find out whether it matters, and what to do then."""

    def __str__(self) -> str:
        counted = format_count(self.entries, "entry")
        return f"{self.encoder}: {describe_changes(self.changes)} ({counted}); {self.advice}"


def find_version_differences(encoders: Iterable[EncoderPlan], store: Store) -> list[VersionDifference]:
    """Where ready entries were made with other versions than today's, by encoder."""
    compared = [plan for plan in encoders if plan.wants.encoding.versions and plan.ready_rows.any()]
    recorded = store.made_with() if compared else {}
    found = []
    for plan in compared:
        encoding = plan.wants.encoding
        known = recorded.get(encoding.recipe.digest.bytes, ())
        # Of the whole store, and told by the index: whether any entry of this dataset is among them, its packs say.
        if any(compare_versions(made, encoding.versions) for made in known):
            entries, changes = _count_changed(plan, store)
            if entries:
                found.append(VersionDifference(encoding.name, entries, changes, encoding.advice))
    return found


def _count_changed(plan: EncoderPlan, store: Store) -> tuple[int, tuple[VersionChange, ...]]:
    """How many ready entries were made with other versions, and which changed."""
    places = store.places(plan.wants.keys[plan.ready])
    if places is None:
        return 0, ()
    entries, changes = 0, []
    tables, rows = places.locate(np.arange(len(places.keys)))
    for number in np.unique(tables[tables >= 0]).tolist():
        file = places.tables[number]
        recipes, counts = np.unique(file.table.recipes[rows[tables == number]], return_counts=True)
        for recipe, count in zip(recipes.tolist(), counts.tolist(), strict=True):
            made = file.pack.head.made[recipe]
            if changed := compare_versions(json.loads(made), plan.wants.encoding.versions) if made else []:
                entries += count
                changes += changed
    return entries, join_changes(changes)
