"""Devices: batches on their way to a GPU, copied on a stream of their own while the one before is trained on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from precook.errors import FeedError
from precook.store.dtypes import load_torch


def is_cuda(device: str | None) -> bool:
    """Whether a device takes pinned memory."""
    return device is not None and device.split(":")[0] == "cuda"


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything is read for it."""
    torch = load_torch()
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise FeedError(f"torch knows no device {device!r}", hint="name one such as cpu, cuda or cuda:1") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise FeedError(f"{device}: torch finds no GPU here", hint="feed without a device, or on cpu")


_Tree = TypeVar("_Tree")


def on_device(batches: Iterator[_Tree], device: str) -> Iterator[_Tree]:
    """Each batch with its tensors on a device; on a GPU the next copy runs beside the training step."""
    torch = load_torch()
    if not is_cuda(device):
        while handed := [*islice(batches, 1)]:  # not in a variable: only the trainer decides how long a batch lives
            yield _moved(handed.pop(), lambda tensor: tensor.to(device))
        return
    stream = torch.cuda.Stream(device)
    ahead: deque[tuple[_Tree, list[Any], Any]] = deque()

    def start() -> None:
        host = next(batches, None)
        if host is None:
            return
        tensors: list[Any] = []

        def copy(tensor: Any) -> Any:
            tensors.append(tensor.to(device, non_blocking=True))
            return tensors[-1]

        with torch.cuda.stream(stream):
            moved = _moved(host, copy)
            # The host's tensors may go now: torch gives pinned memory away once the copies from it are over.
            ahead.append((moved, tensors, stream.record_event()))

    start()
    while ahead:
        moved, tensors, done = ahead.popleft()
        start()
        now = torch.cuda.current_stream(device)
        now.wait_event(done)
        while tensors:  # to the last one: only the trainer decides how long a batch lives
            # The allocator must not give this memory away before the trainer's stream is done with it.
            tensors.pop().record_stream(now)
        yield moved


_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
"""What has no tensor in it."""


def _moved(tree: Any, move: Callable[[Any], Any]) -> Any:
    """A tree with each of its tensors moved; lists and dicts in it are new ones, but for those of plain values."""
    if isinstance(tree, dict):
        return {name: _moved(part, move) for name, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        # At once, not each for itself: a batch has as many texts as samples, and this is done beside each step.
        if _PLAIN.issuperset(map(type, tree)):
            return tree
        return type(tree)(_moved(part, move) for part in tree)
    return move(tree) if isinstance(tree, load_torch().Tensor) else tree
