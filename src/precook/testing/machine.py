"""A store beside a dict, under random operations: this module needs hypothesis."""

from __future__ import annotations

import importlib.util
import math
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from precook.errors import MissingEntryError
from precook.identity.recipe import Recipe
from precook.open_store import open_store
from precook.store.dtypes import DTYPES, DType
from precook.store.writer import Writer
from precook.testing.trees import same
from precook.values import Key

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None

RECIPE = Recipe("precook.testing", {"version": 1})
KEYS = 8
"""Few, so that the same key is met again and again."""
numbers = st.integers(0, KEYS - 1)

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("d", raw)[0]),
    texts,
    st.binary(max_size=8),
)


def bits(dtype: DType, shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Arrays of any bit patterns this type allows."""
    size = math.prod(shape) * dtype.size
    raw = st.binary(min_size=size, max_size=size)
    if dtype.name == "BOOL":
        raw = raw.map(lambda data: bytes(byte & 1 for byte in data))
    return raw.map(lambda data: np.frombuffer(data, dtype.bits).reshape(shape).copy())


@st.composite
def arrays(draw: Any) -> Any:
    """Numpy arrays of every type, contiguous or not."""
    dtype = draw(st.sampled_from([d for d in DTYPES.values() if not d.foreign or (HAS_ML_DTYPES and d.lanes == 1)]))
    array = draw(bits(dtype, draw(shapes)))
    array = array.view(dtype.numpy_type()) if dtype.foreign else array
    return array.T if draw(st.booleans()) else array


@st.composite
def tensors(draw: Any) -> Any:
    """Torch tensors of every type, contiguous or not."""
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    tensor = torch.from_numpy(draw(bits(dtype, draw(shapes))))
    tensor = tensor.view(getattr(torch, dtype.torch)) if dtype.foreign else tensor
    return tensor.permute(tuple(reversed(range(tensor.dim())))) if draw(st.booleans()) else tensor


leaves: st.SearchStrategy[Any] = arrays() if torch is None else st.one_of(arrays(), tensors())
dict_keys = st.one_of(texts, st.integers(), st.sampled_from(["$tuple", "$tensor", "$dict", ""]))
trees: st.SearchStrategy[Any] = st.recursive(
    st.one_of(plain, leaves),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(dict_keys, inner, max_size=3),
    ),
    max_leaves=8,
)
"""Any tree that can be stored."""


class StoreMachine(RuleBasedStateMachine):
    """Puts, writes, flushes and reopens in random order: after each step the store answers like a dict.

    Subclass it, say how your store is opened, and hand its `TestCase` to pytest. Rules of your own can be added; what
    they make uncertain, such as an entry whose file they damaged, they move from `durable` to `maybe`.

        class MyMachine(precook.testing.StoreMachine):
            def open_store(self, path, **options):
                return my_package.open(path, **options)

        TestMyStoreLikeADict = MyMachine.TestCase
    """

    def open_store(self, path: Path, **options: Any) -> Any:
        """A store at `path`; the same path is the same store."""
        return open_store(path, **options)

    @initialize()
    def start(self) -> None:
        """An empty store."""
        self.path = Path(tempfile.mkdtemp(prefix="precook-model-")) / "cache"
        self.store = self.open_store(self.path)
        self.durable: dict[int, Any] = {}
        """What was acknowledged: a store that loses any of it is wrong."""
        self.pending: dict[int, Any] = {}
        """What the open writer has been given and not yet acknowledged."""
        self.maybe: dict[int, list[Any]] = {}
        """What may still lie somewhere under a key: a rule of a subclass has put it in doubt."""
        self.writer: Writer | None = None

    def key(self, number: int) -> Key:
        """The key of one of the few entries."""
        return RECIPE.key(number)

    def opened_writer(self) -> Writer:
        """The writer, which is opened when it is first needed and commits at `flush` alone."""
        self.writer = self.writer or self.store.writer(flush_bytes=1 << 30, flush_seconds=3600)
        return self.writer

    def acknowledge(self, number: int, tree: Any) -> None:
        """The store has said that an entry is durable."""
        if number not in self.durable:
            # The first result for a key stays. Where that was in doubt there may be two rows under the key from now
            # on, and a store may take either: one that it remembers, or another that a new index brings back.
            if number in self.maybe:
                self.maybe[number].append(tree)
            self.durable[number] = tree

    @rule(number=numbers, tree=trees)
    def put(self, number: int, tree: Any) -> None:
        """Durable when it returns."""
        self.store.put(self.key(number), tree, recipe=RECIPE)
        self.acknowledge(number, tree)

    @rule(number=numbers, tree=trees)
    def write(self, number: int, tree: Any) -> None:
        """Durable at the next flush."""
        self.opened_writer().put(self.key(number), tree)
        self.pending.setdefault(number, tree)

    @rule()
    def flush(self) -> None:
        """What was written is durable."""
        self.opened_writer().flush()
        for number, tree in self.pending.items():
            self.acknowledge(number, tree)
        self.pending = {}

    @rule(read_only=st.booleans())
    def reopen(self, read_only: bool) -> None:  # noqa: FBT001 - hypothesis passes by name
        """Close the store and open it again, read-only in between or not."""
        self.finish()
        self.store.close()
        if read_only and self.durable:
            with self.open_store(self.path, read_only=True) as store:
                self.check(store)
        self.store = self.open_store(self.path)

    def finish(self) -> None:
        """Close the writer, as a store has to be before it is closed."""
        if self.writer is not None:
            self.flush()
            self.writer.close()
            self.writer = None

    @invariant()
    def answers_like_a_dict(self) -> None:
        """After every step."""
        if hasattr(self, "store"):
            self.check(self.store)

    def check(self, store: Any) -> None:
        """Everything acknowledged is there and equal; of everything else there is nothing, or what was put."""
        for number, tree in self.durable.items():
            assert self.key(number) in store, f"entry {number} was acknowledged and is not there"
            kept = store.get(self.key(number))
            candidates = [tree, *self.maybe.get(number, [])]
            assert any(same(kept, other) for other in candidates), f"entry {number} is not what was put"
        for number in set(range(KEYS)) - set(self.durable):
            try:
                kept = store.get(self.key(number))
            except MissingEntryError:
                continue
            candidates = [*self.maybe.get(number, []), *([self.pending[number]] if number in self.pending else [])]
            assert any(same(kept, other) for other in candidates), f"entry {number} is something that nobody put"

    def teardown(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "store"):
            self.finish()
            self.store.close()
            shutil.rmtree(self.path.parent, ignore_errors=True)
