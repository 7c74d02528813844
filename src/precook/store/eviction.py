"""Eviction: the least recently used entries go until the packs fit a size.

Entries of one pack that were last used at one moment are a class: there are few of them, however many entries there
are. All but one of the classes that lose something go whole; of that one the first rows go.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from precook.report import SILENT, Reporter
from precook.store.census import Census, Chunk, Numbers
from precook.store.keysets import KeySet, ManyKeys
from precook.store.protection import Named, Protection, Protector, Roots, Young
from precook.store.removal import RemovalPlan, plan_removal
from precook.store.space import ALL_DEAD, Tally, plan_space
from precook.store.workings import Workings
from precook.units import format_duration

_ATTEMPTS = 8
_STEP = 4096
"""Bytes more that are evicted when a rewritten pack comes out larger than was thought."""


def plan_eviction(
    workings: Workings,
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
    census = Census(workings.layout, workings.index)
    protectors: list[Protector] = []
    if touched is not None:
        protectors.append(Named("used by this run", ManyKeys(len(touched), lambda: iter([touched]))))
    if grace:
        protectors.append(Young(f"younger than {format_duration(grace)}", census.now - int(grace * 1e9)))

    return plan_removal(
        workings,
        "evict",
        protection=Protection(workings.layout, Roots()),
        protectors=protectors,
        reason="least recently used",
        selection=_Oldest(workings, census, max_bytes),
        # Below the limit nothing is rewritten for the sake of it.
        thresholds=ALL_DEAD if int(census.nbytes.sum()) > max_bytes else None,
        census=census,
        report=report,
    )


class _Oldest:
    """The least recently used of those that may go: as few as it takes."""

    def __init__(self, workings: Workings, census: Census, max_bytes: int) -> None:
        self._workings = workings
        self._census = census
        self._max_bytes = max_bytes
        # Classes in the order in which they go: by time, then by pack.
        packs = census.moment_packs
        times = np.maximum(np.minimum(census.moments, census.now), census.born[packs])
        order = np.lexsort((packs, times))
        first = np.append(True, (np.diff(times[order]) != 0) | (np.diff(packs[order]) != 0))[: len(order)]
        self._class_of = np.empty(len(order), np.int64)
        """The class of each moment."""
        self._class_of[order] = np.cumsum(first) - 1
        self._packs = packs[order[first]]
        """The pack of each class."""
        self._open, self._fresh = Tally(census), Tally(census)
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

    def choose(self, tally: Tally) -> tuple[Tally, int, int]:
        """The first of them, until the packs fit."""
        census, max_bytes = self._census, self._max_bytes
        total = int(census.nbytes.sum())
        if total <= max_bytes:
            return Tally(census), 0, 0
        # Without a look at their heads: what a pack takes beside its dead rows.
        gone = tally.rows == 0
        base = int(np.where(gone, 0, census.nbytes - (census.payload - tally.nbytes)).sum())
        freed = np.cumsum(self._nbytes + self._overheads(tally))
        wanted = base - max_bytes
        for _ in range(_ATTEMPTS):
            chosen = self._first(freed, wanted) if wanted > 0 else (Tally(census), 0, 0)
            size = total - plan_space(self._workings, census, tally, chosen[0], ALL_DEAD).freed
            if size <= max_bytes or int(chosen[0].rows.sum()) == int(self._open.rows.sum()):
                break
            wanted += size - max_bytes + _STEP
        return chosen

    def _overheads(self, tally: Tally) -> Numbers:
        """What a pack takes beside its rows goes with the last of them, in the last of its classes."""
        census = self._census
        used = np.flatnonzero(self._rows)
        last = np.full(census.packs, -1)
        last[self._packs[used]] = used
        whole = (last >= 0) & (self._open.rows == tally.rows)
        overheads = np.zeros(len(self._packs), np.int64)
        overheads[last[whole]] = (census.nbytes - census.payload)[whole]
        return overheads

    def _first(self, freed: Numbers, wanted: int) -> tuple[Tally, int, int]:
        """The first of all that may go, until so many bytes are freed; `freed`: by each class and those before it."""
        census = self._census
        victims, entries, nbytes = Tally(census), 0, 0
        cut = int(np.searchsorted(freed, wanted))
        """The class of which only some go."""
        whole = np.bincount(self._packs[:cut], self._nbytes[:cut], minlength=census.packs).astype(np.int64)
        for pack in np.unique(self._packs[: cut + 1]).tolist():
            rows = self._open.rows_of(pack)
            classes = self._class_of[census.moments_of(pack)[rows]]
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
            query = "SELECT row, bytes FROM entry WHERE pack = (SELECT number FROM pack WHERE id = ?)"
            name = bytes.fromhex(self._census.ids[pack])
            # Nothing leads from a pack to its entries but a look at each of them: one, for the one pack that needs it.
            found = dict(self._workings.index.query(lambda db: db.execute(query, (name,)).fetchall()))
            sizes = np.zeros(int(self._census.entries[pack]), np.int64)
            known = [row for row in found if 0 <= row < len(sizes)]
            sizes[known] = [found[row] for row in known]
            self._sizes = pack, sizes
        return self._sizes[1][rows]
