"""Bounds: entries go by size, by age, or because somebody says so."""

from __future__ import annotations

import numpy as np

from precook.errors import NoSnapshotError, StoreError, printable
from precook.identity.canonical import dump_json
from precook.identity.recipe import recipe_digest
from precook.report import SILENT, Reporter
from precook.store.census import Census
from precook.store.eviction import plan_eviction
from precook.store.keysets import in_columns
from precook.store.protection import Protection, Roots, Young
from precook.store.removal import RemovalPlan, Wanted, plan_removal
from precook.store.snapshots import list_snapshots, read_snapshot
from precook.store.store import Store
from precook.store.workings import Workings
from precook.units import format_duration

_DIGITS = 4
"""Digits that a digest is named by, at least."""


def plan_evict(store: Store, max_bytes: int, *, grace: float = 0.0, report: Reporter = SILENT) -> RemovalPlan:
    """What has to go, least recently used first, so that the packs take `max_bytes` at most.

    The latest snapshot of each dataset, pinned snapshots and leases keep what they name. Where that leaves no room,
    `plan.size_after` is larger than what was asked for.
    """
    workings = store.workings(create=False)
    return plan_eviction(workings, max_bytes, grace=grace, touched=workings.reader.touched(), report=report)


def plan_prune(store: Store, older_than: float, *, recipe: str | None = None, report: Reporter = SILENT) -> RemovalPlan:
    """What nobody has written or used for so many seconds, but for what snapshots and leases name.

    With a `recipe`, named as for `plan_clear`, only of what it made.
    """
    workings = store.workings(create=False)
    numbers = [] if recipe is None else _recipe_numbers(store, workings, recipe)
    census = Census(workings.layout, workings.index)
    young = Young(f"used in the last {format_duration(older_than)}", census.now - int(older_than * 1e9))
    return plan_removal(
        workings,
        "prune",
        protection=Protection(workings.layout, Roots()),
        protectors=[young],
        reason=f"not used for {format_duration(older_than)}",
        wanted=None if recipe is None else lambda chunk: np.isin(chunk.recipes, numbers),
        census=census,
        report=report,
    )


def plan_clear(
    store: Store,
    *,
    recipe: str | None = None,
    dataset: str | None = None,
    everything: bool = False,
    report: Reporter = SILENT,
) -> RemovalPlan:
    """What somebody wants to be rid of, however young: one of the three.

    `recipe`: all it made, named by its kind or by the first digits of its digest. `dataset`: its snapshots, and the
    entries that no other dataset names. Leases and pinned snapshots keep what they name.
    """
    if [recipe is not None, dataset is not None, everything].count(True) != 1:
        message = "clear takes one of recipe, dataset and everything"
        raise ValueError(message)
    workings = store.workings(create=False)
    roots, reason, snapshots = Roots(latest=False), "everything", list_snapshots(workings.layout)
    wanted: Wanted | None = None
    if recipe is not None:
        numbers = _recipe_numbers(store, workings, recipe)
        wanted, reason, snapshots = lambda chunk: np.isin(chunk.recipes, numbers), f"made by {recipe}", []
    if dataset is not None:
        snapshots = [file for file in snapshots if file.dataset == dataset]
        if not snapshots:
            raise NoSnapshotError(store.path, dataset)
        keys = in_columns([column for file in snapshots for column in read_snapshot(file).key_columns()])
        roots, wanted = Roots(but=(dataset,)), lambda chunk: keys.among(chunk.starts)
        reason = f"only {dataset} names it"
    return plan_removal(
        workings,
        "clear",
        protection=Protection(workings.layout, roots),
        reason=reason,
        wanted=wanted,
        snapshots=[file for file in snapshots if not file.pinned],
        mind_uses=False,
        report=report,
    )


def _recipe_numbers(store: Store, workings: Workings, recipe: str) -> list[int]:
    """The index's numbers of the recipes that are meant."""
    forms = workings.index.query(lambda db: db.execute("SELECT number, form FROM recipe").fetchall())
    found = [number for number, form in forms if _matches(form, recipe)]
    if not found:
        hint = "`precook status` lists the recipes of a store"
        raise StoreError(store.path, f"no recipe here has the kind or digest {printable(recipe)!r}", hint=hint)
    return found


def _matches(form: bytes, recipe: str) -> bool:
    """Whether a recipe is of this kind, or has a digest that begins so."""
    digest = len(recipe) >= _DIGITS and recipe_digest(form).hex.startswith(recipe.lower())
    return digest or form.startswith(dump_json([recipe])[:-1] + b",")
