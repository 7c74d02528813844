"""Checking: verifications that go on where the last one with the same settings stopped, and are remembered."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from precook.errors import NoSnapshotError
from precook.identity.canonical import canonical
from precook.identity.digests import digest
from precook.report import SILENT, Reporter
from precook.store.index import Place
from precook.store.keysets import split
from precook.store.snapshots import read_snapshot
from precook.store.store import Store
from precook.store.verify import Damage, Selection, Verification

_NOTES = "verify"
_KEPT = 50
"""Passes that are remembered, at the most."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a verification looks at."""

    subset: tuple[int, int] = (1, 1)
    keys: tuple[str, ...] = ()
    """In hexadecimal."""
    recipes: tuple[str, ...] = ()
    """Digests, in hexadecimal."""
    dataset: str | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self == Scope()

    def key(self) -> bytes:
        """What a pass with these settings is remembered by."""
        return digest(canonical(asdict(self))).bytes

    def selection(self, store: Store) -> Selection:
        """The entries that are meant; those of a dataset are what all its snapshots name."""
        keys: set[bytes] | None = {bytes.fromhex(key) for key in self.keys} if self.keys else None
        if self.dataset is not None:
            named = named_keys(store, self.dataset)
            keys = named if keys is None else keys & named
        recipes = frozenset(bytes.fromhex(one) for one in self.recipes) if self.recipes else None
        return Selection(frozenset(keys) if keys is not None else None, recipes)


@dataclass(frozen=True, slots=True)
class Pass:
    """One look at all that was meant, in one run or in several."""

    began: int
    """Unix seconds."""
    finished: int | None
    after: str
    """The last pack that was looked at."""
    packs: int
    damaged: int
    scope: Scope


def check_store(
    store: Store,
    scope: Scope,
    *,
    max_seconds: float | None = None,
    report: Reporter = SILENT,
) -> tuple[Verification, Pass]:
    """Verify, and say how far the pass has come; with `max_seconds` it goes on where the last one stopped."""
    now = int(time.time())
    before = read_pass(store, scope) if max_seconds is not None else None
    if before is None or before.finished is not None:
        before = Pass(now, None, "", 0, 0, scope)
    selection = scope.selection(store)
    found = store.verify(
        subset=scope.subset, max_seconds=max_seconds, selection=selection, after=before.after, report=report
    )
    return found, replace(
        before,
        finished=int(time.time()) if found.finished else None,
        after=found.last,
        packs=before.packs + found.packs,
        damaged=before.damaged + len(found.damage),
    )


def remember_pass(store: Store, done: Pass, damage: Sequence[Damage] = ()) -> None:
    """Keep how far a pass has come, in the index, and which entries it found damaged: from now on they are missing."""
    index = store.workings().index
    for one in damage:
        if one.key is not None and one.row is not None:
            index.mark_damaged(Place(one.key.bytes, one.pack.stem, one.row), one.reason)
    memory = store.memory()
    notes = memory.notes(_NOTES)
    kept = sorted(notes, key=lambda key: _time_of(notes[key]))
    for key in kept[: max(0, len(kept) - _KEPT)]:
        memory.write_note(_NOTES, key, None)
    memory.write_note(_NOTES, done.scope.key(), json.dumps(asdict(done)))
    store.remember(memory)


def read_pass(store: Store, scope: Scope) -> Pass | None:
    """The last pass with these settings."""
    note = store.memory().note(_NOTES, scope.key())
    return _read(note) if note is not None else None


def last_full_pass(store: Store) -> Pass | None:
    """The last time that everything was looked at to the end; a pass under way is not."""
    found = read_pass(store, Scope())
    return found if found is not None and found.finished is not None else None


def unfinished_passes(store: Store) -> list[Pass]:
    """Passes that were begun and can go on."""
    found = [_read(note) for note in store.memory().notes(_NOTES).values()]
    return [one for one in found if one.finished is None]


def _read(note: str) -> Pass:
    form: dict[str, Any] = json.loads(note)
    scope = form.pop("scope")
    return Pass(
        **form,
        scope=Scope(
            (scope["subset"][0], scope["subset"][1]), tuple(scope["keys"]), tuple(scope["recipes"]), scope["dataset"]
        ),
    )


def _time_of(note: str) -> int:
    return int(json.loads(note)["began"])


def named_keys(store: Store, dataset: str) -> set[bytes]:
    """Every entry that a snapshot of this dataset names; `NoSnapshotError` where it has none."""
    files = [file for file in store.snapshots() if file.dataset == dataset]
    if not files:
        raise NoSnapshotError(store.path, dataset)
    keys: set[bytes] = set()
    for file in files:
        keys.update(split(read_snapshot(file).all_keys()))
    return keys
