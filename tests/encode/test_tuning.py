"""Tuning: what a build finds out about an encoder on a device, the next one begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

import precook
from precook.encode.pool import device_name
from precook.encode.tuning import CompileChoice, Tuning, read_tunings, record_tunings
from precook.memo.memo import Memory
from tests.support.projects import Watched, dataset, project

RECIPE = precook.Recipe("tuned", {})


class TestRemembering:
    """What a store knows of an encoder."""

    @pytest.mark.parametrize("takes", ["image", "text"])
    def test_the_next_build_begins_with_the_size_that_was_found(self, tmp_path: Path, takes: str) -> None:
        """What did not fit into memory is not tried once more."""

        def small(batch: list[precook.Item]) -> None:
            if len(batch) > 3:
                raise MemoryError

        dataset(tmp_path / "data", 20)
        first, second = (Watched(takes, on_batch=small) for _ in range(2))
        with project(tmp_path, encoders={"own": first}) as one:
            one.build()
        assert max(map(len, first.batches)) == 8
        dataset(tmp_path / "data", 29)
        with project(tmp_path, encoders={"own": second}) as one:
            assert one.build().encoded == {"own": 9}
        assert {len(batch) for batch in second.batches} == {2, 1}

    @pytest.mark.parametrize("note", ["", "{", "[]", '{"cpu": {"work": {"2x": 3}}}', '{"cpu": {"eager": -1}}', "💥"])
    def test_garbage_is_found_out_again(self, tmp_path: Path, note: str) -> None:
        """A build takes no notice of what it cannot read, and writes over it."""
        dataset(tmp_path / "data", 3)
        with project(tmp_path, encoders={"own": Watched("image")}) as one:
            recipe = one.plan().encoders["own"].wants.encoding.recipe
            one.store.put(RECIPE.key(0), {"x": 1})
            memory = one.store.memory()
            memory.write_note("tuning", recipe.digest.bytes, note)
            one.store.remember(memory)
            assert one.build().encoded == {"own": 3}
            assert list(read_tunings(one.store.memory(), recipe)) == [device_name("cpu")]

    def test_devices_are_remembered_beside_each_other(self) -> None:
        """What a build on one device finds out leaves what is known of another."""
        memory = Memory(None)
        one, other = Tuning(work={"512x768": 7}, eager=2.0), Tuning(work={"": 9}, compiled=3.0, compiling=40.0)
        record_tunings(memory, RECIPE, {"one": one})
        record_tunings(memory, RECIPE, {"other": other})
        assert read_tunings(memory, RECIPE) == {"one": one, "other": other}
        assert (one.sizes, other.sizes) == ({(512, 768): 7}, {(): 9})


KNOWN = Tuning(eager=100.0, compiled=150.0, compiling=10.0)
"""Compiled code takes two thirds of the time: 6,000 items save twice ten seconds."""


class TestCompiling:
    """When an encoder is compiled."""

    def test_on_is_at_once_and_off_never(self) -> None:
        """However little or much there is to do."""
        assert CompileChoice("on", 1, Tuning()).is_due()
        assert CompileChoice("on", None, Tuning()).is_due()
        assert not CompileChoice("off", 10**9, KNOWN).is_due()

    @pytest.mark.parametrize(("expected", "due"), [(2_000, False), (5_900, False), (6_100, True)])
    def test_auto_goes_by_what_is_known(self, expected: int, *, due: bool) -> None:
        """It compiles from the first batch where what there is to do saves clearly more than compiling takes."""
        assert CompileChoice("auto", expected, KNOWN).is_due() == due

    def test_auto_goes_by_the_pace_of_this_build(self) -> None:
        """Where nothing is known it waits for the first batches; what is done already saves nothing any more."""
        choice = CompileChoice("auto", 100_000, Tuning())
        assert not choice.is_due()
        choice.took(100, 1.0, launch=0.0, compiled=False)
        assert choice.is_due(), "1,000 seconds are left, of which a quarter is more than twice a minute"
        choice.took(60_000, 600.0, launch=0.0, compiled=False)
        assert not choice.is_due(), "400 seconds are left"

    def test_auto_leaves_alone_what_compiling_made_no_faster(self) -> None:
        """However much there is to do."""
        assert not CompileChoice("auto", 10**9, Tuning(eager=100.0, compiled=101.0, compiling=1.0)).is_due()

    def test_auto_is_never_without_a_number(self) -> None:
        """As on a CPU, or in a feed that encodes what is missing."""
        choice = CompileChoice("auto", None, KNOWN)
        choice.took(100, 1.0, launch=0.0, compiled=False)
        assert not choice.is_due()

    def test_what_compiling_took_is_no_part_of_the_pace(self) -> None:
        """A launch that takes seconds was compiled in; the others say how fast the code is."""
        choice = CompileChoice("on", None, Tuning())
        choice.took(10, 30.0, launch=29.0, compiled=True)
        choice.took(100, 0.5, launch=0.1, compiled=True)
        found = choice.found({(64, 64): 8 * 64 * 64})
        assert (found.eager, found.compiled, found.compiling) == (None, 200.0, 29.0)
        assert found.sizes == {(64, 64): 8 * 64 * 64}
