"""`precook reindex`: the index made anew."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.commands import flip, read_only, run
from tests.support.snapshots import packs


class TestReindex:
    """`precook reindex`."""

    def test_it_makes_the_index_anew(self, store: Path) -> None:
        """A lost index costs nothing but this command."""
        (store / "index.sqlite").unlink()
        assert re.fullmatch(r"indexed 6 entries of 2 packs in .*\n", run("reindex", "--store", store).out)
        assert (store / "index.sqlite").stat().st_size > 0
        found = run("reindex", "--store", store, "--json").document
        assert (found["version"], found["entries"], found["packs"]) == (1, 6, 2)

    def test_it_makes_no_store(self, tmp_path: Path) -> None:
        """Where there is no store there is none afterwards."""
        assert run("reindex", "--store", tmp_path / "nothing").code == 10
        assert not (tmp_path / "nothing").exists()

    def test_a_pack_that_cannot_be_used_is_a_warning(self, store: Path) -> None:
        """The rest is indexed, and the pack that was left out is named on stderr."""
        victim = packs(store)[0]
        flip(victim, 60)
        ended = run("reindex", "--store", store)
        assert ended.code == 0
        assert ended.err.startswith("warning: ")
        assert victim.stem in ended.err
        assert "indexed 3 entries of 1 pack in" in ended.out

    def test_a_read_only_store_is_refused(self, store: Path) -> None:
        """Exit code 13 where the directory cannot be written to."""
        with read_only(store):
            ended = run("reindex", "--store", store)
        assert ended.code == 13
        assert "cannot be written" in ended.err
