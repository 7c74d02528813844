"""What is being removed or moved when the fault strikes: nothing that is needed may be lost, whatever the moment."""

from __future__ import annotations

import functools
import shutil
from typing import TYPE_CHECKING

import numpy as np

import precook
from precook.maintain.compact import plan_compact
from precook.maintain.evict import plan_evict
from precook.maintain.gc import plan_gc
from precook.maintain.remove import Thresholds

from .samples import RECIPE, check_entries, key_of, tree_of
from .scenarios import StoreScenario, findings, frozen_entries, put, recalled, remember

if TYPE_CHECKING:
    from pathlib import Path

    from .children import Journal


class _Upkeep(StoreScenario):
    """A store with packs of which some entries are needed, some are not, and some lie in two of them."""

    numbers = range(12)
    kept = frozenset({0, 1, 2, 3, 4, 6, 8})
    """What a snapshot names."""
    stays = kept
    """What is there when all is done."""

    def prepare(self, area: Path) -> None:
        """Four packs, the last one with copies; the index knows all of them."""
        cache = area / "cache"
        for name, groups in (("cache", (range(4), range(4, 8), range(8, 12))), ("other", (range(2, 6),))):
            with precook.open(area / name) as store:
                for group in groups:
                    with store.writer() as writer:
                        for number in group:
                            writer.put(key_of(number), tree_of(number), recipe=RECIPE)
        for pack in (area / "other").glob("packs/*/*.safetensors"):
            (cache / "packs" / pack.parent.name).mkdir(exist_ok=True)
            shutil.copyfile(pack, cache / "packs" / pack.parent.name / pack.name)
        shutil.rmtree(area / "other")
        with precook.open(cache) as store:
            store.freeze("cats", frozen_entries(sorted(self.kept)))

    def run(self, area: Path, journal: Journal) -> None:
        """Plan, and do it; twice where the first time fails, as a careful user would."""
        with precook.open(area / "cache") as store:
            step = functools.partial(self.act, store)
            if not journal.commit(step):
                journal.commit(step)

    def act(self, store: precook.Store) -> None:
        """What is done to the store."""
        raise NotImplementedError

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """What a snapshot names is there, bit for bit; in the end nothing else is, and nothing comes back."""
        may_be_damaged = frozenset(self.numbers) if lenient else frozenset()
        with precook.open(area / "cache") as store:
            # In the end all work is done: then what nobody needs is gone.
            there = self.stays if verify or lenient else acked
            problems = check_entries(store, self.numbers, there, may_be_damaged=may_be_damaged)
            if verify:
                problems += findings(store)
                for found in (len(store), store.reindex()):
                    if found != len(self.stays):
                        problems.append(f"{found} entries where there should be {len(self.stays)}")
        if verify:
            problems += [f"{path.name} was left behind" for path in area.rglob("*.partial*")]
        return problems


class Collect(_Upkeep):
    """A collection that unlinks a pack and rewrites others."""

    name = "gc"

    def act(self, store: precook.Store) -> None:
        """Collect all that no snapshot names."""
        plan_gc(store, grace=0).execute()


class Evict(_Upkeep):
    """An eviction down to what is protected."""

    name = "evict"

    def act(self, store: precook.Store) -> None:
        """Evict all that may go."""
        with precook.open(store.path) as other:
            plan_evict(other, 0).execute()


class Leased(_Upkeep):
    """A collection beside a lease, and one when it is over."""

    name = "leased"
    _leased = (9, 10, 11, 5)

    def act(self, store: precook.Store) -> None:
        """Hold some of what no snapshot names, and collect beside it; then let go, and collect."""
        with precook.open(store.path) as other, other.lease("harness") as lease:
            keys = b"".join(key_of(number).bytes for number in self._leased)
            lease.protect(np.frombuffer(keys, np.uint8).reshape(-1, 32))
            # Looked for after they are protected, as everybody has to: another process may have removed some before.
            held = [number for number in self._leased if key_of(number) in other]
            plan_gc(store, grace=0).execute()
            if store.missing([key_of(number) for number in held]):
                raise AssertionError("what a lease protects was removed")
        plan_gc(store, grace=0).execute()


class Compact(_Upkeep):
    """A compaction that merges all packs, without dead rows and copies; some rows are dead before it."""

    name = "compact"
    stays = frozenset(range(11))

    def prepare(self, area: Path) -> None:
        """As above, with everything but one entry needed."""
        super().prepare(area)
        with precook.open(area / "cache") as store:
            store.freeze("cats", frozen_entries(sorted(self.stays)))
            plan_gc(store, grace=0, thresholds=Thresholds(of_pack=2.0)).execute()

    def act(self, store: precook.Store) -> None:
        """Compact."""
        plan_compact(store).execute()

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """Everything is there at any time, and in one pack in the end."""
        problems = super().check(area, self.stays, lenient=lenient, verify=verify)
        packs = len(list((area / "cache").glob("packs/*/*.safetensors")))
        if verify and packs != 1:
            problems.append(f"{packs} packs where there should be one")
        return problems


class Reindex(StoreScenario):
    """An index made anew, of which only the old one says that some rows were removed, and what was remembered."""

    name = "reindex"
    numbers = range(8)
    kept = frozenset(range(6))
    removed = frozenset(range(200, 202))

    def prepare(self, area: Path) -> None:
        """A pack with rows that were removed and lie there still, and something that was remembered."""
        with precook.open(area / "cache") as store:
            with store.writer() as writer:
                for number in sorted(self.kept | self.removed):
                    writer.put(key_of(number), tree_of(number), recipe=RECIPE)
            store.freeze("cats", frozen_entries(sorted(self.kept)))
            plan_gc(store, grace=0, thresholds=Thresholds(of_pack=2.0)).execute()
            remember(store, 0)

    def run(self, area: Path, journal: Journal) -> None:
        """Make the index anew twice, with an entry put each time."""
        with precook.open(area / "cache") as store:
            for number in (6, 7):
                journal.commit(store.reindex)
                put(store, journal, number)

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """What was removed stays so, and what was remembered is known."""
        problems = super().check(area, acked, lenient=lenient, verify=verify)
        with precook.open(area / "cache") as store:
            # A disk that lies may lose either.
            if not lenient:
                back = len(self.removed) - len(store.missing([key_of(number) for number in self.removed]))
                problems += [f"{back} entries that were removed came back"] * bool(back)
                problems += ["what was remembered is lost"] * (not recalled(store, 0))
        if verify:
            problems += [f"{path.name} was left behind" for path in area.rglob("index.sqlite.*")]
        return problems


UPKEEP: dict[str, StoreScenario] = {
    scenario.name: scenario for scenario in (Collect(), Evict(), Leased(), Compact(), Reindex())
}
