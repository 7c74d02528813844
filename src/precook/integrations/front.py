"""What the fronts share: entries of one kind, in a store that others may use too."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from precook.errors import PrecookError
from precook.fs.old_caches import name_old_cache
from precook.identity.recipe import Recipe, recipe_digest
from precook.maintain.build_log import Run, record_run
from precook.maintain.prune import plan_clear, plan_prune
from precook.open_store import open_store
from precook.store import exit as exits
from precook.store.store import Store
from precook.store.tree import Tree
from precook.store.writer import Writer
from precook.values import Key

Place = str | os.PathLike[str] | Store
"""A folder, or a store that is open already and stays its owner's."""

MISSING: Any = object()
"""What `read` gives where there is no entry; None can be an entry."""
BESIDE = "precook"
"""The folder for a store in one that holds another cache's files."""
_Self = TypeVar("_Self", bound="Front")
_log = logging.getLogger("precook")


class Front:
    """Entries of one kind of recipe, written in groups; a context manager, and safe to use from several threads.

    What was put is found at once by this object, and survives the end of the process without another call: a normal
    end, an exception, `sys.exit`, an object that nobody holds any more. It is durable after `flush()` and `close()`,
    and by itself as soon as the store's writer has gathered enough or waited long enough; a kill or `os._exit` before
    that loses what the writer had gathered.
    """

    def __init__(self, place: Place, kind: str, **options: Any) -> None:
        if isinstance(place, Store) and options:
            message = f"{', '.join(options)}: say it to the one who opens the store"
            raise TypeError(message)
        self._owned = not isinstance(place, Store)
        self.store = place if isinstance(place, Store) else open_store(place, **options)
        self._kind = kind
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._writer: Writer | None = None
        self._pending: set[Key] = set()
        self._hurry: weakref.finalize[[], Front] | None = None
        """Called when nobody holds this object any more."""
        exits.remember(self)

    def flush(self) -> None:
        """Return when everything put so far is durable."""
        self._check_process()
        with self._lock:
            if self._writer is None:
                return
            try:
                self._writer.flush()
            except PrecookError:
                self._drop_writer()
                raise
            self._pending.clear()

    def close(self) -> None:
        """Flush, and close the store if this object opened it."""
        try:
            self.flush()
        finally:
            with self._lock:
                writer = self._writer
                self._drop_writer()
            if writer is not None and writer.usable:
                writer.close()
            if self._owned:
                self.store.close()

    def finish(self) -> None:
        """Write down what was read, before the process ends; what was put is the writer's to store."""
        if self._pid == os.getpid():
            self.store.record_uses()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, key: Key) -> Tree:
        """The tree under a key, or `MISSING`; a damaged entry is missing too, and the store tells of it."""
        self._commit_pending(key)
        return self.store.get(key, MISSING)

    def has(self, key: Key) -> bool:
        """Whether there is an entry under a key."""
        self._commit_pending(key)
        return key in self.store

    def write(self, key: Key, tree: Tree, recipe: Recipe) -> None:
        """Put a tree; the first under a key stays."""
        self._check_process()
        with self._lock:
            if self._writer is None:
                self._writer = self.store.writer()
                # At the end of the process the writer is flushed for its own sake.
                self._hurry = weakref.finalize(self, self._writer.hurry)
                self._hurry.atexit = False
            try:
                self._writer.put(key, tree, recipe=recipe)
            except PrecookError:
                if not self._writer.usable:
                    self._drop_writer()
                raise
            self._pending.add(key)

    def totals(self) -> dict[str, tuple[Any, int, int]]:
        """For each recipe of this kind, by its digest: its data, and how many entries and bytes it made."""
        self.flush()
        totals = {}
        for form, entries, nbytes in self.store.totals():
            kind, data = json.loads(form) if form else (None, None)
            if kind == self._kind:
                totals[recipe_digest(form).hex] = (data, entries, nbytes)
        return totals

    def remove(self, *, recipes: Iterable[str] | None = None, older_than: float | None = None) -> int:
        """Remove the entries of this kind, or of some of its recipes; how many there were.

        With `older_than`, only those that nobody has put or read for so many seconds. What a snapshot or a lease names
        stays, and so does everything of another kind.
        """
        removed = 0
        for recipe in self.totals() if recipes is None else recipes:
            if older_than is None:
                plan = plan_clear(self.store, recipe=recipe)
            else:
                plan = plan_prune(self.store, older_than, recipe=recipe)
            removed += plan.execute().entries
        return removed

    def _commit_pending(self, key: Key) -> None:
        """Readers see only what is committed, so what this object put and is asked for already is committed first."""
        self._check_process()
        if key in self._pending:
            self.flush()

    def _drop_writer(self) -> None:
        """A failed writer stays failed; the next put begins anew."""
        if self._hurry is not None:
            self._hurry.detach()
        self._writer = self._hurry = None
        self._pending.clear()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            # After a fork the group that was being gathered is the parent's, and so is whoever held the lock.
            self._pid, self._lock = os.getpid(), threading.RLock()
            self._drop_writer()


class CountingFront(Front):
    """A front that counts what it finds; `precook status` shows the counts of its last runs, one for each object."""

    def __init__(self, place: Place, kind: str, *, old: str, **options: Any) -> None:
        self._root = place.path if isinstance(place, Store) else Path(place)
        super().__init__(place if isinstance(place, Store) else beside_old_cache(self._root, old), kind, **options)
        self._hits = 0
        self._misses = 0
        self._began = time.time()
        self._noted: tuple[int, int] | None = None
        """The counts that the log has."""
        self._note: bytes | None = None
        """Where it has them."""

    @property
    def root(self) -> Path:
        """The folder it was opened with."""
        return self._root

    @property
    def hits(self) -> int:
        """Calls of `get` that found something."""
        return self._hits

    @property
    def misses(self) -> int:
        """Calls of `get` that found nothing."""
        return self._misses

    @property
    def hit_rate(self) -> float:
        """Share of the calls of `get` that found something; 0 before the first."""
        asked = self._hits + self._misses
        return self._hits / asked if asked else 0.0

    def read(self, key: Key) -> Tree:
        """The tree under a key, or `MISSING`; counted."""
        tree = super().read(key)
        # Not under the lock, which a flush holds while the disk works.
        if tree is MISSING:
            self._misses += 1
        else:
            self._hits += 1
        return tree

    def close(self) -> None:
        """Flush, note the counts, and close the store if this object opened it."""
        try:
            self.flush()
            self.note_counts()
        finally:
            super().close()

    def finish(self) -> None:
        """Note the counts and what was read, before the process ends."""
        if self._pid == os.getpid():
            self.note_counts()
        super().finish()

    def note_counts(self) -> None:
        """Have the store's log say what this object has found so far; where there are no entries, there is no store."""
        counts = self._hits, self._misses
        if counts in ((0, 0), self._noted) or self.store.closed:
            return
        hits, misses = counts
        run = Run(int(self._began), self._kind, misses, hits, 0, 0, time.time() - self._began, stopped=False)
        try:
            if len(self.store):
                self._note, self._noted = record_run(self.store, run, instead=self._note), counts
        except PrecookError as error:
            # The folder may be gone, or the disk full: whoever needs to know hears it about what was put.
            _log.debug("the counts of this run are not noted: %s", error)


def beside_old_cache(folder: Path, what: str) -> Path:
    """Where a front keeps its store: in the folder, or in `precook` below it where the cache lies whose place it takes.

    Nothing of that is changed, so going back stays possible; the log says what it is and how to adopt it.
    """
    if not folder.is_dir() or (folder / "store.toml").exists():
        return folder
    if (folder / BESIDE / "store.toml").exists():
        return folder / BESIDE  # also when the old files are gone
    old = name_old_cache(folder)
    if old is None or old.what != what:
        return folder
    if not (folder / BESIDE).exists():
        _log.warning("%s holds %s; what is new goes to %s in it; %s", folder, old.what, BESIDE, old.adopt)
    return folder / BESIDE
