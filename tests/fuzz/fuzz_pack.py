"""Packs: any bytes are a pack, or refused by our own error; and whatever is accepted, a store can live with.

The first byte of an input says what the rest is: `f` a file, `h` a header without its length, `m` the metadata of a
good pack. Ids and checksums are made anew: they protect against accidents, not against somebody.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import precook
from precook.errors import DAMAGED, MissingEntryError
from precook.identity.versions import compare_versions
from precook.maintain.compact import plan_compact
from precook.maintain.gc import plan_gc
from precook.maintain.repair import plan_repair
from precook.store.format.build import build_pack, make_entry
from precook.store.format.header import HeaderError, header_length
from precook.store.format.pack import Head
from precook.store.layout import Layout
from precook.store.tree import read_values, take_apart
from tests.fuzz.frame import Target, mutate_bytes, mutate_json
from tests.support.commands import run
from tests.support.forged import ROWS, name_of, read_head, signed

RECIPE = precook.Recipe("good", {})
GOOD = RECIPE.key(1)
SHOWN = 2
"""Entries that are shown by the command line."""


def read_file(data: bytes) -> bytes:
    """The file that an input stands for."""
    kind, data = data[:1], data[1:]
    if kind == b"m":
        data = with_metadata(data)
    if kind in (b"m", b"h"):
        good = good_packs()[0]
        return struct.pack("<Q", len(data)) + data + good[header_length(good) :]
    return data


def with_metadata(metadata: bytes) -> bytes:
    """The header of a good pack with other metadata."""
    form = good_header()
    form["__metadata__"]["precook"] = metadata.decode("latin-1")
    return json.dumps(form).encode()


def good_header() -> dict[str, Any]:
    """The header of the first of the good packs."""
    good = good_packs()[0]
    form: dict[str, Any] = json.loads(good[8 : header_length(good)])
    return form


def check(data: bytes) -> bool:
    """Read a pack by itself, and if it is one, as part of a store."""
    data = read_file(data)
    try:
        look_at(read_head(data))
    except HeaderError:
        return False
    live_with(signed(data))
    return True


def look_at(head: Head) -> None:
    """What a pack says lies inside its file, row by row."""
    assert len(head.made) == len(head.recipe_digests)
    for table in head.tables:
        assert table.row_bytes().shape == (table.rows,)
        for row in range(min(table.rows, ROWS)):
            for leaf in table.leaves:
                begin, size = leaf.span(row)
                assert head.nbytes <= begin <= begin + size <= head.file_bytes
                assert len(leaf.row_shape(row)) <= 15
            with contextlib.suppress(ValueError):  # what the reader turns into a damaged entry
                table.check_values(row)
                table.build([np.empty(0)] * len(table.leaves), read_values(table.values.row(row)))


@functools.cache
def template() -> Path:
    """A store with one entry and nothing else."""
    path = Path(tempfile.mkdtemp()) / "cache"
    with precook.open(path) as store:
        store.put(GOOD, {"x": np.arange(3)}, recipe=RECIPE)
    return path


def fresh(source: Path) -> Path:
    """A copy of a store, in the place of the last one."""
    path = source.with_name("copy")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(source, path)
    return path


def live_with(data: bytes) -> None:
    """Put a pack among those of a store: everything works, or names it; after a repair nothing is damaged."""
    path = fresh(template())
    pack = Layout(path).pack(name_of(data))
    pack.parent.mkdir(exist_ok=True)
    pack.write_bytes(data)
    served = use(path)
    show(path)
    with precook.open(path) as store:
        plan_repair(store, store.verify()).execute()
        assert store.verify().clean
        assert use(path) == served
        plan_gc(store).execute()
        plan_compact(store).execute()
        store.reindex()
    assert use(path) == served


def use(path: Path) -> set[bytes]:
    """Everything that reads a store; the keys of entries that are served. The good one is among them."""
    served = set()
    with precook.open(path) as store:
        assert store.get(GOOD)["x"].tolist() == [0, 1, 2]
        for entry in list(store.entries())[:ROWS]:
            key = precook.Key(entry.key)
            with contextlib.suppress(MissingEntryError):
                store.get(key, tensors="numpy")
                assert store.locate(key).labels
                compare_versions(store.locate(key).made, {"Pillow": "1", "code:mine": "a"})
                store.stack([key, key], tensors="numpy")
                served.add(key.bytes)
        store.stats()
        store.totals()
        store.made_with()
        store.verify()
    return served


def show(path: Path) -> None:
    """Everything that the command line tells of a store and of some of its entries."""
    with precook.open(path) as store:
        keys = [entry.key.hex() for entry in store.entries()][:SHOWN]
    for command in (["ls"], ["status"], *(["show", key, *form] for key in keys for form in ([], ["--json"]))):
        assert run(*command, "--store", path).code in (0, DAMAGED), command


@functools.cache
def good_packs() -> list[bytes]:
    """Packs with entries of all sorts."""
    trees: list[Any] = [
        {"latent": np.zeros((2, 3), np.float16), "crop": (1, 2), "caption": "a cat"},
        [np.zeros(3), np.zeros((1, 0), np.int8), {1: b"x", "$tuple": float("nan")}],
        [np.zeros(4), np.zeros((1, 2), np.int8), {1: b"y", "$tuple": 2**70}],
        np.array(1.0),
        "plain",
    ]
    recipes = [precook.Recipe("one", {}), precook.Recipe("two", {"a": [1, 2.5, "x"]}), None, None, None]
    entries = [
        make_entry(
            bytes([i]) * 32,
            take_apart(tree),
            recipe=recipe,
            labels=b'{"file":"a"}' if i else b"null",
            made=b'{"Pillow":"12.3.0","code:mine":"00ff"}' if i else b"",
        )
        for i, (tree, recipe) in enumerate(zip(trees, recipes, strict=True))
    ]
    images = [build_pack(part, created=1, salt="x") for part in (entries, entries[:1], entries[1:3])]
    return [image.head + b"".join(bytes(part) for part in image.body) for image in images]


def seeds() -> list[bytes]:
    """Good packs, their headers and their metadata."""
    form = good_header()
    files = [b"f" + pack for pack in good_packs()]
    return [*files, b"h" + json.dumps(form).encode(), b"m" + form["__metadata__"]["precook"].encode()]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """JSON is changed as JSON, a file as bytes."""
    kind, rest = data[:1], data[1:]
    return kind + (mutate_bytes if kind == b"f" else mutate_json)(rest, rng)


TOKENS = """$tensor $plain $tuple $dict $bytes $str $bits $int leaves tree columns rows values labels all null true F16
U8 F4 numpy torch t0/keys data_offsets created salt directory recipes made code: -1"""
TARGET = Target("pack", seeds, check, mutate, tuple(TOKENS.encode().split()))
