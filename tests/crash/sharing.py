"""What can be interrupted when datasets are handed on and stores mended: export, import, repair."""

from __future__ import annotations

import functools
import shutil
from typing import TYPE_CHECKING

import precook
from precook.maintain.bundle import export_bundle, import_bundle
from precook.maintain.repair import plan_repair
from precook.store.snapshot import read_snapshot

from .samples import RECIPE, key_of, tree_of
from .scenarios import StoreScenario, findings, flip_bit, frozen_entries, put

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .children import Journal

_SNAPSHOT = 100
"""Stands for the snapshot among the numbers that are acknowledged."""


def _fill(cache: Path, numbers: Iterable[int], *, dataset: Iterable[int] = ()) -> None:
    """A store with these entries, and a dataset of some of them."""
    with precook.open(cache) as store:
        with store.writer() as writer:
            for number in numbers:
                writer.put(key_of(number), tree_of(number), recipe=RECIPE)
        if named := list(dataset):
            store.freeze("cats", frozen_entries(named))


class Import(StoreScenario):
    """An archive of several packs, some of whose entries are there already, comes into a store."""

    name = "import"
    numbers = range(8)
    kept = frozenset(range(4))

    def prepare(self, area: Path) -> None:
        """The archive, and a store with some of its entries and others."""
        _fill(area / "source", range(2, 8), dataset=range(2, 8))
        with precook.open(area / "source") as store:
            export_bundle(store, "cats", area / "in.tar", pack_bytes=2000)
        shutil.rmtree(area / "source")
        _fill(area / "cache", range(4))

    def run(self, area: Path, journal: Journal) -> None:
        """Import it, and once more after an error."""

        def step() -> None:
            try:
                stream = (area / "in.tar").open("rb")
            except OSError as error:  # nothing of the store's: the command says so, too
                raise precook.StoreReadError(area / "in.tar", str(error)) from error
            with stream:
                import_bundle(store, stream)

        with precook.open(area / "cache") as store:
            if not journal.commit(step, *range(2, 8), _SNAPSHOT):
                journal.commit(step, *range(2, 8), _SNAPSHOT)

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """A snapshot is only there when everything it names is."""
        problems = super().check(area, acked & frozenset(self.numbers), lenient=lenient, verify=verify)
        with precook.open(area / "cache") as store:
            files = store.snapshots()
            if not files and (verify or _SNAPSHOT in acked) and not lenient:
                problems.append("the snapshot is lost")
            for file in files:
                try:
                    keys = [precook.Key(row.tobytes()) for row in read_snapshot(file).entry_keys()]
                except precook.DamagedPackError as error:
                    problems += [] if lenient else [str(error)]
                    continue
                if not lenient and (lost := store.missing(keys)):
                    problems.append(f"the snapshot names {len(lost)} entries that are not there")
        if verify and any((area / "cache").glob("imports/*")):
            problems.append("staged packs were left behind")
        return problems


class Export(StoreScenario):
    """A dataset goes out, in several packs; what is there before the end is not taken for an archive."""

    name = "export"
    numbers = range(6)
    kept = frozenset(range(6))

    def prepare(self, area: Path) -> None:
        """A store with a dataset, and the archive as it has to become."""
        _fill(area / "cache", range(6), dataset=range(6))
        with precook.open(area / "cache") as store:
            export_bundle(store, "cats", area / "expected.tar", pack_bytes=2000)

    def run(self, area: Path, journal: Journal) -> None:
        """Export it, and once more after an error."""
        with precook.open(area / "cache") as store:
            step = functools.partial(export_bundle, store, "cats", area / "out.tar", pack_bytes=2000, force=True)
            if not journal.commit(step, _SNAPSHOT):
                journal.commit(step, _SNAPSHOT)

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """An archive that is there is whole, and one that was acknowledged is there."""
        problems = super().check(area, acked & frozenset(self.numbers), lenient=lenient, verify=verify)
        written = area / "out.tar"
        if written.exists():
            if not lenient and written.read_bytes() != (area / "expected.tar").read_bytes():
                problems.append("the archive is not what it has to be")
        elif (verify or _SNAPSHOT in acked) and not lenient:
            problems.append("the archive is lost")
        return problems


class Repair(StoreScenario):
    """A pack went bad: a repair drops two entries of it and removes a pack that cannot be read; they are put again."""

    name = "repair"
    numbers = range(9)
    spoilt = frozenset({2, 3, 7, 8})
    kept = frozenset({0, 1, 4, 5, 6})

    def prepare(self, area: Path) -> None:
        """Three packs; in one two entries lose a bit, another loses its head."""
        cache = area / "cache"
        for group in (range(4), range(4, 7), range(7, 9)):
            _fill(cache, group)
        with precook.open(cache) as store:
            headless = store.locate(key_of(7)).pack
        for number, leaf in ((2, tree_of(2)["hidden"]), (3, tree_of(3))):
            flip_bit(cache, leaf.tobytes(), f"entry {number}")
        content = bytearray(headless.read_bytes())
        content[30] ^= 1
        headless.write_bytes(content)

    def run(self, area: Path, journal: Journal) -> None:
        """Verify, repair, and put what is missing."""
        with precook.open(area / "cache") as store:
            journal.commit(lambda: plan_repair(store, store.verify()).execute())
            for number in self.numbers:
                if key_of(number) not in store:
                    put(store, journal, number)

    def check(self, area: Path, acked: frozenset[int], *, lenient: bool = False, verify: bool = False) -> list[str]:
        """Nothing sound is lost on the way, and afterwards nothing damaged is found."""
        problems = super().check(area, acked, lenient=lenient)
        if verify:
            with precook.open(area / "cache") as store:
                problems += findings(store)
                if missing := store.missing([key_of(number) for number in self.numbers]):
                    problems.append(f"{len(missing)} entries are missing")
            problems += [f"{path.name} was left behind" for path in area.rglob("*.partial*")]
        return problems


SHARING: dict[str, StoreScenario] = {scenario.name: scenario for scenario in (Import(), Export(), Repair())}
