"""Writes: entries are gathered and committed together, one pack per commit.

Commits run in threads of their own, so that the caller prepares the next entries while the disk works on the last. Two
of them overlap: the next pack is written while the last one is synced, or the disk would wait for one of them in turn.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from precook import threads
from precook.errors import ClosedStoreError, PrecookError
from precook.interrupt import Condition
from precook.store import exit as exits
from precook.store.commit import MAX_ROWS, MAX_TEXT, header_bytes, labelled_entry, text_bytes
from precook.store.format.build import Entry
from precook.store.format.header import MAX_HEADER
from precook.store.format.pack import MAX_RECIPES
from precook.store.tree import Parts, Tree, take_apart
from precook.values import Key

if TYPE_CHECKING:
    from pathlib import Path

    from precook.identity.recipe import Recipe

_log = logging.getLogger("precook")
COMMITS = 2
"""Groups that are committed at a time: one is written, one is synced. With the one that is filled meanwhile, a writer
holds three of `flush_bytes` at the most; a third commit would take more memory, and the disk is busy already."""
_LOOK_EVERY = 2.0
"""Seconds after which a thread that waits for more entries looks whether it still should."""


class Writer:
    """Puts entries into a store in groups; durable at `flush()` and at the end of the `with` block.

    Safe to use from several threads. A writer that could not store a group says so at the next call and stays failed.
    One that nobody closed is flushed when the process ends by itself, and the log says what it could not store.
    Entries become visible to readers when their group is committed.
    """

    def __init__(
        self, commit: Callable[[list[Entry]], None], root: Path, *, flush_bytes: int, flush_seconds: float
    ) -> None:
        self._commit = commit
        self._root = root
        self._flush_bytes = flush_bytes
        self._flush_seconds = flush_seconds
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)
        self._groups = [_PendingGroup(0)]
        """In the order in which they were begun. The last takes entries; those before it are committed, each by a
        thread of its own, which may have to come for it. One list: with two, Ctrl-C could leave a group in neither."""
        self._wanted = -1
        """Groups up to this number are to be committed without waiting for more."""
        self._hurried = False
        """Whether all of them are."""
        self.durable = -1
        """Groups up to this number are durable; it never moves past one that is not, whichever is first to be."""
        self.seconds = 0.0
        """What commits have taken so far, added up."""
        self._error: PrecookError | None = None
        self._closed = False
        self._threads: set[threading.Thread] = set()
        """Those that commit, and those that wait for the next group."""

    @property
    def usable(self) -> bool:
        """Whether it takes more entries: not closed, not failed, not inherited through a fork."""
        return self._pid == os.getpid() and self._error is None and not self._closed

    def put(
        self, key: Key, tree: Tree, *, recipe: Recipe | None = None, labels: Mapping[str, object] | None = None
    ) -> None:
        """Add an entry; its tensors are copied, so they may be used again at once."""
        self.put_parts(key, take_apart(tree), recipe=recipe, labels=labels)

    def put_parts(
        self, key: Key, parts: Parts, *, recipe: Recipe | None = None, labels: Mapping[str, object] | None = None
    ) -> None:
        """Add an entry that was taken apart already."""
        self.put_entries([labelled_entry(key, parts, recipe=recipe, labels=labels)])

    def put_entries(self, entries: Sequence[Entry]) -> int:
        """Add entries that are ready to be written, in one go; the number of the group that holds the last of them."""
        self._check_process()
        with self._lock:
            self._check_usable()
            group = self._open_group() if entries else self._groups[-1]
            for entry in entries:
                if group.is_full(self._flush_bytes):
                    group = self._open_group()
                if not group.entries:
                    # Only now, as it begins to have an age: waking a thread for every entry costs more than the entry.
                    self._changed.notify_all()
                group.add(entry)
            number = group.number
            if group.is_full(self._flush_bytes):
                self._changed.notify_all()
        if exits.is_ending():
            self.flush()  # as long as somebody waits for it
        return number

    def flush(self) -> None:
        """Return when everything put so far is durable."""
        self.wait(self.flush_soon())

    def wait(self, number: int) -> None:
        """Return when the groups up to this one are durable; they were asked for by `flush_soon`."""
        self._check_process()
        with self._lock:
            self._check_usable()
            while self.durable < number:
                self._wait()

    def flush_soon(self) -> int:
        """Have everything put so far committed without waiting for more; the number of its last group, for `wait`."""
        self._check_process()
        with self._lock:
            self._check_usable()
            group = self._groups[-1]
            self._wanted = group.number if group.entries else group.number - 1
            self._changed.notify_all()
            return self._wanted

    def hurry(self) -> None:
        """Have what was put committed soon, and from now on at once; waits for nothing, not even for the lock.

        For whoever lets go of a writer in the middle of anything, as the garbage collector does.
        """
        self._hurried = True
        if self._pid == os.getpid() and self._lock.acquire(blocking=False):
            try:
                self._changed.notify_all()
            finally:
                self._lock.release()

    def finish(self) -> None:
        """Flush before the process ends; what cannot be stored is told in the log, because nobody asks any more."""
        if self._pid == os.getpid() and not self._closed:
            try:
                self.flush()
            except PrecookError as error:
                _log.error("what was put last could not be stored: %s", error)
                self._join()  # another group may still be on its way

    def close(self) -> None:
        """Flush, and refuse anything after."""
        self._check_process()
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True
            self._join()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Also on the way out of an error: what was put before it is finished work.
        self.close()

    def _join(self) -> None:
        with self._lock:
            left = list(self._threads)
        for thread in left:
            thread.join()

    def _check_process(self) -> None:
        # Before any lock is touched: in a forked child its holder may not exist.
        if self._pid != os.getpid():
            raise ClosedStoreError(self._root, "this writer belongs to the process that was forked")

    def _check_usable(self) -> None:
        if self._error is not None:
            exits.let_go(self)  # the caller knows now
            raise self._error
        if self._closed:
            raise ClosedStoreError(self._root, "this writer is closed")

    def _open_group(self) -> _PendingGroup:
        """The group that takes the next entry, when there is room; somebody is there to commit it."""
        while self._groups[-1].is_full(self._flush_bytes):
            if self._threads and self._has_turn():
                # Handed over, and not waited for until a thread has come for it: beside busy threads that takes long.
                self._hand_over()
            else:
                # A full one waits until one of those before it is done: that bounds the memory.
                self._wait()
        # Before anything is added: nobody would ever commit what a thread that cannot start was to take.
        if len(self._threads) < min(len(self._groups), COMMITS) and not exits.is_ending():
            thread = threading.Thread(target=self._run, name="precook-writer", daemon=True)
            try:
                self._threads.add(thread)
                threads.start(thread)
            except BaseException as error:
                # One that runs all the same, because only the wait for its start was interrupted, sees this and ends.
                self._threads.discard(thread)
                # Where the system gives no second one, the first commits its groups, too, one after the other.
                if not self._threads or not isinstance(error, PrecookError):
                    raise
            exits.hold(self)
        return self._groups[-1]

    def _wait(self) -> None:
        """Wait for a commit; at the end of the process, where no thread may be started, it is done here."""
        if self._threads:
            self._changed.wait()
        else:
            self._threads.add(threading.current_thread())
            try:
                self._run()
            finally:
                self._threads.discard(threading.current_thread())
        self._check_usable()

    def _run(self) -> None:
        """Commit group after group, until there is nothing left to commit or it fails."""
        while (group := self._next_group()) is not None:
            error: PrecookError | None = None
            start = time.monotonic()
            try:
                self._commit(list(group.entries.values()))
            except PrecookError as known:
                error = known
            except BaseException as unknown:  # noqa: BLE001 - handed to the caller at its next call, never dropped
                error = PrecookError(f"storing {len(group.entries)} entries failed: {unknown!r}")
                error.__cause__ = unknown
            with self._lock:
                self.seconds += time.monotonic() - start
                self._groups.remove(group)
                if self._error is None:
                    self._error = error
                elif error is not None:
                    _log.error("another group could not be stored either: %s", error)
                if self._error is None:
                    self.durable = self._groups[0].number - 1
                del group  # or this thread would hold it until there is another
                self._changed.notify_all()

    def _next_group(self) -> _PendingGroup | None:
        """The next group, when it is due; None where there will be none, and the calling thread is to end."""
        with self._lock:
            # A forgotten writer leaves no thread: the next put starts another.
            while (
                threading.current_thread() in self._threads
                and self._error is None
                and (self._groups[-1].entries or len(self._groups) > 1)
            ):
                due = self._is_due()
                if due and self._has_turn():
                    self._hand_over()
                ready = next((group for group in self._groups[:-1] if not group.begun), None)
                if ready is not None:
                    ready.begun = True
                    return ready
                # Not longer than this: who hurries us while we hold the lock can set a flag, and cannot wake us.
                patience = self._patience() if self._groups[-1].entries and not due else _LOOK_EVERY
                self._changed.wait(min(patience, _LOOK_EVERY))
            self._threads.discard(threading.current_thread())
            if not self._threads and self._error is None and not self._groups[-1].entries:
                exits.let_go(self)
            return None

    def _has_turn(self) -> bool:
        """Whether the group at hand may be committed beside those that are being committed."""
        # The first entry under a key stays: one that comes again is only looked at when the first is there.
        *committing, group = self._groups
        return len(committing) < COMMITS and all(group.entries.keys().isdisjoint(other.entries) for other in committing)

    def _hand_over(self) -> None:
        """Have the group at hand committed, and begin another."""
        self._groups.append(_PendingGroup(self._groups[-1].number + 1))
        self._changed.notify_all()

    def _is_due(self) -> bool:
        group = self._groups[-1]
        if not group.entries:
            return False
        wanted = self._hurried or group.number <= self._wanted
        return wanted or group.is_full(self._flush_bytes) or self._patience() == 0

    def _patience(self) -> float:
        """Seconds until the group at hand is committed for its age."""
        return max(0.0, self._groups[-1].since + self._flush_seconds - time.monotonic())


class _PendingGroup:
    """Entries that will be committed together."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun = False
        """Whether a thread has come to commit it."""
        self.entries: dict[bytes, Entry] = {}
        self.since = time.monotonic()
        self._bytes = 0
        self._text = 0
        self._header = 0
        self._skeletons: set[bytes] = set()
        self._recipes: set[tuple[bytes, bytes]] = set()

    def add(self, entry: Entry) -> None:
        """Add an entry; the first under a key stays."""
        if entry.key in self.entries:
            return
        if not self.entries:
            self.since = time.monotonic()
        self.entries[entry.key] = entry
        self._bytes += entry.nbytes
        self._text += text_bytes(entry)
        self._header += len(entry.recipe)
        if (entry.recipe, entry.made) not in self._recipes:
            self._recipes.add((entry.recipe, entry.made))
            self._header += len(entry.made)
        if entry.parts.skeleton not in self._skeletons:
            self._skeletons.add(entry.parts.skeleton)
            self._header += header_bytes(entry)

    def is_full(self, flush_bytes: int) -> bool:
        """Whether the group has reached the size asked for, or one of a pack's limits."""
        return bool(self.entries) and (
            self._bytes >= flush_bytes
            or len(self.entries) >= MAX_ROWS
            or self._text >= MAX_TEXT
            or self._header >= MAX_HEADER // 4
            or len(self._recipes) >= MAX_RECIPES
        )
