"""A function whose results are kept: only what is new is computed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from precook.encode.results import WrongResultsError, count_results, write_results
from precook.errors import EncodeError, IdentityError, SourceChangedError
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.interrupt import interruption
from precook.store.leaves import has_nan
from precook.store.store import Store
from precook.store.tree import Parts, Tree, take_apart
from precook.values import Key

_PLAIN = (str, bytes, int, float, bool, type(None))
_LOOK = 0.1
"""Seconds between two looks at whether another call is over."""


class Cached:
    """Calls `function` for inputs without a stored result, each once and in batches; answers in the order asked.

    Inputs are str, bytes, numbers, `Path`s (known by their content) and tuples of these. Made with `store.cached`. Safe
    to use from several threads: two that ask for the same miss compute it once.
    """

    def __init__(
        self,
        store: Store,
        function: Callable[[list[Any]], Sequence[Tree]],
        recipe: Recipe,
        *,
        batch_size: int,
        allow_nan: bool,
        tensors: Literal["numpy", "torch"] | None,
    ) -> None:
        if batch_size < 1:
            message = f"batch_size must be at least 1, not {batch_size}"
            raise ValueError(message)
        self._store = store
        self._function = function
        self._recipe = recipe
        self._batch_size = batch_size
        self._allow_nan = allow_nan
        self._tensors: Literal["numpy", "torch"] | None = tensors
        self._pid = -1
        self._lock = threading.Lock()
        self._under_way: dict[Key, _Call] = {}
        """Who computes what just now."""
        self.hits = 0
        """Inputs answered without computing."""
        self.misses = 0
        """Inputs that had to be computed."""

    def __call__(self, inputs: Sequence[Any]) -> list[Tree]:
        """The result for each input, from the store or computed and stored now."""
        if isinstance(inputs, (str, bytes)):
            message = "give a list of inputs, not a single one"
            raise TypeError(message)
        if self._pid != os.getpid():
            # What was under way at a fork is under way in the parent only.
            self._pid, self._lock, self._under_way = os.getpid(), threading.Lock(), {}
        inputs = list(inputs)
        looks = [_look(item) for item in inputs]
        keys = [self._recipe.key(_identity(item, f"input {i}")) for i, item in enumerate(inputs)]
        wanted = {key: (item, look) for key, item, look in zip(keys, inputs, looks, strict=True)}
        computed = 0
        while missing := self._store.missing(wanted):
            call = _Call()
            try:
                mine, others = self._claim(missing, call)
                self._compute([(key, *wanted[key]) for key in mine])
                computed += len(mine)
            finally:
                call.end()
            for other in others:
                other.wait()
        trees = self._store.get_many(keys, tensors=self._tensors)
        with self._lock:
            self.misses += computed
            self.hits += len(inputs) - computed
        return trees

    def _claim(self, missing: list[Key], call: _Call) -> tuple[list[Key], list[_Call]]:
        """Which of the missing keys this call computes, and which calls to wait for instead of the others."""
        with self._lock:
            self._under_way = {key: other for key, other in self._under_way.items() if not other.ended}
            mine = [key for key in missing if key not in self._under_way]
            # Another thread may have stored one between our look and our claim.
            mine = self._store.missing(mine)
            others = list(dict.fromkeys(self._under_way[key] for key in missing if key in self._under_way))
            self._under_way.update(dict.fromkeys(mine, call))
        return mine, others

    def _compute(self, work: list[tuple[Key, Any, Any]]) -> None:
        if not work:
            return
        with self._store.writer() as writer:
            for start in range(0, len(work), self._batch_size):
                batch = work[start : start + self._batch_size]
                parts = self._accept(batch, self._function([item for _, item, _ in batch]))
                keys = [key.bytes for key, _, _ in batch]
                written = write_results(writer, self._recipe, list(zip(keys, parts, strict=True)))
                if written.refused:
                    raise written.refused[0][1]

    def _accept(self, batch: list[tuple[Key, Any, Any]], trees: object) -> list[Parts]:
        """The results of one batch taken apart, if every one of them may be stored."""
        try:
            trees = count_results(trees, len(batch))
        except WrongResultsError as wrong:
            message = f"the encoder returned {wrong.returned} for {len(batch)} inputs; nothing of this batch was stored"
            raise EncodeError(message, hint="return one tree for each input, in a list") from None
        accepted = []
        for (_, item, look), tree in zip(batch, trees, strict=True):
            if _look(item) != look:
                raise SourceChangedError(_first_path(item))
            parts = take_apart(tree)
            # NaN alone: a function of one's own may well return infinities, such as the mask of an attention.
            if not self._allow_nan and any(has_nan(leaf) for leaf in parts.leaves):
                message = f"the encoder returned NaN for {_shown(item)}; nothing of this batch was stored"
                raise EncodeError(message, hint="mend the encoder, or pass allow_nan=True")
            accepted.append(parts)
        return accepted


class _Call:
    """One call of a cached function, for others who want what it computes."""

    def __init__(self) -> None:
        self.ended = False
        self._changed = threading.Event()

    def end(self) -> None:
        """Say that it is over, whatever has become of it."""
        # First of all, in one step: whoever waits must not wait for ever for a call that Ctrl-C ended.
        self.ended = True
        self._changed.set()

    def wait(self) -> None:
        """Wait until it is over."""
        with interruption():
            # Not for the event alone: Ctrl-C may have come between the two steps of its end.
            while not self.ended:
                self._changed.wait(_LOOK)


def _identity(item: Any, where: str) -> Any:
    """What an input is: a path stands for the bytes it leads to."""
    if isinstance(item, Path):
        return digest(item)
    if type(item) is tuple:
        return [_identity(part, f"{where}[{i}]") for i, part in enumerate(item)]
    if type(item) in _PLAIN:
        return item
    kind = type(item).__qualname__
    raise IdentityError(
        where, f"a {kind} cannot be an input", hint="give str, bytes, numbers, Paths or tuples of these"
    )


def _look(item: Any) -> Any:
    """How the files among an input look from outside, to notice a change while they are encoded."""
    if type(item) is tuple:
        return [_look(part) for part in item]
    if not isinstance(item, Path):
        return None
    try:
        status = os.stat(item)  # noqa: PTH116 - beside digest(), which names a missing file
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _first_path(item: Any) -> Path:
    return item if isinstance(item, Path) else next(_first_path(part) for part in item if _look(part))


def _shown(item: Any) -> str:
    text = ascii(str(item) if isinstance(item, Path) else item)
    return text if len(text) <= 80 else text[:77] + "..."  # noqa: PLR2004
