"""The store against a dict, under random operations, crashes and damage."""

from __future__ import annotations

import shutil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

import precook
from precook.maintain.compact import plan_compact
from precook.maintain.gc import plan_gc
from precook.testing import StoreMachine
from precook.testing.machine import numbers
from tests.support.snapshots import columns


class LocalStoreMachine(StoreMachine):
    """The shipped machine, with everything beside that may happen to a store on a disk."""

    @initialize()
    def start_whole(self) -> None:
        self.flipped: set[str] = set()
        """Packs that were damaged: a key in one of them proves nothing."""

    @rule()
    def crash(self) -> None:
        """The process forgets everything; what lies on the disk is all that is left."""
        if self.writer is not None:
            with self.writer._changed:
                self.writer._groups[-1].entries.clear()
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
        self.finish()
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
            lease.protect(columns([self.key(number) for number in range(8) if number not in doomed]))
            plan_gc(self.store, grace=0).execute()
        for number in doomed:
            assert self.key(number) not in self.store
            if number in self.durable:
                # Without its index a store forgets what was dropped from packs that are still there.
                self.maybe.setdefault(number, []).append(self.durable.pop(number))

    @rule(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), which=st.integers(0, 100))
    def flip(self, position: float, bit: int, which: int) -> None:
        """One bit of one pack changes: its entries may turn into misses, never into something else."""
        self.finish()
        self.store.close()
        packs = sorted(self.path.glob("packs/*/*.safetensors"))
        if packs:
            pack = packs[which % len(packs)]
            data = bytearray(pack.read_bytes())
            data[int(position * len(data))] ^= 1 << bit
            pack.write_bytes(data)
            self.flipped.add(pack.name)
            for number in list(self.durable):
                if self.key(number).bytes in bytes(data) or not self._is_whole(number):
                    self.maybe.setdefault(number, []).append(self.durable.pop(number))
        self.store = precook.open(self.path)

    def _is_whole(self, number: int) -> bool:
        key = self.key(number).bytes
        packs = [pack for pack in self.path.glob("packs/*/*.safetensors") if pack.name not in self.flipped]
        return any(key in pack.read_bytes() for pack in packs)


LocalStoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestStoreLikeADict = LocalStoreMachine.TestCase
