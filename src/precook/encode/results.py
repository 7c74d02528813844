"""Results: what an encoder returned, accepted only if it may be stored."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from precook.encode.prepare import Job
from precook.errors import EncodeError, TreeError
from precook.store.leaves import is_finite
from precook.store.tree import Parts, Tree, take_apart


class Acceptance:
    """Checks the results of one encoder: finite, and alike where the inputs are; safe to use from several threads.

    Entries of one encoder share their nesting, dtypes and ranks; for pictures of the same size the shapes are the same
    too. The first result sets the pattern.
    """

    def __init__(self, encoder: str) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()
        self._skeleton: bytes | None = None
        self._shapes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    def count(self, trees: object, wanted: int) -> Sequence[Tree]:
        """The results of a batch, if there is one for each item."""
        if not isinstance(trees, Sequence) or isinstance(trees, (str, bytes)):
            raise EncodeError(f"{self._encoder} returned a {type(trees).__name__} instead of a list of results")
        if len(trees) != wanted:
            raise EncodeError(f"{self._encoder} returned {len(trees)} results for {wanted} items")
        return trees

    def accept(self, job: Job, tree: Tree) -> Parts:
        """One result taken apart; `EncodeError` says what is wrong with it."""
        try:
            parts = take_apart(tree)
        except TreeError as error:
            raise EncodeError(f"{self._encoder} returned what cannot be stored: {error.message}") from error
        for path, leaf in zip(parts.paths, parts.leaves, strict=True):
            if not is_finite(leaf):
                name = f" in {path}" if path else ""
                raise EncodeError(f"{self._encoder} returned numbers that are not finite{name}")
        shapes = [leaf.shape for leaf in parts.leaves]
        with self._lock:
            if self._skeleton is None:
                self._skeleton = parts.skeleton
            if parts.skeleton != self._skeleton:
                raise EncodeError(f"{self._encoder} returned another nesting or dtype than before")
            if job.shape and self._shapes.setdefault(job.shape, shapes) != shapes:
                message = f"{self._encoder} returned shapes {shapes} where {self._shapes[job.shape]} came before"
                raise EncodeError(message)
        return parts
