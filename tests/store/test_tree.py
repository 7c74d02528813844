"""Trees come out as they went in, and what cannot be stored is named."""

from __future__ import annotations

import collections
import enum
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import precook
from precook.store.format.build import build_pack, make_entry
from precook.store.format.pack import parse_head, parse_pack_header
from precook.store.leaves import converter, has_nan, is_finite, read_leaf
from precook.store.tree import Parts, builder, read_values, take_apart, take_each_apart
from tests.support.trees import same, trees


def rebuilt(tree: Any) -> Any:
    """A tree taken apart and put together again, in memory."""
    import json  # noqa: PLC0415

    parts = take_apart(tree)
    values = read_values(parts.values)
    build = builder(json.loads(parts.skeleton)["tree"], leaves=len(parts.leaves), values=len(values))
    leaves = [
        converter(leaf.dtype, leaf.library)(leaf.data.view(leaf.dtype.bits).reshape(leaf.shape))
        for leaf in parts.leaves
    ]
    return build(leaves, values)


@given(trees)
def test_a_tree_put_together_again_is_the_same_bit_for_bit(tree: Any) -> None:
    """Nesting, order, types, NaN payloads, odd texts and every element type survive."""
    assert same(rebuilt(tree), tree)


@given(trees)
def test_a_pack_of_one_describes_its_entry(tree: Any) -> None:
    """What is written passes our own reader, with the same skeleton, values and shapes."""
    entry = make_entry(bytes(32), take_apart(tree))
    image = build_pack([entry], created=0, salt="")
    length = 8 + struct.unpack("<Q", image.head[:8])[0]
    head = parse_head(parse_pack_header(image.head[:length]), image.head)
    (table,) = head.tables
    assert head.id == image.id
    assert head.file_bytes == image.nbytes
    assert table.skeleton == entry.parts.skeleton
    assert table.values.row(0) == entry.parts.values
    assert [leaf.row_shape(0) for leaf in table.leaves] == [leaf.shape for leaf in entry.parts.leaves]


def described(tree: Any) -> Any:
    """What `take_apart` makes of a tree, in values that can be compared."""
    try:
        return plain(take_apart(tree))
    except precook.TreeError as error:
        return error.message, error.hint


def plain(parts: Parts) -> Any:
    leaves = [(leaf.dtype.name, leaf.library, leaf.shape, leaf.data.tobytes()) for leaf in parts.leaves]
    return parts.skeleton, parts.paths, parts.values, leaves


def check_each(trees: list[Any]) -> None:
    """Many trees taken apart together become what each becomes alone."""
    for copy in (True, False):
        together = [
            (parts.message, parts.hint) if isinstance(parts, precook.TreeError) else plain(parts)
            for parts in take_each_apart(trees, copy=copy)
        ]
        assert together == [described(tree) for tree in trees]


@given(st.lists(trees, max_size=5))
def test_many_trees_taken_apart_together_are_what_each_is_alone(several: list[Any]) -> None:
    """Whatever came before it, and however often: no tree is taken for one like another."""
    check_each([tree for tree in several for _ in range(2)])


class Name(str):
    """A text that is no plain text."""

    __slots__ = ()


def test_a_tree_that_only_looks_like_the_one_before_is_no_other() -> None:
    """Keys that are equal and not the same, another order, another type, rank or library, and what cannot be stored."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    one, other = np.arange(4, dtype=np.float32), torch.arange(4, dtype=torch.float32)
    check_each([{1: one}, {True: one}, {1: other}, {Name("1"): one}, {"1": one}, {"1": 5}, {"1": {"1": one}}])
    check_each([{"a": one, "b": other}, {"b": one, "a": other}, {"a": one}, {"a": one, "b": [other]}])
    check_each([[one, (other,)], [one, (other.reshape(2, 2),)], [one, (other.half(),)], [one, [other]], [one, (one,)]])
    check_each([[one], [torch.nn.Parameter(other)], [other.clone().requires_grad_()], [np.ma.array(one)], [one]])
    check_each([one, other, other.reshape(1, 2, 2), 3, [], [one], {}, one])


def test_rows_of_one_memory_are_taken_as_they_lie_there() -> None:
    """Whichever part of a memory a tensor is, of whichever type; two memories may begin at one address."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    raw = np.arange(40, dtype=np.uint8)
    batch = torch.from_numpy(raw)
    rows = [batch[:16].view(torch.bfloat16), batch[8:24].view(torch.float32), batch, batch[3:3], batch[::3], batch[39]]
    check_each(rows)
    check_each([torch.from_numpy(raw[:8]), batch, torch.from_numpy(raw[:8])])
    # A whole number of elements, and some bytes that are none.
    check_each([torch.from_numpy(raw)[:32].view(torch.complex64), torch.from_numpy(raw[:37])])
    kept = [
        parts.leaves[0].data for parts in take_each_apart([batch[:8], batch[8:]], copy=False) if type(parts) is Parts
    ]
    assert [np.shares_memory(data, raw) for data in kept] == [True, True]
    copied = [parts.leaves[0].data for parts in take_each_apart([batch[:8], batch[8:]]) if type(parts) is Parts]
    raw[:] = 0
    assert [data.tolist() for data in copied] == [list(range(8)), list(range(8, 40))]


class Color(enum.IntEnum):
    """An int that is not an int."""

    RED = 1


Point = collections.namedtuple("Point", "x y")  # noqa: PYI024


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        ({1, object}, "builtins.type"),
        (object(), "builtins.object"),
        (Path("x"), "PosixPath"),
        (Color.RED, "Color"),
        (Point(1, 2), "Point"),
        (collections.OrderedDict(), "OrderedDict"),
        (np.str_("text"), "str_"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (np.longdouble(1), "longdouble"),
        (np.array(["text"]), "<U4"),
        (np.array([object()]), "object"),
        (np.zeros(2, ">f4"), ">f4"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
        (np.zeros(2, "c16"), "complex128"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (np.zeros((1,) * 16), "16 dimensions"),
        (np.zeros((0, 2**40), np.uint8), "too large"),
        ({(1, 2): 3}, "dict key"),
        ({True: 3}, "dict key"),
        (lambda: None, "function"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_stored_is_named_with_its_place(leaf: Any, reason: str) -> None:
    """The error says where in the tree the part hangs and what it is."""
    with pytest.raises(precook.TreeError) as caught:
        take_apart({"fine": 1, "bad": [0, leaf]})
    assert caught.value.where.startswith("tree['bad'][1]")
    assert reason in str(caught.value)


FOREIGN = [
    {1, "a", None, (2, b"x"), frozenset({1.5})},
    frozenset(),
    [
        np.float32(0.1),
        np.float64("nan"),
        np.int64(-1),
        np.uint8(255),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.float16(1),
    ],
]


@pytest.mark.parametrize("value", FOREIGN)
def test_sets_and_numpy_scalars_come_back(value: Any) -> None:
    """Beside the plain values of JSON: each with its own type, alone and beside tensors."""
    assert same(rebuilt(value), value)
    assert same(rebuilt({"x": np.zeros(2), "value": [value]}), {"x": np.zeros(2), "value": [value]})


def test_types_devices_and_sizes_of_torch_come_back() -> None:
    """Read with torch they are what they were; a look at the parts, and a check of them, needs no torch."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tree = {"dtype": torch.bfloat16, "device": torch.device("cuda:1"), "shape": torch.Size([2, 0]), "in": {torch.int8}}
    found = rebuilt(tree)
    assert found == tree
    assert [type(value) for value in found.values()] == [type(value) for value in tree.values()]
    named = read_values(take_apart(tree).values, named=True)
    assert named == [
        {"dtype": "$dtype bfloat16", "device": "$device cuda:1", "shape": "$size [2, 0]", "in": {"$dtype int8"}}
    ]


def test_equal_sets_have_equal_bytes() -> None:
    """However they were made: a dataset stores them once."""
    one, other = {0}, {8}
    one.add(8)
    other.add(0)
    assert list(one) != list(other)  # they lie in the same place of their tables
    assert take_apart(one).values == take_apart(other).values


def test_a_set_with_a_tensor_is_refused() -> None:
    """Nobody could say which of its members the tensor was."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(precook.TreeError, match="a set with a tensor"):
        take_apart({torch.zeros(1)})


@pytest.mark.parametrize(
    "values",
    [
        *(
            b'[{"$dtype":"nn"}]',
            b'[{"$dtype":"__class__"}]',
            b'[{"$dtype":1}]',
            b'[{"$device":"no"}]',
            b'[{"$size":[-1]}]',
        ),
        *(
            b'[{"$size":"1"}]',
            b'[{"$scalar":["F32","00"]}]',
            b'[{"$scalar":["X",""]}]',
            b'[{"$set":[[]]}]',
            b'[{"$set":1}]',
        ),
        *(
            b'[{"$scalar":["F32"]}]',
            b'[{"$device":"cpu; rm"}]',
            b'[{"$scalar":[[],"00"]}]',
            b'[{"$frozenset":[{"a":[]}]}]',
        ),
    ],
)
def test_forms_of_no_value_are_refused(values: bytes) -> None:
    """Whoever wrote them: none gives an attribute of torch that is no type."""
    pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises((ValueError, precook.PrecookError)):
        read_values(values)


def test_a_tree_without_end_is_refused() -> None:
    """A list that contains itself is an error, not a crash."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(precook.TreeError, match="levels deep"):
        take_apart(loop)


def test_torch_tensors_that_would_come_back_as_something_else_are_refused() -> None:
    """Parameters, gradients, sparse and meta tensors are named instead of being changed silently."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for bad, reason in [
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        (torch.zeros(2, requires_grad=True), "requires grad"),
        (torch.zeros((1,) * 65), "65 dimensions"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
    ]:
        with pytest.raises(precook.TreeError, match=reason):
            take_apart([bad])


def test_lazy_torch_views_are_stored_as_what_they_mean() -> None:
    """Conjugated and negated views, which torch computes only when read, keep their numbers."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64)
    assert torch.equal(rebuilt(tensor.conj()), torch.tensor([1 - 2j, 3 + 1j]))
    assert torch.equal(rebuilt(tensor.conj().imag), torch.tensor([-2.0, 1.0]))


def test_a_single_element_with_a_stride_is_stored() -> None:
    """Torch calls it contiguous, but its bytes do not lie end to end."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensor = torch.arange(6.0).reshape(3, 2)[1:2, 1]
    assert tensor.stride() == (2,)
    assert torch.equal(rebuilt(tensor), torch.tensor([3.0]))


def test_nan_is_found_in_every_type_that_has_one() -> None:
    """The check behind `allow_nan` knows floats, complex numbers, bfloat16 and the eight-bit floats."""
    assert has_nan(read_leaf(np.array([0, math.nan], np.float16), "x"))
    assert not has_nan(read_leaf(np.array([0, math.inf], np.float16), "x"))
    assert not has_nan(read_leaf(np.array([255], np.uint8), "x"))
    torch = pytest.importorskip("torch", reason="torch is not installed")
    names = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"]
    for dtype in (getattr(torch, name) for name in names):
        every = torch.arange(256, dtype=torch.uint8)
        values = every.view(dtype) if dtype.itemsize == 1 else torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        for value in values:
            assert has_nan(read_leaf(value, "x")) == bool(value.float().isnan()), (dtype, value)


def test_what_is_not_finite_is_found_in_every_type_that_has_it() -> None:
    """The check on results knows every infinity and NaN of halves, eight-bit floats and the others, wherever it is."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    names = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz"]
    for dtype in (getattr(torch, name) for name in names):
        every = torch.arange(256, dtype=torch.uint8)
        values = every.view(dtype) if dtype.itemsize == 1 else torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        finite = values.float().isfinite()
        for value, wanted in zip(values[::7], finite[::7].tolist(), strict=True):
            assert is_finite(read_leaf(value, "x")) == wanted, (dtype, value)
        good = values.view(torch.uint8 if dtype.itemsize == 1 else torch.int16)[finite].view(dtype)
        assert is_finite(read_leaf(good, "x"))
        assert not is_finite(read_leaf(values, "x"))
        assert is_finite(read_leaf(values[:0], "x"))
    for array in (np.float32([1, math.inf]), np.float64([math.nan, 1]), np.complex64([1, complex(0, math.inf)])):
        assert not is_finite(read_leaf(np.asarray(array), "x"))
