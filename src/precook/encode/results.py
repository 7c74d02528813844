"""Results: what an encoder returned, accepted only if it may be stored."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from precook.encode.prepare import Job
from precook.errors import EncodeError, TreeError
from precook.identity.recipe import Recipe
from precook.store.leaves import is_finite
from precook.store.packing import Entry
from precook.store.tree import Parts, Tree, take_apart
from precook.store.writer import ready_entry

_BITS = b'{"$bits":'
"""How a tree writes a plain float that is not finite; inside of a text the quotes would be escaped."""

_T = TypeVar("_T", bound=Hashable)


class Acceptance:
    """Checks the results of one encoder: finite, and alike where the inputs are; safe to use from several threads.

    Entries of one encoder share their nesting, dtypes and ranks; for pictures of the same size the shapes are the same
    too. What most results of the first batch have in common sets the pattern.
    """

    def __init__(self, encoder: str) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()
        self._skeleton: bytes | None = None
        self._shapes: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}

    def count(self, trees: object, wanted: int) -> Sequence[Tree]:
        """The results of a batch, if there is one for each item."""
        if not isinstance(trees, Sequence) or isinstance(trees, (str, bytes)):
            raise EncodeError(f"{self._encoder} returned a {type(trees).__name__} instead of a list of results")
        if len(trees) != wanted:
            raise EncodeError(f"{self._encoder} returned {len(trees)} results for {wanted} items")
        return trees

    def accept(self, batch: Sequence[Job], trees: Sequence[Tree], *, copy: bool = True) -> list[Parts | EncodeError]:
        """Each result taken apart, or what is wrong with it; without `copy`, in the memory that it came in."""
        taken = [self._take(tree, copy=copy) for tree in trees]
        with self._lock:
            self._set_pattern(batch, taken)
            return [self._compared(job, one) for job, one in zip(batch, taken, strict=True)]

    def _take(self, tree: Tree, *, copy: bool) -> Parts | EncodeError:
        try:
            parts = take_apart(tree, copy=copy)
        except TreeError as error:
            return EncodeError(f"{self._encoder} returned what cannot be stored: {error.message}")
        for path, leaf in zip(parts.paths, parts.leaves, strict=True):
            if not is_finite(leaf):
                return EncodeError(
                    f"{self._encoder} returned numbers that are not finite{f' in {path}' if path else ''}"
                )
        if _BITS in parts.values:
            return EncodeError(f"{self._encoder} returned numbers that are not finite")
        return parts

    def _set_pattern(self, batch: Sequence[Job], taken: Sequence[Parts | EncodeError]) -> None:
        new = {job.shape for job in batch} - self._shapes.keys() - {()}
        if self._skeleton is not None and not new:
            return
        good = [(job, parts) for job, parts in zip(batch, taken, strict=True) if isinstance(parts, Parts)]
        if self._skeleton is None and good:
            self._skeleton = _commonest(parts.skeleton for _, parts in good)
        good = [(job, parts) for job, parts in good if parts.skeleton == self._skeleton]
        for shape in new & {job.shape for job, _ in good}:
            self._shapes[shape] = _commonest(_shapes(parts) for job, parts in good if job.shape == shape)

    def _compared(self, job: Job, parts: Parts | EncodeError) -> Parts | EncodeError:
        if isinstance(parts, EncodeError):
            return parts
        if parts.skeleton != self._skeleton:
            return EncodeError(f"{self._encoder} returned another nesting or dtype than for the others")
        usual = self._shapes.get(job.shape)
        if usual is not None and _shapes(parts) != usual:
            return EncodeError(f"{self._encoder} returned {_told(_shapes(parts))}, for the others {_told(usual)}")
        return parts


def ready_entries(results: Sequence[tuple[Job, Parts]], recipe: Recipe) -> tuple[list[Entry], list[tuple[Job, str]]]:
    """Results as entries that are ready to be written; and those that no pack could hold, with the reason."""
    entries, refused = [], []
    for job, parts in results:
        try:
            entries.append(ready_entry(job.entry.key.bytes, parts, recipe=recipe))
        except TreeError as error:
            refused.append((job, error.message))
    return entries, refused


def _shapes(parts: Parts) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in parts.leaves)


def _told(shapes: tuple[tuple[int, ...], ...]) -> str:
    return f"shape {shapes[0]}" if len(shapes) == 1 else f"shapes {list(shapes)}"


def _commonest(values: Iterable[_T]) -> _T:
    return Counter(values).most_common(1)[0][0]
