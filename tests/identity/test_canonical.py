"""The canonical form: docs/concepts/identity.md word for word, and its promises for any data."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook import Digest, IdentityError, Key, digest
from precook.identity.canonical import MAX_DEPTH, canonical

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "identity.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<what>[^|]+) \| `(?P<value>[^`]+)` \| `(?P<form>[^`]+)` \| `(?P<digest>[0-9a-f]{64})` \|$", re.MULTILINE
)
VECTORS = [row.groupdict() for row in ROW.finditer(PAGE)]


def names() -> dict[str, Any]:
    """What the page's first Python block defines, for its table to use."""
    scope: dict[str, Any] = {"Digest": Digest, "digest": digest}
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    exec(block[1], scope)
    return scope


# The page


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["what"])
def test_the_page_gives_the_bytes_and_the_digest(vector: dict[str, str]) -> None:
    """Every line of the page's table holds: these bytes and this digest, on every machine, for ever."""
    form = canonical(eval(vector["value"], names()))
    assert form == vector["form"].encode("ascii")
    assert digest(form).hex == vector["digest"]


def test_the_page_has_all_its_vectors() -> None:
    """Every row of the table is read and checked; a row that does not parse would go unseen."""
    table = PAGE.split("## Test vectors", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| what")]
    assert len(rows) == len(VECTORS) > 30
    assert len({vector["what"] for vector in VECTORS}) == len(VECTORS)


def test_equal_bytes_in_the_table_are_equal_meanings() -> None:
    """In the table, only what the page calls equal has equal bytes."""
    by_form: dict[str, set[str]] = {}
    for vector in VECTORS:
        by_form.setdefault(vector["form"], set()).add(vector["what"].rsplit(",", 1)[0])
    assert [meanings for meanings in by_form.values() if len(meanings) > 1] == []


# Any data

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(1 << 70), max_value=1 << 70)
    | st.floats()
    | st.text(st.characters(exclude_categories=[]))
    | st.binary()
    | st.binary(min_size=32, max_size=32).map(Digest)
    | st.binary(min_size=32, max_size=32).map(Key)
)
CLOSE = st.sampled_from([None, 0, 1, False, True, 0.0, -0.0, 1.0, math.nan, "", "0", "null", "$int", "$", b"", b"0"])
KEYS = (
    st.text(st.characters(exclude_categories=[]), max_size=3)
    | st.integers()
    | st.sampled_from(["$dict", "$bytes", "$"])
)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        items = st.lists(inner, max_size=4)
        return items | items.map(tuple) | st.dictionaries(KEYS, inner, max_size=4)

    return st.recursive(leaves, grow, max_leaves=12)


def meaning(value: Any) -> object:
    """What `value` means, types told apart, as something Python compares as we want it to."""
    if isinstance(value, (list, tuple)):
        return ("sequence", tuple(meaning(item) for item in value))
    if isinstance(value, dict):
        return ("dict", frozenset((meaning(key), meaning(item)) for key, item in value.items()))
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else struct.pack(">d", value))
    return (type(value).__name__, value)


def read(form: Any) -> object:
    """The meaning that canonical JSON states: the inverse of `canonical`, so that nothing can be lost in it."""
    if isinstance(form, list):
        return ("sequence", tuple(read(item) for item in form))
    if not isinstance(form, dict):
        return meaning(form)
    tag, *others = form or [""]
    if not tag.startswith("$"):
        return ("dict", frozenset((meaning(key), read(item)) for key, item in form.items()))
    assert not others
    content = form[tag]
    if tag == "$dict":
        return ("dict", frozenset((read(key), read(item)) for key, item in content))
    values: dict[str, Any] = {
        "$bytes": lambda: base64.b64decode(content, validate=True),
        "$str": lambda: bytes.fromhex(content).decode("utf-8", "surrogatepass"),
        "$float": lambda: float(content),
        "$int": lambda: int(content, 16),
        "$digest": lambda: Digest.from_hex(content),
        "$key": lambda: Key.from_hex(content),
    }
    return meaning(values[tag]())


def shuffled(value: Any) -> Any:
    """Equal data with every dict's order reversed and lists for tuples and tuples for lists."""
    if isinstance(value, (list, tuple)):
        other = tuple if isinstance(value, list) else list
        return other(shuffled(item) for item in value)
    if isinstance(value, dict):
        return {key: shuffled(item) for key, item in reversed(value.items())}
    return value


@given(trees(SCALARS))
def test_equal_data_has_equal_bytes(value: Any) -> None:
    """Neither the order of a dict nor tuple or list makes a difference, at any depth."""
    assert canonical(shuffled(value)) == canonical(value)


@given(trees(SCALARS))
def test_the_bytes_tell_all_data_apart(value: Any) -> None:
    """The data, types included, can be read back from its bytes: so different data has different bytes."""
    assert read(json.loads(canonical(value))) == meaning(value)


@given(trees(CLOSE), trees(CLOSE))
def test_bytes_are_equal_exactly_when_meanings_are(one: Any, other: Any) -> None:
    """Among values that Python or JSON would mix up, bytes are equal where the meaning is, and nowhere else."""
    assert (canonical(one) == canonical(other)) == (meaning(one) == meaning(other))


@given(trees(SCALARS))
def test_bytes_are_plain_json(value: Any) -> None:
    """The form is ASCII JSON without spaces around it, which every language can read."""
    form = canonical(value)
    parsed = json.loads(form.decode("ascii"), parse_constant=pytest.fail)
    assert json.dumps(parsed, separators=(",", ":")).encode() == form


# What is refused


@pytest.mark.parametrize(
    ("value", "where", "hint"),
    [
        ({1, 2}, "", "sorted list"),
        ({"a": [0, {1}]}, "['a'][1]", "sorted list"),
        (({"a": object()},), "[0]['a']", "plain data"),
        ([PurePosixPath("a")], "[0]", "digest"),
        ({3: print}, "[3]", "version"),
        ({"a": {1.5: 0}}, "['a'][1.5]", ""),
        ({True: 0}, "[True]", ""),
        ({None: 0}, "[None]", ""),
        ([bytearray(b"a")], "[0]", "plain data"),
        ([type("Number", (int,), {})(1)], "[0]", "plain data"),
        ([type("Mapping", (dict,), {})()], "[0]", "plain data"),
        ([int], "[0]", "version"),
    ],
    ids=[
        "set", "deep set", "object", "path", "function", "float key", "bool key", "None key", "bytearray",
        "subclass of int", "subclass of dict", "class",
    ],
)  # fmt: skip
def test_a_refusal_names_the_place_and_the_next_step(value: object, where: str, hint: str) -> None:
    """What has no canonical form is refused, with its place inside the data and what to do."""
    with pytest.raises(IdentityError) as caught:
        canonical(value)
    assert caught.value.where == where
    assert hint in caught.value.hint


def test_data_without_end_is_refused() -> None:
    """Data nested deeper than the limit, or in itself, is refused; the limit itself is not."""
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = [value]
    assert canonical(value)
    with pytest.raises(IdentityError, match="nested"):
        canonical([value])
    endless: dict[str, object] = {}
    endless["again"] = endless
    with pytest.raises(IdentityError, match="nested"):
        canonical(endless)
