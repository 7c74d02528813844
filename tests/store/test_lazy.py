"""Lazy leaves: torch takes them for tensors, reads them when it uses them, and holds nothing of them afterwards."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

import precook
from tests.support.commands import environment
from tests.support.stores import watch_reads
from tests.support.trees import same

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def tensor() -> Any:
    return torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def reads(store: precook.Store, tensor: Any, recipe: precook.Recipe, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was read of the store since it was asked for the leaf."""
    done = watch_reads(monkeypatch)
    store.put(recipe.key(1), {"x": tensor})
    done.clear()
    return done


@pytest.fixture
def lazy(reads: list[object], store: precook.Store, recipe: precook.Recipe) -> Any:
    return store.get(recipe.key(1), lazy=True)["x"]


@pytest.fixture
def small_limit(lazy: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything is large."""
    monkeypatch.setattr("precook.store.lazy_torch.LARGE", 1)
    return


USES: dict[str, Callable[[Any], Any]] = {
    "to": lambda x: x.to(torch.float16),
    "to another": lambda x: torch.ones(2, dtype=torch.float16).to(x),
    "float": lambda x: x.half().float(),
    "type_as": lambda x: x.type_as(torch.zeros(1, dtype=torch.bfloat16)),
    "stack": lambda x: torch.stack([x, x]),
    "cat": lambda x: torch.cat([x, x.clone()]),
    "cat of other dimension": lambda x: torch.cat([x, x], dim=2),
    "add": lambda x: 1 + x + x,
    "scale": lambda x: (x - 0.5) * 2 / 3,
    "matmul": lambda x: x @ x.mT,
    "index": lambda x: x[1],
    "index from the end": lambda x: x[-1][0][None],
    "slice": lambda x: x[1:3],
    "steps": lambda x: x[::2, 1],
    "ellipsis": lambda x: x[..., None, 0],
    "rows": lambda x: x[[2, 0]],
    "mask": lambda x: x[x > 0],
    "rows of a tensor": lambda x: x[torch.tensor([1, 1])],
    "iteration": list,
    "unbind": lambda x: x.unbind(1),
    "split": lambda x: torch.split(x, 2),
    "view": lambda x: x.view(-1),
    "permute": lambda x: x.permute(2, 0, 1).contiguous().view(5, -1),
    "turned": lambda x: x.mT.clone(),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "like": torch.zeros_like,
    "new": lambda x: x.new_ones(2),
    "max": lambda x: x.max(dim=1).values,
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "equal": lambda x: (x == x.clone()).all(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "count_nonzero": torch.count_nonzero,
    "repeat": lambda x: x[:1].repeat(3, 1, 1),
    "copy_": lambda x: torch.empty_like(x).copy_(x),
    "linear": lambda x: torch.nn.functional.linear(x, torch.ones(2, 5)),
    "interpolate": lambda x: torch.nn.functional.interpolate(x[None], scale_factor=2),
    "no dropout": lambda x: torch.nn.functional.dropout(x, training=False),
    "operator": lambda x: torch.ops.aten.mul.Tensor(x, 2),
    "view operator": lambda x: torch.ops.aten.view.default(x, [-1]),
    "safetensors": lambda x: safetensors.torch.load(safetensors.torch.save({"x": x}))["x"],
    "collate": lambda x: torch.utils.data.default_collate([x, x]),
    "autocast": lambda x: autocast(lambda: torch.nn.functional.linear(x, torch.ones(2, 5))),
    "einsum": lambda x: torch.einsum("abc,abc->a", x, x),
    "broadcast": lambda x: torch.broadcast_tensors(x, torch.zeros(2, 1, 1, 1)),
    "foreach": lambda x: torch._foreach_add([x, x], 1),
    "new of data": lambda x: torch.ones(1).new_tensor(x.tolist()),
    "full of data": lambda x: torch.ones(1).new_full((2,), x[0, 0, 0]),
    "filled with": lambda x: torch.full_like(torch.ones(2), x[0, 0, 0]),
    "like, filled with": lambda x: torch.full_like(x, x[0, 0, 1]),
    "copied": lambda x: x.to(torch.float32, copy=True),
    "named arguments": lambda x: torch.clone(input=torch.cat(tensors=[torch.mul(input=x, other=2)], dim=0)),
    "flags": lambda x: x.to("cpu", torch.float32, False, True),
    "counted": lambda x: torch.numel(input=x),
    "one of a row": lambda x: x[1, ..., None],
    "where": lambda x: torch.where(x > 0, x, 0.0),
}


def autocast(call: Callable[[], Any]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return call()


def loaded(value: Any) -> Any:
    """A result with its lazy tensors loaded."""
    if isinstance(value, (list, tuple)):
        return type(value)([loaded(item) for item in value])
    return value.load() if isinstance(value, precook.LazyTensor) else value


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[precook.Store, precook.Key]]:
    """A store with one tensor that many tests read."""
    key = precook.Recipe("lent", {}).key(1)
    with precook.open(tmp_path_factory.mktemp("lent") / "cache") as store:
        store.put(key, torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1)))
        yield store, key


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("name", USES)
def test_a_lazy_tensor_is_used_like_any_other(
    name: str, large: bool, lent: tuple[precook.Store, precook.Key], tensor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call gives what the tensor itself would have given: the same type, shape and elements."""
    if large:
        monkeypatch.setattr("precook.store.lazy_torch.LARGE", 1)
    store, key = lent
    assert same(loaded(USES[name](store.get(key, lazy=True))), USES[name](tensor))


def test_a_lazy_tensor_is_a_tensor_that_is_known_without_reading(lazy: Any, tensor: Any, reads: list[object]) -> None:
    """Shape, type, size and place are answered by what the pack's head says."""
    assert isinstance(lazy, torch.Tensor)
    assert isinstance(lazy, precook.LazyTensor)
    told = lambda x: (x.shape, x.dtype, x.device, x.ndim, len(x), x.nbytes, x.numel(), x.size(1), x.stride())  # noqa: E731
    assert told(lazy) == told(tensor)
    assert not lazy.requires_grad
    assert not lazy.is_nested
    assert {lazy: 1}[lazy] == 1
    assert repr(lazy) == "LazyTensor(shape=(4, 3, 5), dtype=torch.float32)"
    assert reads == []


def test_what_prepares_a_tensor_reads_nothing(lazy: Any, small_limit: None, reads: list[object]) -> None:
    """Another type, a copy, an index and the join of a dataset too large for memory are lazy until a row is used."""
    joined = torch.cat([lazy.to(torch.float16).clone() for _ in range(3)])
    scaled = (joined.to(torch.float32) - 1) * 0.5
    assert (scaled.shape, scaled[2:][5].shape) == ((12, 3, 5), (3, 5))
    assert reads == []
    assert same(scaled[7].load(), (lazy.load().to(torch.float16).to(torch.float32)[3] - 1) * 0.5)
    assert len(reads) == 2


def test_nothing_is_held_after_a_use(lazy: Any, reads: list[object]) -> None:
    """Each use reads anew: what was read went with the call."""
    for number in range(1, 4):
        lazy.sum()
        assert len(reads) == number


def test_every_name_of_a_tensor_sees_a_write(lazy: Any, tensor: Any) -> None:
    """A lazy tensor that is written to, whole or through a view made before or after, keeps what was written."""
    row, flat, clone, turned = lazy[1], lazy.view(-1), lazy.clone(), lazy.permute(2, 1, 0)
    part = lazy[1:3][1]
    lazy.mul_(2)
    tensor2 = tensor * 2
    assert same(lazy.load(), tensor2)
    assert same(loaded([row, flat, turned, part]), [tensor2[1], tensor2.view(-1), tensor2.permute(2, 1, 0), tensor2[2]])
    assert same(clone.load(), tensor)  # a copy is a copy of what was there
    flat[0] = 7
    part += 1
    lazy.data.view(-1)[-1] = 9
    lazy.numpy()[0, 1] = 3
    expected = tensor2.clone()
    expected[2] += 1
    expected[0, 0, 0], expected[-1, -1, -1], expected[0, 1] = 7, 9, 3
    assert same(lazy.load(), expected)
    assert hash(lazy) == hash(lazy)


def test_a_copy_that_is_asked_for_is_no_other_name(lazy: Any, tensor: Any) -> None:
    """Whichever way it is asked for: writing to it leaves the tensor as it was."""
    for copied in (lazy.to("cpu", torch.float32, False, True), lazy.to(torch.float32, copy=True), lazy.clone()):
        copied.zero_()
    assert same(lazy.load(), tensor)
    lazy.to(torch.float32).zero_()  # not a copy, as for any tensor
    assert same(lazy.load(), torch.zeros_like(tensor))


def test_a_write_through_a_view_reaches_the_tensor(lazy: Any, tensor: Any) -> None:
    """Also where nobody has asked for the tensor itself."""
    next(iter(lazy)).zero_()
    torch.nn.functional.relu(lazy.mT, inplace=True)
    expected = tensor.clone()
    expected[0] = 0
    assert same(lazy.load(), expected.relu())


def test_gradients_flow_past_lazy_inputs(store: precook.Store, lazy: Any, recipe: precook.Recipe) -> None:
    """Also for tensors that were asked for in inference mode, as a node runs: they are read where they are used."""
    with torch.inference_mode():
        found = store.get(recipe.key(1), lazy=True)["x"].to(torch.float64).clone()
    layer = torch.nn.Linear(5, 2, dtype=torch.float64)
    layer(found).sum().backward()
    assert same(layer.weight.grad[0], lazy.load().double().sum((0, 1)))


def test_torch_and_a_store_save_what_a_lazy_tensor_holds(
    store: precook.Store, lazy: Any, tensor: Any, recipe: precook.Recipe
) -> None:
    """A tree with lazy leaves is a tree."""
    file = io.BytesIO()
    torch.save([lazy, {"again": lazy}], file)
    file.seek(0)
    assert same(torch.load(file), [tensor, {"again": tensor}])
    store.put(recipe.key(2), {"one": lazy, "half": lazy.half()})
    assert same(store.get(recipe.key(2)), {"one": tensor, "half": tensor.half()})


def test_a_lazy_array_is_taken_by_numpy(store: precook.Store, recipe: precook.Recipe) -> None:
    """What went in as a numpy array works in numpy's functions, is no torch tensor, and can be put again."""
    array = np.arange(6.0).reshape(2, 3)
    store.put(recipe.key(3), array)
    lazy = store.get(recipe.key(3), lazy=True)
    assert isinstance(lazy, precook.LazyTensor)
    assert not isinstance(lazy, torch.Tensor)
    assert same(np.add(lazy, 1), array + 1)
    assert np.asarray(lazy, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="without a copy"):
        np.array(lazy, copy=False)
    store.put(recipe.key(4), [lazy])
    assert same(store.get(recipe.key(4)), [array])


def test_lazy_leaves_are_there_without_torch(path: Path) -> None:
    """Where torch is not installed, shapes are known, numpy leaves load, and torch's say what is missing."""
    with precook.open(path) as store:
        store.put(precook.Recipe("test", {}).key(1), {"n": np.arange(3), "t": torch.ones(2, 2)})
    code = """
import sys
sys.modules["torch"] = None
import precook
with precook.open(sys.argv[1]) as store:
    tree = store.get(precook.Recipe("test", {}).key(1), lazy=True)
    assert tree["n"].load().tolist() == [0, 1, 2]
    assert (tree["t"].shape, isinstance(tree["t"], precook.LazyTensor)) == ((2, 2), True)
    try:
        tree["t"].load()
    except precook.MissingTorchError:
        print("told")
"""
    command = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "told\n"


def test_a_list_of_lazy_tensors_is_read_in_flat_memory(path: Path) -> None:
    """Going through all of it, twice, holds one at a time: neither arrays nor mappings pile up."""
    code = """
import sys
import torch, precook
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
recipe = precook.Recipe("flat", {})
with precook.open(sys.argv[1], flush_bytes=8 << 20) as store:
    with store.writer() as writer:
        for number in range(150):
            writer.put(recipe.key(number), [torch.full((256, 1024), float(number)), torch.zeros(3)])
with precook.open(sys.argv[1]) as store:
    leaves = [store.get(recipe.key(number), lazy=True) for number in range(150)]
    leaves[0][0].sum(), torch.stack([leaves[0][1], leaves[1][1]])
    before = resident()
    for _ in range(2):
        assert [leaf.mean().item() for leaf, _ in leaves] == list(range(150))
    print(resident() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True, env=environment()
    )
    assert int(done.stdout) < 80  # of 150 MiB, twice
