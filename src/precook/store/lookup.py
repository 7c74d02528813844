"""Looking up very many keys at once: one pass through the index, and each pack confirms what it is said to hold.

Nothing is made for a single key. Keys are told apart by how they begin until their pack confirms them whole; what it
does not confirm is left to a look-up key by key, which finds out what is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from precook.store.index import ROW_BITS, Index
from precook.store.keysets import beginnings, split

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

NOWHERE = -1
_DENSE = 6
"""Walking past an entry takes so much less time than looking for one."""
_PAGE = 20_000
"""Keys that are looked for at a time."""


def propose(index: Index, columns: Sequence[Bytes]) -> Numbers:
    """Where the index says each key of some columns lies, one column after the other: a place or `NOWHERE`.

    Of the places of one key the first one in the index's order.
    """
    starts = np.concatenate([np.zeros(0, np.uint64), *(beginnings(keys) for keys in columns)])
    order = np.argsort(starts)
    starts = starts[order]
    found = np.full(len(starts), NOWHERE, np.int64)
    dense = len(starts) * _DENSE > index.places()
    for keys, places in index.walk() if dense else _asked(index, columns, order):
        page = beginnings(keys)
        first, last = np.searchsorted(starts, page), np.searchsorted(starts, page, side="right")
        counts = last - first
        # Each place, once for every time that its key was asked for.
        at = np.repeat(np.arange(len(page)), counts)
        numbers = order[np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts - first, counts)]
        new = found[numbers] == NOWHERE
        # Backwards: of several the first one stays.
        found[numbers[new][::-1]] = places[at[new]][::-1]
    return found


def by_pack(places: Numbers) -> Iterator[tuple[int, Numbers]]:
    """The packs of some places, each with the numbers of those that lie in it, in the order of their rows."""
    order = np.argsort(places)
    order = order[np.searchsorted(places, 0, sorter=order) :]
    packs = places[order] >> ROW_BITS
    edges = np.flatnonzero(np.diff(packs, prepend=-1))
    for begin, end in itertools.pairwise([*edges.tolist(), len(order)]):
        yield int(packs[begin]), order[begin:end]


def _asked(index: Index, columns: Sequence[Bytes], order: Numbers) -> Iterator[tuple[Bytes, Numbers]]:
    """The places of the keys themselves, in the order of the keys: neighbours share the index's pages."""
    edges = np.cumsum([0, *map(len, columns)])
    for at in range(0, len(order), _PAGE):
        numbers = order[at : at + _PAGE]
        keys = np.empty((len(numbers), 32), np.uint8)
        for number, column in enumerate(columns):
            here = (numbers >= edges[number]) & (numbers < edges[number + 1])
            keys[here] = column[numbers[here] - edges[number]]
        listed, _ = index.find_rows(list(dict.fromkeys(split(keys))))
        places = np.array([pack << ROW_BITS | row for _, pack, row in listed], np.int64)
        yield np.frombuffer(b"".join(key for key, _, _ in listed), np.uint8).reshape(-1, 32), places
