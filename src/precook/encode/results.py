"""Results: what an encoder made of a batch is counted, checked and written the same way, whoever has asked for it.

Builds, live feeds, `store.cached` and the fronts of other caches all take these steps; a `Worker` takes the first two
for encoders that run in a `DevicePool`.

1. `count_results(trees, wanted)`: a list with one tree for each input, or what was returned instead.
2. `Acceptance.accept(shapes, trees)`: each tree taken apart, or an `EncodeError` that says what is wrong with it.
   `Acceptance.compare_texts` ends the work of a text model that tells no text from another.
3. `write_results(writer, recipe, results)`: what was accepted goes to the store, and comes back as `Written`.

What an encoder raises is a reason for people by `described`; `is_out_of_memory` and `is_device_lost` say whether it was
the sample's fault at all.
"""

from __future__ import annotations

import sys
import threading
import traceback
import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from precook.errors import EncodeError, PrecookError, TreeError
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.store.commit import ready_entry
from precook.store.leaves import is_finite
from precook.store.tree import Parts, Tree, take_each_apart
from precook.store.writer import Writer
from precook.values import Digest

Shape = tuple[int, ...]

_BITS = b'{"$bits":'
"""How a tree writes a plain float that is not finite; inside of a text the quotes would be escaped."""

_SHOWN = 60
"""Letters of a text that a message shows."""
_BEGINNING = 64
"""Letters of a text that every text model looks at: about twenty tokens, where the shortest take 77."""
_ALIKE = 3
"""Different texts with one result that show a model which tells nothing apart; two may have the same tokens."""

_T = TypeVar("_T", bound=Hashable)


class WrongResultsError(Exception):
    """Not one tree for each input; whoever encodes says it to people in words of its own."""

    def __init__(self, returned: object) -> None:
        super().__init__(returned)
        self.count: int | None = None
        """How many there were; None where it was no list at all."""
        if isinstance(returned, Sequence) and not isinstance(returned, str | bytes):
            self.count = len(returned)
        self.returned = f"a {type(returned).__name__}" if self.count is None else str(self.count)
        """What was returned, in a few words."""


def count_results(trees: object, wanted: int) -> Sequence[Tree]:
    """The trees, if there is one for each input; else `WrongResultsError`."""
    if isinstance(trees, Sequence) and not isinstance(trees, (str, bytes)) and len(trees) == wanted:
        return trees
    raise WrongResultsError(trees)


class Acceptance:
    """Checks the results of one encoder: finite, and alike where the inputs are; safe to use from several threads.

    Entries of one encoder share their nesting, dtypes and ranks; for pictures of the same size the shapes are the same
    too. What most results of the first batch have in common sets the pattern, so that a wrong one that happens to come
    first is the one that fails.
    """

    def __init__(self, encoder: str) -> None:
        self._encoder = encoder
        self._lock = threading.Lock()
        self._skeleton: bytes | None = None
        self._patterns: dict[Shape, tuple[Shape, ...]] = {}
        """The shapes of the leaves, by the shape of the input."""
        self._tells_apart = False
        """Whether two different texts had different results."""
        self._alike: dict[str, str] = {}
        """Texts with the same result, by what no tokenizer may pass over in them."""
        self._mixtures: set[str] = set()
        """Their letters, sorted: the words of a text in another order may be as unknown as in the first."""
        self._captions: set[Hashable] = set()
        """What they were made of: a caption without some of its tags may be as unknown as without others."""
        self._result: Digest | None = None
        """That result."""

    def count(self, trees: object, wanted: int) -> Sequence[Tree]:
        """The results of a batch, if there is one for each item."""
        try:
            return count_results(trees, wanted)
        except WrongResultsError as wrong:
            rest = "instead of a list of results" if wrong.count is None else f"results for {wanted} items"
            raise EncodeError(f"{self._encoder} returned {wrong.returned} {rest}") from None

    def accept(
        self,
        shapes: Sequence[Shape],
        trees: Sequence[Tree],
        *,
        copy: bool = True,
        not_finite: Collection[int] | None = None,
    ) -> list[Parts | EncodeError]:
        """Each result taken apart, or what is wrong with it; without `copy`, in the memory that it came in.

        `shapes` are those of the inputs: results of the same are compared. `()` stands for inputs without one. An empty
        dict, in which a batch would find nothing at all, ends the work: it is raised. `not_finite` are the numbers of
        the results with tensors that are not finite, from whoever has looked at all of them; None where nobody has.
        """
        if any(isinstance(tree, dict) and not tree for tree in trees):
            hint = "return a tensor, or a dict of them by name; nothing of this batch was stored"
            raise EncodeError(f"{self._encoder} returned an empty tree", hint=hint)
        taken = [
            self._checked(parts, not_finite=None if not_finite is None else number in not_finite)
            for number, parts in enumerate(take_each_apart(trees, copy=copy))
        ]
        with self._lock:
            self._set_pattern(shapes, taken)
            return [self._compared(shape, parts) for shape, parts in zip(shapes, taken, strict=True)]

    def compare_texts(
        self,
        texts: Sequence[str],
        results: Sequence[Parts | EncodeError],
        captions: Sequence[Hashable],
        *,
        cut: bool = False,
    ) -> None:
        """End the work of a text model, by an `EncodeError`, that has no tokens for a text or tells no texts apart.

        Texts count by their letters and digits: tokenizers may pass over case, accents, blanks and signs. Those that
        differ later on may be one text for a model that cuts them: only the first letters count, and where the encoder
        says that texts were `cut`, none do. Variations of one of the `captions` count as one text.
        """
        for text, parts in zip(texts, results, strict=True):
            if isinstance(parts, Parts) and any(0 in leaf.shape for leaf in parts.leaves) and _letters(text):
                hint = "look at its tokenizer, and at crop_start; nothing of this batch was stored"
                raise EncodeError(f"{self._encoder} made no tokens of {_quoted(text)}", hint=hint)
        with self._lock:
            if self._tells_apart:
                return
            for text, parts, caption in zip(texts, results, captions, strict=True):
                letters = _letters(text)[:_BEGINNING]
                if isinstance(parts, EncodeError) or not letters:
                    continue
                result = digest(b"".join([parts.values, *(leaf.data.tobytes() for leaf in parts.leaves)]))
                self._result = self._result or result
                if result != self._result:
                    self._tells_apart = True
                    self._alike, self._mixtures, self._captions = {}, set(), set()
                    return
                self._alike.setdefault(letters, text)
                self._mixtures.add("".join(sorted(_letters(text))))
                self._captions.add(caption)
            if min(len(self._alike), len(self._mixtures), len(self._captions)) >= _ALIKE and not cut:
                one, other = list(self._alike.values())[:2]
                message = f"{self._encoder} made the same of {len(self._alike)} different texts"
                hint = "its tokenizer does not know their words: name the one that belongs to the model"
                raise EncodeError(f"{message}, such as {_quoted(one)} and {_quoted(other)}", hint=hint)

    def _checked(self, parts: Parts | TreeError, *, not_finite: bool | None) -> Parts | EncodeError:
        """A result with nothing but finite numbers; `not_finite` is what is known of its tensors, None for nothing."""
        if isinstance(parts, TreeError):
            error = EncodeError(f"{self._encoder} returned what cannot be stored: {parts.message}")
            error.__cause__ = parts
            return error
        if not_finite is not False:
            for path, leaf in zip(parts.paths, parts.leaves, strict=True):
                if not is_finite(leaf):
                    where = f" in {path}" if path else ""
                    return EncodeError(f"{self._encoder} returned numbers that are not finite{where}")
        if not_finite or _BITS in parts.values:
            return EncodeError(f"{self._encoder} returned numbers that are not finite")
        return parts

    def _set_pattern(self, shapes: Sequence[Shape], taken: Sequence[Parts | EncodeError]) -> None:
        new = set(shapes) - self._patterns.keys() - {()}
        if self._skeleton is not None and not new:
            return
        good = [(shape, parts) for shape, parts in zip(shapes, taken, strict=True) if isinstance(parts, Parts)]
        if self._skeleton is None and good:
            self._skeleton = _commonest(parts.skeleton for _, parts in good)
        good = [(shape, parts) for shape, parts in good if parts.skeleton == self._skeleton]
        for shape in new & {shape for shape, _ in good}:
            self._patterns[shape] = _commonest(_leaf_shapes(parts) for other, parts in good if other == shape)

    def _compared(self, shape: Shape, parts: Parts | EncodeError) -> Parts | EncodeError:
        if isinstance(parts, EncodeError):
            return parts
        if parts.skeleton != self._skeleton:
            return EncodeError(f"{self._encoder} returned another nesting or dtype than for the others")
        usual = self._patterns.get(shape)
        if usual is not None and (shapes := _leaf_shapes(parts)) != usual:
            return EncodeError(f"{self._encoder} returned {_shown(shapes)}, for the others {_shown(usual)}")
        return parts


@dataclass(frozen=True, slots=True)
class Written:
    """What became of results that were to be written."""

    keys: list[bytes]
    """Those that the writer has taken."""
    nbytes: int
    """Of their leaves."""
    group: int
    """The writer's group with the last of them: all are durable when it is."""
    refused: list[tuple[int, TreeError]]
    """Which results no pack could hold, by their number, and why."""


def write_results(
    writer: Writer, recipe: Recipe, results: Sequence[tuple[bytes, Parts]], *, made: bytes = b""
) -> Written:
    """Hand accepted results to a writer in one go, each with its key; those that no pack could hold are left out.

    `made` are the versions that they were made with, as they are recorded.
    """
    entries, refused = [], []
    for number, (key, parts) in enumerate(results):
        try:
            entries.append(ready_entry(key, parts, recipe=recipe, made=made))
        except TreeError as error:
            refused.append((number, error))
    group = writer.put_entries(entries)
    return Written([entry.key for entry in entries], sum(entry.parts.nbytes for entry in entries), group, refused)


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was short, on the device or here, as Python and torch say it."""
    message = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in message or "can't allocate memory" in message))
    )


def is_device_lost(error: Exception) -> bool:
    """Whether the device can do no more in this process: after such an error CUDA fails at everything."""
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def described(error: Exception) -> str:
    """An error as the reason of a failure."""
    if isinstance(error, PrecookError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def free_memory(error: Exception) -> None:
    """Let go of what an error holds on the device, so that the next try has room."""
    # Its frames hold on to what they had in the device's memory.
    traceback.clear_frames(error.__traceback__)
    if is_out_of_memory(error):
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()


def _leaf_shapes(parts: Parts) -> tuple[Shape, ...]:
    return tuple(leaf.shape for leaf in parts.leaves)


def _letters(text: str) -> str:
    """What no tokenizer may pass over in a text."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", text.casefold())))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _shown(shapes: tuple[Shape, ...]) -> str:
    return f"shape {shapes[0]}" if len(shapes) == 1 else f"shapes {list(shapes)}"


def _commonest(values: Iterable[_T]) -> _T:
    return Counter(values).most_common(1)[0][0]
