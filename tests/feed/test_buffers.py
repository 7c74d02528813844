"""The memory of batches: it is used again, and never while anybody can still look at it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precook
from precook.feed.buffers import Buffers
from precook.store.dtypes import DTYPES
from tests.support.projects import Watched, dataset, project

torch = pytest.importorskip("torch", reason="torch is not installed")

SIDE = 256
"""A picture of 196,608 bytes: large enough for its memory to be used again."""


@pytest.fixture
def owner(tmp_path: Path) -> Any:
    """A built project whose entries are the pictures themselves."""
    dataset(tmp_path / "data", 8)
    encoders = {"pixels": Watched("image")}
    with project(tmp_path, image={"resolutions": [f"{SIDE}x{SIDE}"]}, encoders=encoders) as made:
        made.build()
        yield made


@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch["pixels"],
        lambda batch: batch["pixels"][1, 5:, ::2],
        lambda batch: batch["pixels"].view(-1).view(torch.int32),
        lambda batch: batch["pixels"].numpy()[0],
    ],
    ids=["tensor", "slice", "other type", "numpy"],
)
def test_what_is_kept_of_a_batch_stays_as_it_is(owner: precook.Project, part: Callable[[Any], Any]) -> None:
    """A part of a batch that a trainer keeps is the same after two more epochs, whatever became of the rest of it."""
    with owner.feed(batch_size=2) as feed:
        kept = [part(batch) for batch in feed.epoch(0)]
        before = [bytes(memoryview(np.asarray(one))) for one in kept]
        for epoch in (1, 2):
            for batch in feed.epoch(epoch):
                batch["pixels"].zero_()
        assert [bytes(memoryview(np.asarray(one))) for one in kept] == before


def test_a_trainer_may_write_into_a_batch(owner: precook.Project) -> None:
    """An epoch reads the same after a trainer has overwritten every batch of it."""
    with owner.feed(batch_size=2) as feed:
        expected = [batch["pixels"].clone() for batch in feed.epoch(0)]
        for batch in feed.epoch(0):
            batch["pixels"].fill_(7)
        found = [batch["pixels"].clone() for batch in feed.epoch(0)]
    assert len(found) == 4
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_memory_that_was_let_go_is_used_again(library: Any) -> None:
    """The next buffer of about the same size lies where the one before lay, and two that are alive never share."""
    buffers = Buffers(library)
    dtype = DTYPES["F32"]
    _, first = buffers.make(dtype, (64, 1024))
    _, second = buffers.make(dtype, (64, 1024))
    places = {_address(first), _address(second)}
    assert len(places) == 2
    del first, second, _
    gc.collect()
    kept = [buffers.make(dtype, (63, 1024)) for _ in range(3)]
    found = [_address(tensor) for _, tensor in kept]
    assert places < set(found)
    assert len(set(found)) == 3


@pytest.mark.parametrize("name", DTYPES)
def test_large_memory_is_aligned_in_every_type(name: str) -> None:
    """It begins at a page's edge, as entries do that are copied into it, and is of the type and shape asked for."""
    dtype = DTYPES[name]
    if not hasattr(torch, dtype.torch):
        pytest.skip(f"this torch has no {dtype.torch}")
    buffers = Buffers("torch")
    for length in (200_000, 3_000_000):
        array, tensor = buffers.make(dtype, (2, length // dtype.size), fill=0)
        assert (array.dtype, array.shape) == (dtype.bits, (2, length // dtype.size))
        assert (tensor.dtype, tensor.shape) == (dtype.torch_type(), (2, length // dtype.size))
        assert _address(tensor) == array.ctypes.data
        assert _address(tensor) % 4096 == 0
        assert not array.view(np.uint8).any()
        array[1, -1:] = 1
        assert int(tensor.view(torch.uint8).sum()) == int(array.view(np.uint8).sum()) > 0


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.ctypes.data)


@pytest.mark.parametrize("name", DTYPES)
def test_pinned_memory_is_made_in_every_type(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What numpy fills is what the tensor holds. Without a GPU nothing is pinned: that it is asked for is enough."""
    asked = []
    empty = torch.empty

    def unpinned(shape: Any, *, dtype: Any, pin_memory: bool) -> Any:
        asked.append(pin_memory)
        return empty(shape, dtype=dtype)

    dtype = DTYPES[name]
    if not hasattr(torch, dtype.torch):
        pytest.skip(f"this torch has no {dtype.torch}")
    buffers = Buffers("torch", pinned=True)
    monkeypatch.setattr(torch, "empty", unpinned)
    array, tensor = buffers.make(dtype, (3, 4))
    array.reshape(-1).view(np.uint8)[:] = np.arange(12 * dtype.size) % 2
    assert asked == [True]
    assert (array.dtype, array.shape) == (dtype.bits, (3, 4))
    assert (tensor.dtype, tuple(tensor.shape)) == (dtype.torch_type(), (3, 4))
    assert np.array_equal(tensor.view(torch.uint8).numpy().reshape(-1), np.arange(12 * dtype.size) % 2)
