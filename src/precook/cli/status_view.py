"""What there is to say about a store, gathered once for people and for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from precook.errors import DamagedPackError, NewerFormatError
from precook.maintain.build_log import Run, read_runs
from precook.maintain.gc import plan_gc
from precook.maintain.usage import Usage, UsagePart, measure_usage
from precook.maintain.verify import VerifyCursor, last_full_verification, unfinished_verifications
from precook.store.lease import Holder
from precook.store.snapshot import SnapshotFile
from precook.store.stats import RecipeStats, Stats
from precook.store.store import Store


@dataclass(frozen=True, slots=True)
class View:
    """What there is to say about a store."""

    stats: Stats
    snapshots: list[SnapshotFile]
    usage: Usage
    reclaimable: int | None
    """Bytes that a collection would free now; None where nobody can say."""
    runs: list[Run]
    failures: int
    leases: list[Holder]
    verified: VerifyCursor | None
    verifying: list[VerifyCursor]

    @property
    def recipes(self) -> list[RecipeStats]:
        """What the recipes made, the largest part first."""
        return sorted(self.stats.recipes, key=lambda recipe: (-recipe.nbytes, recipe.form))

    @property
    def overhead(self) -> int:
        """Bytes that packs take beside the entries."""
        return max(self.stats.pack_bytes - self.stats.payload_bytes, 0)


def look(store: Store) -> View:
    """Look at a store; nothing of it is changed."""
    stats = store.stats()
    again = set(store.missing([key for key, _ in stats.damaged]))
    # What was damaged once and has been made again is no longer news.
    stats = dataclasses.replace(stats, damaged=tuple(one for one in stats.damaged if one[0] in again))
    return View(
        stats=stats,
        snapshots=store.snapshots(),
        usage=measure_usage(store),
        reclaimable=_reclaimable(store),
        runs=read_runs(store),
        failures=len(store.memory().notes("failures")),
        leases=store.leases(),
        verified=last_full_verification(store),
        verifying=unfinished_verifications(store),
    )


def _reclaimable(store: Store) -> int | None:
    try:
        return plan_gc(store).freed
    except (DamagedPackError, NewerFormatError):
        return None  # a snapshot that cannot be read may name anything


def no_store(path: Path) -> View:
    """The view of a store that no build has made yet."""
    stats = Stats(
        path=path,
        format=0,
        id="",
        read_only=False,
        entries=0,
        packs=0,
        payload_bytes=0,
        pack_bytes=0,
        index_bytes=0,
        recipes=(),
        damaged=(),
        bad_packs=(),
    )
    return View(stats, [], Usage((), UsagePart("", 0, 0), (), ()), 0, [], 0, [], None, [])
