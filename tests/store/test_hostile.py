"""Packs made to harm: refused by our own limits, before any other library sees them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import precook
from precook.store.format.build import build_pack, make_entry
from precook.store.format.header import MAX_HEADER, HeaderError, dump_header, parse_header
from precook.store.format.pack import pack_id, parse_head, parse_pack_header
from precook.store.layout import Layout
from precook.store.tree import take_apart


def header(form: Any) -> bytes:
    text = form if isinstance(form, bytes) else json.dumps(form).encode()
    return struct.pack("<Q", len(text)) + text


def column(dtype: str = "U8", shape: Any = (1,), offsets: Any = (0, 1), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


HOSTILE = {
    "empty": b"",
    "seven bytes": b"1234567",
    "length of 2^63": struct.pack("<Q", 2**63) + b"{}",
    "length over the limit": struct.pack("<Q", MAX_HEADER + 1) + b"{}",
    "length beyond the file": struct.pack("<Q", 100) + b"{}",
    "not JSON": header(b"hello"),
    "not an object": header([]),
    "deeply nested": header(b"[" * 100_000),
    "deeply nested object": header(b'{"a":' * 100_000),
    "NaN literal": header(b'{"a":NaN}'),
    "invalid UTF-8": header(b'{"\xff":1}'),
    "name twice": header(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    ),
    "two metadata": header(b'{"__metadata__":{},"__metadata__":{}}'),
    "field twice": header(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}'),
    "metadata of numbers": header({"__metadata__": {"a": 1}}),
    "metadata is a list": header({"__metadata__": []}),
    "overlap": header({"a": column(), "b": column()}),
    "hole": header({"a": column(), "b": column(offsets=(2, 3))}),
    "does not begin at zero": header({"a": column(offsets=(1, 2))}),
    "backwards": header({"a": column(offsets=(1, 0))}),
    "negative offsets": header({"a": column(offsets=(-1, 0))}),
    "offsets do not fit the shape": header({"a": column(offsets=(0, 5))}),
    "three offsets": header({"a": column(offsets=(0, 1, 2))}),
    "float offsets": header({"a": column(offsets=(0.0, 1.0))}),
    "boolean dimension": header({"a": column(shape=(True,))}),
    "negative dimension": header({"a": column(shape=(-1, -1))}),
    "product overflows": header({"a": column(shape=(2**32, 2**32, 2**32), offsets=(0, 0))}),
    "empty with a huge dimension": header({"a": column(shape=(0, 2**60), offsets=(0, 0))}),
    "50,000 dimensions": header({"a": column(shape=(1,) * 50_000)}),
    "unknown type": header({"a": column(dtype="F128")}),
    "type is a list": header({"a": column(dtype=[])}),  # type: ignore[arg-type]
    "name with a path": header({"../../etc/passwd$": column()}),
    "name with a newline": header({"a\nb": column()}),
    "name with a bidi override": header({"a\u202eb": column()}),
    "name with an escape": header({"\x1b[31m": column()}),
    "name too long": header({"a" * 200: column()}),
    "one field too many": header({"a": column(extra=1)}),
    "a field is missing": header({"a": {"dtype": "U8", "shape": [1]}}),
    "column is a number": header({"a": 1}),
    "800,000 empty tensors": header({f"a{i}": column(shape=(0,), offsets=(0, 0)) for i in range(80_000)}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_header_is_refused(name: str) -> None:
    """Each fixed case gives our error, in bounded time and memory."""
    with pytest.raises(HeaderError):
        parse_header(HOSTILE[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_among_the_packs_is_a_named_damage(path: Path, recipe: precook.Recipe, name: str) -> None:
    """The store opens, serves the rest, and verify names the file."""
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
    bad = Layout(path).pack(pack_id(HOSTILE[name]))
    bad.parent.mkdir(exist_ok=True)
    bad.write_bytes(HOSTILE[name])
    with precook.open(path) as store:
        assert store.get(recipe.key(1)) == 1
        assert [damage.pack for damage in store.verify().damage] == [bad]


def good_form() -> tuple[Any, bytes]:
    """The metadata and the directory of a good pack."""
    tree = {"x": np.arange(6).reshape(2, 3), "y": np.zeros(2), "n": [1, "a"]}
    other = {"x": np.arange(6).reshape(3, 2), "y": np.zeros(2), "n": [2, "b"]}
    entries = [make_entry(bytes([i]) * 32, take_apart(t)) for i, t in enumerate([tree, other])]
    head = build_pack(entries, created=1, salt="x").head
    length = 8 + struct.unpack("<Q", head[:8])[0]
    return json.loads(head[8:length]), head[length:]


def parse(form: Any, directory: bytes) -> Any:
    data = header(form)
    found = parse_pack_header(data)
    return parse_head(found, (data + directory)[: found.length + found.directory])


def paths(form: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = form.items() if isinstance(form, dict) else enumerate(form) if isinstance(form, list) else ()
    return [at] + [path for key, item in items for path in paths(item, (*at, key))]


REPLACEMENTS = [None, True, -1, 0, 1, 3, 2**31, 2**63, 1.5, "", "x", "F16", "torch", [], [1], {}, {"$tensor": 0}]


@given(st.data())
def test_metadata_with_any_part_replaced_is_read_or_refused(data: Any) -> None:
    """No replacement of any part of the metadata raises anything but our error."""
    form, directory = good_form()
    inner = json.loads(form["__metadata__"]["precook"])
    path = data.draw(st.sampled_from(paths(inner)[1:]))
    parent = inner
    for step in path[:-1]:
        parent = parent[step]
    if data.draw(st.booleans()):
        parent[path[-1]] = data.draw(st.sampled_from(REPLACEMENTS))
    else:
        del parent[path[-1]]
    form["__metadata__"]["precook"] = json.dumps(inner)
    try:
        head = parse(form, directory)
    except HeaderError:
        return
    for table in head.tables:
        for leaf in table.leaves:
            for row in range(table.rows):
                begin, size = leaf.span(row)
                assert head.nbytes <= begin <= begin + size <= head.file_bytes


def test_the_unchanged_metadata_is_read() -> None:
    """The test above starts from something that is accepted."""
    assert parse(*good_form()).rows == 2


MADE: dict[str, Any] = {
    "not a list": {"Pillow": "1"},
    "one for no recipe": [{"Pillow": "1"}, None],
    "none for a recipe": [],
    "a text": ["Pillow 1"],
    "no names": [{}],
    "65 names": [{str(number): "1" for number in range(65)}],
    "a name of 201 characters": [{"a" * 201: "1"}],
    "a version of 201 characters": [{"Pillow": "1" * 201}],
    "an empty version": [{"Pillow": ""}],
    "a version that is a number": [{"Pillow": 12}],
    "versions in versions": [{"Pillow": {"Pillow": "1"}}],
}


@pytest.mark.parametrize("name", [*MADE, "fine"])
def test_what_entries_were_made_with_has_bounds(name: str) -> None:
    """In number, length and type; whatever is inside them is read, and is nothing to any reader but text."""
    form, directory = made_form(MADE.get(name, [{"a" * 200: "\ud800" * 200, **{str(n): "1" for n in range(63)}}]))
    if name == "fine":
        assert len(json.loads(parse(form, directory).made[1])) == 64
        return
    with pytest.raises(HeaderError):
        parse(form, directory)


def made_form(made: Any) -> tuple[Any, bytes]:
    """The metadata and the directory of a pack that says this about what its entries were made with."""
    entry = make_entry(bytes(32), take_apart(1), recipe=precook.Recipe("test", {}), made=b'{"Pillow":"1"}')
    head = build_pack([entry], created=1, salt="x").head
    length = 8 + struct.unpack("<Q", head[:8])[0]
    form = json.loads(head[8:length])
    inner = json.loads(form["__metadata__"]["precook"])
    assert inner["made"] == [{"Pillow": "1"}]
    form["__metadata__"]["precook"] = json.dumps({**inner, "made": made})
    return form, head[length:]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    """Random bytes never raise anything but our error."""
    for candidate in (data, header(data), header(b'{"a":' + data + b"}")):
        try:
            columns, metadata = parse_header(candidate)
        except HeaderError:
            continue
        assert parse_header(dump_header(columns, metadata)) == (columns, metadata)


def test_packs_of_pickles_and_code_are_just_damage(path: Path, recipe: precook.Recipe, tmp_path: Path) -> None:
    """No byte in a store is ever run: a pickle that would touch a file does not."""
    canary = tmp_path / "canary"
    payload = b"cposix\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR."
    with precook.open(path) as store:
        store.put(recipe.key(1), 1)
    for name in (pack_id(payload), pack_id(b"other")):
        bad = Layout(path).pack(name)
        bad.parent.mkdir(exist_ok=True)
        bad.write_bytes(payload)
    (path / "index.sqlite").write_bytes(payload)
    with precook.open(path) as store:
        assert store.get(recipe.key(1)) == 1
        assert not store.verify().clean
    assert not canary.exists()
