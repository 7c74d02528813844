"""Bounds: entries go by size, by age, or because somebody says so."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from precook.errors import NoSnapshotError, StoreError, StoreFullError, printable
from precook.identity.canonical import dump_json
from precook.identity.recipe import recipe_digest
from precook.maintain.protect import Named, Protection, Protector, Roots, Young
from precook.maintain.remove import ALL_DEAD, RemovalPlan, RowSet, Wanted, plan_removal, plan_space
from precook.report import SILENT, Reporter
from precook.store.index.scan import Chunk, EntryScan
from precook.store.internals import StoreInternals
from precook.store.keysets import KeySet, ManyKeys, in_columns
from precook.store.snapshot import list_snapshots, read_snapshot
from precook.store.store import Store
from precook.units import format_duration, format_size
from precook.values import Numbers

_ATTEMPTS = 8
_STEP = 4096
"""Bytes more that are evicted when a rewritten pack comes out larger than was thought."""
_SLACK = 10
"""Where entries are evicted, so that a tenth of the store is free after: each time costs a look at all of them."""
_TRIES = 3
"""How often room is looked for."""


def make_room(internals: StoreInternals, nbytes: int, max_bytes: int) -> None:
    """Evict what was used least recently so that a pack of this size fits; `StoreFullError` where nothing may go.

    What this process has written or read is not touched: a run that does not fit stops before it eats itself.
    """
    target = max_bytes - nbytes
    least = max(0, target - max_bytes // _SLACK)
    # More than once: what was to go may be spared, because others have come to need it, and they write, too.
    for _ in range(_TRIES):
        size = internals.index.pack_bytes()
        if size <= target:
            return
        touched = internals.reader.touched()
        plan = plan_eviction(internals, least, touched=touched)
        if least < plan.size_after <= target:
            # The slack is not to be had: no more goes than must.
            plan = plan_eviction(internals, target, touched=touched)
        size = plan.size_after
        if size > target:
            break
        plan.execute(SILENT)
        size = internals.index.pack_bytes()
    if size > target:
        taken, asked = format_size(size), format_size(nbytes)
        message = f"max_bytes is {format_size(max_bytes)}: {taken} are protected and {asked} are to be written"
        raise StoreFullError(internals.layout.root, message)


def plan_eviction(
    internals: StoreInternals,
    max_bytes: int,
    *,
    grace: float = 0.0,
    touched: KeySet | None = None,
    report: Reporter = SILENT,
) -> RemovalPlan:
    """What has to go so that all packs together take `max_bytes` at most.

    Where protection leaves no room, `plan.size_after` is larger. The latest snapshot of each dataset, pinned ones and
    leases keep what they name; so does this run what it has `touched`.
    """
    scan = EntryScan(internals.layout, internals.index)
    protectors: list[Protector] = []
    if touched is not None:
        protectors.append(Named("used by this run", ManyKeys(len(touched), lambda: iter([touched]))))
    if grace:
        protectors.append(Young(f"younger than {format_duration(grace)}", scan.now - int(grace * 1e9)))

    return plan_removal(
        internals,
        "evict",
        protection=Protection(internals.layout, Roots()),
        protectors=protectors,
        reason="least recently used",
        selection=_Oldest(internals, scan, max_bytes),
        # Below the limit nothing is rewritten for the sake of it.
        thresholds=ALL_DEAD if int(scan.nbytes.sum()) > max_bytes else None,
        scan=scan,
        report=report,
    )


class _Oldest:
    """The least recently used of those that may go: as few as it takes."""

    def __init__(self, internals: StoreInternals, scan: EntryScan, max_bytes: int) -> None:
        self._internals = internals
        self._scan = scan
        self._max_bytes = max_bytes
        # Classes in the order in which they go: by time, then by pack.
        packs = scan.moment_packs
        times = np.maximum(np.minimum(scan.moments, scan.now), scan.born[packs])
        order = np.lexsort((packs, times))
        first = np.append(True, (np.diff(times[order]) != 0) | (np.diff(packs[order]) != 0))[: len(order)]
        self._class_of = np.empty(len(order), np.int64)
        """The class of each moment."""
        self._class_of[order] = np.cumsum(first) - 1
        self._packs = packs[order[first]]
        """The pack of each class."""
        self._open, self._fresh = RowSet(scan), RowSet(scan)
        self._rows, self._nbytes, self._fresh_bytes = np.zeros((3, len(self._packs)), np.int64)
        """What may go of each class, and the bytes of those that are the first place of their key."""
        self._sizes: tuple[int, Numbers] = (-1, self._rows)
        """A pack, and the bytes of its rows."""

    def offer(self, chunk: Chunk, open_: npt.NDArray[np.bool_]) -> None:
        """Count some that may go."""
        self._rows += self._by_class(chunk, open_)
        self._nbytes += self._by_class(chunk, open_, chunk.nbytes)
        self._fresh_bytes += self._by_class(chunk, open_ & chunk.fresh, chunk.nbytes)
        for tally, some in ((self._open, open_), (self._fresh, open_ & chunk.fresh)):
            tally.add(chunk.packs[some], chunk.rows[some], chunk.nbytes[some])

    def _by_class(self, chunk: Chunk, some: npt.NDArray[np.bool_], nbytes: Numbers | None = None) -> Numbers:
        classes = self._class_of[chunk.moments[some]]
        weights = nbytes[some] if nbytes is not None else None
        return np.bincount(classes, weights, minlength=len(self._packs)).astype(np.int64)

    def choose(self, tally: RowSet) -> tuple[RowSet, int, int]:
        """The first of them, until the packs fit."""
        scan, max_bytes = self._scan, self._max_bytes
        total = int(scan.nbytes.sum())
        if total <= max_bytes:
            return RowSet(scan), 0, 0
        # Without a look at their heads: what a pack takes beside its dead rows.
        gone = tally.rows == 0
        base = int(np.where(gone, 0, scan.nbytes - (scan.payload - tally.nbytes)).sum())
        freed = np.cumsum(self._nbytes + self._overheads(tally))
        wanted = base - max_bytes
        for _ in range(_ATTEMPTS):
            chosen = self._first(freed, wanted) if wanted > 0 else (RowSet(scan), 0, 0)
            size = total - plan_space(self._internals, scan, tally, chosen[0], ALL_DEAD).freed
            if size <= max_bytes or int(chosen[0].rows.sum()) == int(self._open.rows.sum()):
                break
            wanted += size - max_bytes + _STEP
        return chosen

    def _overheads(self, tally: RowSet) -> Numbers:
        """What a pack takes beside its rows goes with the last of them, in the last of its classes."""
        scan = self._scan
        used = np.flatnonzero(self._rows)
        last = np.full(scan.packs, -1)
        last[self._packs[used]] = used
        whole = (last >= 0) & (self._open.rows == tally.rows)
        overheads = np.zeros(len(self._packs), np.int64)
        overheads[last[whole]] = (scan.nbytes - scan.payload)[whole]
        return overheads

    def _first(self, freed: Numbers, wanted: int) -> tuple[RowSet, int, int]:
        """The first of all that may go, until so many bytes are freed; `freed`: by each class and those before it."""
        scan = self._scan
        victims, entries, nbytes = RowSet(scan), 0, 0
        cut = int(np.searchsorted(freed, wanted))
        """The class of which only some go."""
        whole = np.bincount(self._packs[:cut], self._nbytes[:cut], minlength=scan.packs).astype(np.int64)
        for pack in np.unique(self._packs[: cut + 1]).tolist():
            rows = self._open.rows_of(pack)
            classes = self._class_of[scan.moments_of(pack)[rows]]
            goes = classes < cut
            size = int(whole[pack])
            if cut < len(freed) and pack == self._packs[cut]:
                inside = np.flatnonzero(classes == cut)
                sizes = self._row_bytes(pack, rows[inside])
                short = wanted - int(freed[cut - 1] if cut else 0)
                # The last of them takes with it what the pack takes beside its rows.
                count = min(int(np.searchsorted(np.cumsum(sizes), short)) + 1, len(inside))
                goes[inside[:count]] = True
                size += int(sizes[:count].sum())
                fresh = self._is_fresh(pack, rows[inside[:count]])
                nbytes += int(sizes[:count][fresh].sum())
            victims.add_pack(pack, rows[goes], size)
            entries += int(self._is_fresh(pack, rows[goes]).sum())
        return victims, entries, nbytes + int(self._fresh_bytes[:cut].sum())

    def _is_fresh(self, pack: int, rows: Numbers) -> npt.NDArray[np.bool_]:
        return self._fresh.has(np.full(len(rows), pack), rows)

    def _row_bytes(self, pack: int, rows: Numbers) -> Numbers:
        """Bytes of some rows of a pack, as the index knows them; the pack itself may be unreadable."""
        if self._sizes[0] != pack:
            # Slow, and done for the one pack that needs it.
            self._sizes = pack, self._internals.index.row_sizes(self._scan.ids[pack], int(self._scan.entries[pack]))
        return self._sizes[1][rows]


_DIGITS = 4
"""Digits that a digest is named by, at least."""


def plan_evict(store: Store, max_bytes: int, *, grace: float = 0.0, report: Reporter = SILENT) -> RemovalPlan:
    """What has to go, least recently used first, so that the packs take `max_bytes` at most.

    The latest snapshot of each dataset, pinned snapshots and leases keep what they name. Where that leaves no room,
    `plan.size_after` is larger than what was asked for.
    """
    internals = store.internals(create=False)
    return plan_eviction(internals, max_bytes, grace=grace, touched=internals.reader.touched(), report=report)


def plan_prune(store: Store, older_than: float, *, recipe: str | None = None, report: Reporter = SILENT) -> RemovalPlan:
    """What nobody has written or used for so many seconds, but for what snapshots and leases name.

    With a `recipe`, named as for `plan_clear`, only of what it made.
    """
    internals = store.internals(create=False)
    numbers = [] if recipe is None else _recipe_numbers(store, internals, recipe)
    scan = EntryScan(internals.layout, internals.index)
    young = Young(f"used in the last {format_duration(older_than)}", scan.now - int(older_than * 1e9))
    return plan_removal(
        internals,
        "prune",
        protection=Protection(internals.layout, Roots()),
        protectors=[young],
        reason=f"not used for {format_duration(older_than)}",
        wanted=None if recipe is None else lambda chunk: np.isin(chunk.recipes, numbers),
        scan=scan,
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
    internals = store.internals(create=False)
    roots, reason, snapshots = Roots(latest=False), "everything", list_snapshots(internals.layout)
    wanted: Wanted | None = None
    if recipe is not None:
        numbers = _recipe_numbers(store, internals, recipe)
        wanted, reason, snapshots = lambda chunk: np.isin(chunk.recipes, numbers), f"made by {recipe}", []
    if dataset is not None:
        snapshots = [file for file in snapshots if file.dataset == dataset]
        if not snapshots:
            raise NoSnapshotError(store.path, dataset)
        keys = in_columns([column for file in snapshots for column in read_snapshot(file).key_columns()])
        roots, wanted = Roots(but=(dataset,)), lambda chunk: keys.among(chunk.starts)
        reason = f"only {dataset} names it"
    return plan_removal(
        internals,
        "clear",
        protection=Protection(internals.layout, roots),
        reason=reason,
        wanted=wanted,
        snapshots=[file for file in snapshots if not file.pinned],
        mind_uses=False,
        report=report,
    )


def _recipe_numbers(store: Store, internals: StoreInternals, recipe: str) -> list[int]:
    """The index's numbers of the recipes that are meant."""
    found = [number for number, form in internals.index.recipes().items() if _matches(form, recipe)]
    if not found:
        hint = "`precook status` lists the recipes of a store"
        raise StoreError(store.path, f"no recipe here has the kind or digest {printable(recipe)!r}", hint=hint)
    return found


def _matches(form: bytes, recipe: str) -> bool:
    """Whether a recipe is of this kind, or has a digest that begins so."""
    digest = len(recipe) >= _DIGITS and recipe_digest(form).hex.startswith(recipe.lower())
    return digest or form.startswith(dump_json([recipe])[:-1] + b",")
