"""The store against a dict, under random operations, crashes and damage."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import precook
from precook.maintain.compact import plan_compact
from precook.maintain.gc import plan_gc
from tests.support.snapshots import columns
from tests.support.trees import same, trees

RECIPE = precook.Recipe("model", {})
numbers = st.integers(0, 7)


class StoreMachine(RuleBasedStateMachine):
    """Every answer of the store is what a dict would answer, or a miss where damage was done."""

    @initialize()
    def start(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="precook-model-")) / "cache"
        self.store = precook.open(self.path)
        self.durable: dict[int, Any] = {}
        """What was acknowledged."""
        self.pending: dict[int, Any] = {}
        """What the open writer has been given and not yet acknowledged."""
        self.maybe: dict[int, list[Any]] = {}
        """What may be there: put before a crash, or damaged since."""
        self.flipped: set[str] = set()
        """Packs that were damaged: a key in one of them proves nothing."""
        self.writer: precook.Writer | None = None

    def _new_writer(self) -> precook.Writer:
        self.writer = self.writer or self.store.writer(flush_bytes=1 << 30, flush_seconds=3600)
        return self.writer

    def _acknowledge(self, number: int, tree: Any) -> None:
        # The first result for a key stays; after damage or a crash either may be the first.
        if number not in self.durable:
            if number in self.maybe:
                found = self.store.get(RECIPE.key(number))
                assert any(same(found, other) for other in [*self.maybe.pop(number), tree])
                tree = found
            self.durable[number] = tree

    @rule(number=numbers, tree=trees)
    def put(self, number: int, tree: Any) -> None:
        self.store.put(RECIPE.key(number), tree, recipe=RECIPE)
        self._acknowledge(number, tree)

    @rule(number=numbers, tree=trees)
    def write(self, number: int, tree: Any) -> None:
        self._new_writer().put(RECIPE.key(number), tree)
        self.pending.setdefault(number, tree)

    @rule()
    def flush(self) -> None:
        self._new_writer().flush()
        for number, tree in self.pending.items():
            self._acknowledge(number, tree)
        self.pending = {}

    @rule(read_only=st.booleans())
    def reopen(self, read_only: bool) -> None:
        self._finish()
        self.store.close()
        if read_only and self.path.exists():
            with precook.open(self.path, read_only=True) as store:
                self._check(store)
        self.store = precook.open(self.path)

    @rule()
    def crash(self) -> None:
        """The process forgets everything; what lies on the disk is all that is left."""
        if self.writer is not None:
            with self.writer._changed:
                self.writer._group.entries.clear()
                self.writer._changed.notify_all()
            self.writer = None
        for number, tree in self.pending.items():
            if number not in self.durable:
                self.maybe.setdefault(number, []).append(tree)
        self.pending = {}
        copy = self.path.with_name("copy")
        if self.path.exists():
            shutil.copytree(self.path, copy)
            self.store.close()
            shutil.rmtree(self.path)
            copy.rename(self.path)
        self.store = precook.open(self.path)

    @rule()
    def delete_index(self) -> None:
        self._finish()
        self.store.close()
        for file in self.path.glob("index.sqlite*"):
            file.unlink()
        self.store = precook.open(self.path)

    @rule()
    def reindex(self) -> None:
        if self.path.exists():
            self.store.reindex()

    @rule()
    def compact(self) -> None:
        if self.path.exists():
            plan_compact(self.store).execute()

    @rule(doomed=st.sets(numbers))
    def collect(self, doomed: set[int]) -> None:
        """Everything that was acknowledged is leased but for some: exactly those are gone, and may come back only."""
        if not self.path.exists():
            return
        with self.store.lease("model") as lease:
            lease.protect(columns([RECIPE.key(number) for number in range(8) if number not in doomed]))
            plan_gc(self.store, grace=0).execute()
        for number in doomed:
            assert RECIPE.key(number) not in self.store
            if number in self.durable:
                # Without its index a store forgets what was dropped from packs that are still there.
                self.maybe.setdefault(number, []).append(self.durable.pop(number))

    @rule(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), which=st.integers(0, 100))
    def flip(self, position: float, bit: int, which: int) -> None:
        """One bit of one pack changes: its entries may turn into misses, never into something else."""
        self._finish()
        self.store.close()
        packs = sorted(self.path.glob("packs/*/*.safetensors"))
        if packs:
            pack = packs[which % len(packs)]
            data = bytearray(pack.read_bytes())
            data[int(position * len(data))] ^= 1 << bit
            pack.write_bytes(data)
            self.flipped.add(pack.name)
            for number in list(self.durable):
                if RECIPE.key(number).bytes in bytes(data) or not self._is_whole(number):
                    self.maybe.setdefault(number, []).append(self.durable.pop(number))
        self.store = precook.open(self.path)

    def _is_whole(self, number: int) -> bool:
        key = RECIPE.key(number).bytes
        packs = [pack for pack in self.path.glob("packs/*/*.safetensors") if pack.name not in self.flipped]
        return any(key in pack.read_bytes() for pack in packs)

    def _finish(self) -> None:
        if self.writer is not None:
            self.flush()
            self.writer.close()
            self.writer = None

    @invariant()
    def answers_like_a_dict(self) -> None:
        if hasattr(self, "store"):
            self._check(self.store)

    def _check(self, store: precook.Store) -> None:
        for number, tree in self.durable.items():
            assert RECIPE.key(number) in store
            assert same(store.get(RECIPE.key(number)), tree)
        for number in set(range(8)) - set(self.durable):
            try:
                found = store.get(RECIPE.key(number))
            except precook.MissingEntryError:
                continue
            candidates = [*self.maybe.get(number, []), *([self.pending[number]] if number in self.pending else [])]
            assert any(same(found, other) for other in candidates)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self._finish()
            self.store.close()
            shutil.rmtree(self.path.parent)


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestStoreLikeADict = StoreMachine.TestCase
