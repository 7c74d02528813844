"""Sets of rows: they hold what was added, and what lives is the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from precook.maintain.rowset import LivingRows, RowSet

Places = set[tuple[int, int]]


def rowset(scan: Any, places: Places) -> RowSet:
    """A set of these packs and rows, each of ten bytes."""
    made = RowSet(scan)
    packs, rows = np.array(sorted(places), np.int64).reshape(-1, 2).T
    made.add(packs, rows, np.full(len(packs), 10))
    return made


@given(data=st.data(), entries=st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_rows_that_were_added_are_there_and_no_others(data: st.DataObject, entries: list[int]) -> None:
    """By place and by pack, wherever the bits of one pack end and those of the next begin."""
    every = {(pack, row) for pack, count in enumerate(entries) for row in range(count)}
    everything = data.draw(st.sets(st.sampled_from(sorted(every))))
    dropped = data.draw(st.sets(st.sampled_from(sorted(everything)))) if everything else set()
    counts = np.array(entries)
    scan = SimpleNamespace(
        packs=len(entries), entries=counts, first=np.cumsum(counts) - counts, payload=np.array(entries) * 10
    )
    made = rowset(scan, everything)
    living = LivingRows(cast("Any", scan), made, rowset(scan, dropped))
    packs, rows = np.array(sorted(every)).T
    assert made.has(packs, rows).tolist() == [place in everything for place in sorted(every)]
    for pack, count in enumerate(entries):
        here = [row for number, row in sorted(everything - dropped) if number == pack]
        assert living.rows_of(pack).tolist() == here
        assert (living.rows[pack], living.nbytes[pack], living.none[pack]) == (len(here), 10 * len(here), not here)
        assert living.partly_dead[pack] == (0 < len(here) < count)
        if here:
            assert living.dead[pack] == 10 * (count - len(here))
            assert abs(living.dead_share[pack] - (1 - len(here) / count)) < 1e-9
