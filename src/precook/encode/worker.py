"""Workers: what the engine asks of an encoder, and whom it tells what came of it."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from precook.encode.batching import BatchSize
from precook.encode.encoder import Item
from precook.encode.prepare import Job
from precook.errors import EncodeError, PrecookError, TreeError
from precook.identity.recipe import Recipe
from precook.store.format.build import Entry
from precook.store.leaves import is_finite
from precook.store.tree import Parts, Tree, take_apart
from precook.store.writer import ready_entry


class RunnableEncoder(Protocol):
    """The part of an encoder that does the work.

    One for texts may have `length(text)`, what a text costs, or `lengths(texts)` for many at once, so that texts of
    similar cost are encoded together; and `truncated`, how many texts it has cut to fit. One that can hand a GPU the
    next batch before the last is back has `stage(batch)`, see `StagedBatch`; `stage`, `launch`, `land` and
    `lengths` are then called from different threads, for different batches. One that says `gives_away = True` does not
    touch a tree any more once it has returned it, nor the memory under it: so it is kept without a copy.
    """

    def load(self, device: str) -> None:
        """Called before the first batch."""

    def encode(self, batch: list[Item]) -> list[Tree]:
        """One tree for each item."""

    def unload(self) -> None:
        """Let go of the device."""


class StagedBatch(Protocol):
    """A batch on its way through a device."""

    def launch(self) -> None:
        """Tell the device all that it has to do, without waiting for it: `stage` did what may have to wait."""

    def land(self) -> list[Tree]:
        """One tree for each item, when they are there; trees may lie side by side in one piece of memory."""


class Sink(Protocol):
    """Where results go; called from any thread of the crew, once for each job unless the work ends early."""

    def store(self, results: Sequence[tuple[Job, Parts]]) -> None:
        """Keep results of a batch; those that no pack could hold fail, and no others."""

    def fail(self, job: Job, reason: str, *, lasting: bool) -> None:
        """Note that an entry could not be made; `lasting` if trying again would give the same."""

    def batch_done(self, seconds: float) -> None:
        """Everything that came of a batch was told; to encode it took so long."""


def out_of_memory(error: Exception) -> bool:
    """Whether memory was short, on the device or here, as Python and torch say it."""
    said = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said))
    )


def device_lost(error: Exception) -> bool:
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
    if out_of_memory(error):
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()


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


_log = logging.getLogger("precook")

Trees = Sequence[Tree]


class Worker:
    """Encodes batches, and tells the sink what comes of each item; as safe for several threads as its worker is."""

    def __init__(
        self,
        encoder: str,
        worker: RunnableEncoder,
        size: BatchSize,
        acceptance: Acceptance,
        sink: Sink,
        *,
        over: Callable[[], bool],
    ) -> None:
        self._encoder = encoder
        self.worker = worker
        self.size = size
        self._acceptance = acceptance
        self._sink = sink
        self.over = over
        """Whether nothing more is to be encoded."""
        self._copy = not getattr(worker, "gives_away", False)

    def run(self, jobs: list[Job]) -> None:
        """Encode jobs, batch after batch, each told before the next is begun."""
        for batch in self.batches(self.ordered(jobs)):
            self.encode(batch)

    def ordered(self, jobs: list[Job]) -> list[Job]:
        """Jobs in the order in which they are encoded: texts by length, so that little is padded."""
        if jobs[0].item.text is None:
            return jobs
        lengths = _lengths(self.worker, [job.item.text or "" for job in jobs])
        # The longest first: if one batch does not fit into memory, the first one shows it.
        return [jobs[at] for at in sorted(range(len(jobs)), key=lambda at: -lengths[at])]

    def batches(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """Jobs in batches of the size of the moment, until nothing more is to be encoded."""
        at = 0
        while at < len(jobs) and not self.over():
            batch = jobs[at : at + self.size.now]
            at += len(batch)
            yield batch

    def encode(self, batch: list[Job]) -> None:
        """Encode a batch and tell what came of it."""
        start = time.perf_counter()
        trees = self.attempt(batch, lambda: self.worker.encode([job.item for job in batch]))
        if isinstance(trees, Exception):
            self.failed(batch, trees)
            return
        seconds = time.perf_counter() - start
        results = self._acceptance.accept(batch, trees, copy=self._copy)
        # Without the storing: a slow disk says nothing about the encoder.
        self.size.took(len(batch), work(batch), time.perf_counter() - start)
        self._tell(batch, results)
        self._sink.batch_done(seconds)

    def landed(self, batch: list[Job], trees: Trees, seconds: float) -> None:
        """Accept and tell the results of a batch that took the device so long."""
        self.size.took(len(batch), work(batch), seconds)
        self._tell(batch, self._acceptance.accept(batch, trees, copy=self._copy))
        self._sink.batch_done(seconds)

    def failed(self, batch: list[Job], error: Exception) -> None:
        """A batch that failed as a whole: only what fails again, alone, fails for good."""
        # Once for the whole batch, not for its pieces: one item too large for any size must not slow the others.
        if out_of_memory(error):
            self.size.too_large(len(batch))
        start = time.perf_counter()
        self._encode_pieces(batch, error)
        self._sink.batch_done(time.perf_counter() - start)

    def attempt(self, batch: list[Job], encode: Callable[[], object]) -> Trees | Exception:
        """The trees of a batch, or what the encoder raised; a device that is lost ends the work."""
        try:
            return self._acceptance.count(encode(), len(batch))
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for us
            failure = error
        _log.debug("%s failed on a batch of %d", self._encoder, len(batch), exc_info=failure)
        free_memory(failure)
        if device_lost(failure) and not out_of_memory(failure):
            message = f"{self._encoder}: the device failed at {batch[0].entry.path}: {described(failure)}"
            raise EncodeError(message, hint="look at the device, then build again: what was encoded is kept")
        return failure

    def _encode_pieces(self, batch: list[Job], error: Exception) -> None:
        """A batch that failed: in halves if memory was short, else one by one, so that only the bad one fails."""
        step = max(1, len(batch) // 2) if out_of_memory(error) else 1
        for at in range(0, len(batch), step):
            if self.over():
                return
            piece = batch[at : at + step]
            trees = self.attempt(piece, lambda piece=piece: self.worker.encode([job.item for job in piece]))  # type: ignore[misc]
            if not isinstance(trees, Exception):
                self._tell(piece, self._acceptance.accept(piece, trees, copy=self._copy))
            elif len(piece) > 1:
                self._encode_pieces(piece, trees)
            else:
                # Memory may be there next time; of anything else its content is thought to be the cause.
                self._sink.fail(piece[0], described(trees), lasting=not out_of_memory(trees))

    def _tell(self, batch: Sequence[Job], results: Sequence[Parts | EncodeError]) -> None:
        """Tell the sink what came of a batch; what is good first, because a sink may end the work at what is not."""
        told = list(zip(batch, results, strict=True))
        self._sink.store([(job, result) for job, result in told if not isinstance(result, EncodeError)])
        for job, result in told:
            if isinstance(result, EncodeError):
                self._sink.fail(job, result.message, lasting=True)


def work(batch: Sequence[Job]) -> float:
    """How much there was to encode: the pixels, or texts as long as the longest, to which the others are padded."""
    if batch[0].item.text is None:
        return float(sum(job.nbytes for job in batch))
    return float(len(batch) * max(1, *(job.nbytes for job in batch)))


def _lengths(worker: RunnableEncoder, texts: list[str]) -> list[int]:
    """What each text costs."""
    many = getattr(worker, "lengths", None)
    if callable(many):
        try:
            return list(many(texts))
        except Exception:  # noqa: BLE001 - one by one it shows which of them it was
            _log.debug("%d texts cannot be measured together", len(texts), exc_info=True)
    measure = getattr(worker, "length", None)
    return [_length(measure, text) for text in texts] if callable(measure) else [len(text) for text in texts]


def _length(measure: Callable[[str], object], text: str) -> int:
    """What a text costs. Where the encoder cannot even measure it, it will say so when it encodes it."""
    try:
        return int(measure(text))  # type: ignore[call-overload, no-any-return]
    except Exception:  # noqa: BLE001 - told when the text is encoded
        return 0
