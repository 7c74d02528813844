"""Pruning and clearing: entries go by age, or because somebody wants to be rid of them."""

from __future__ import annotations

from precook.errors import NoSnapshotError, StoreError, printable
from precook.identity.canonical import dump_json
from precook.identity.recipe import recipe_digest
from precook.maintain.protect import ProtectedAge, Protection, Roots
from precook.maintain.remove import RemovalPlan, find_candidates, plan_removal
from precook.report import SILENT, Reporter
from precook.store.index.scan import EntryScan
from precook.store.internals import StoreInternals
from precook.store.keysets import ManyKeys, in_columns
from precook.store.snapshot import SnapshotFile, list_snapshots, read_snapshot, with_snapshots
from precook.store.store import Store
from precook.units import format_duration

_DIGITS = 4
"""Digits that a digest is named by, at least."""


def plan_prune(store: Store, older_than: float, *, recipe: str | None = None, report: Reporter = SILENT) -> RemovalPlan:
    """What nobody has written or used for so many seconds, but for what snapshots and leases name.

    With a `recipe`, named as for `plan_clear`, only of what it made.
    """
    store.check_removable("prune")
    internals = store.internals(create=False)
    recipes = None if recipe is None else _recipe_forms(internals, recipe)
    scan = EntryScan(internals.layout, internals.index)
    young = ProtectedAge(f"used in the last {format_duration(older_than)}", scan.now - int(older_than * 1e9))
    candidates = find_candidates(scan, Protection(internals.layout, Roots()), [young], recipes=recipes, report=report)
    reason = f"not used for {format_duration(older_than)}"
    return plan_removal(internals, "prune", candidates, candidates.all(), reason=reason)


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
    store.check_removable("clear")
    internals = store.internals(create=False)
    roots, reason, snapshots = Roots(latest=False), "everything", list_snapshots(internals.layout)
    recipes, keys = None, None
    if recipe is not None:
        recipes, reason, snapshots = _recipe_forms(internals, recipe), f"made by {recipe}", []
    if dataset is not None:
        snapshots, keys = with_snapshots(internals.layout, lambda listed: _named_by(dataset, listed))
        if not snapshots:
            raise NoSnapshotError(store.path, dataset)
        roots, reason = Roots(but=(dataset,)), f"only {dataset} names it"
    scan = EntryScan(internals.layout, internals.index)
    candidates = find_candidates(scan, Protection(internals.layout, roots), recipes=recipes, keys=keys, report=report)
    return plan_removal(
        internals,
        "clear",
        candidates,
        candidates.all(),
        reason=reason,
        snapshots=[file for file in snapshots if not file.pinned],
        spare_used=False,
    )


def _named_by(dataset: str, listed: list[SnapshotFile]) -> tuple[list[SnapshotFile], ManyKeys]:
    """The snapshots of a dataset, and what they name."""
    files = [file for file in listed if file.dataset == dataset]
    return files, in_columns([column for file in files for column in read_snapshot(file).key_columns()])


def _recipe_forms(internals: StoreInternals, recipe: str) -> list[bytes]:
    """The canonical forms of the recipes of a kind, or with a digest that begins so."""
    digest = recipe.lower() if len(recipe) >= _DIGITS else None
    kind = dump_json([recipe])[:-1] + b","
    forms = [
        form
        for form in internals.index.recipes().values()
        if form.startswith(kind) or (digest is not None and recipe_digest(form).hex.startswith(digest))
    ]
    if not forms:
        hint = "`precook status` lists the recipes of a store"
        message = f"no recipe here has the kind or digest {printable(recipe)!r}"
        raise StoreError(internals.layout.root, message, hint=hint)
    return forms
