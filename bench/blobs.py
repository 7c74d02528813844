"""Databases of bytes: a sample is one blob with a compact header."""

# ruff: noqa: PLC0415 - a peer is imported where it is used, because it may not be installed

from __future__ import annotations

import contextlib
import math
import sqlite3
import struct
from collections.abc import Iterator
from typing import Any

import torch

from bench.layout import COMMIT_BYTES, Peer
from bench.samples import FIELDS, Kind, Samples, Tree, dump_plain, load_plain

_DIMS: dict[Kind, tuple[struct.Struct, list[slice]]] = {
    "large": (struct.Struct("<5I"), [slice(0, 3), slice(3, 5)]),
    "small": (struct.Struct("<2I"), [slice(0, 1), slice(1, 2)]),
}
"""The dimensions of a sample's tensors, in the order of its fields."""
_START = 32
"""Where the tensors begin: aligned, after the dimensions."""
_NUMBER = struct.Struct(">I")


def dump_blob(tree: Tree, kind: Kind) -> bytes:
    """A sample as bytes: dimensions, tensors from an aligned offset, plain values as JSON."""
    arrays = [tree[name].numpy() for name in FIELDS[kind]]
    header = _DIMS[kind][0].pack(*(dim for array in arrays for dim in array.shape)).ljust(_START, b"\0")
    plain = dump_plain(tree).encode() if kind == "large" else b""
    return b"".join([header, *(memoryview(array).cast("B") for array in arrays), plain])


def load_blob(blob: Any, kind: Kind) -> Tree:
    """The sample again, its tensors over the blob's own memory."""
    form, parts = _DIMS[kind]
    dims = form.unpack_from(blob)
    at = _START
    tree: Tree = {}
    for (name, dtype), part in zip(FIELDS[kind].items(), parts, strict=True):
        shape = dims[part]
        count = math.prod(shape)
        tree[name] = torch.frombuffer(blob, dtype=dtype, count=count, offset=at).view(shape)
        at += count * dtype.itemsize
    if kind == "large":
        tree |= load_plain(bytes(blob[at:]))
    return tree


def grouped(samples: Samples) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered blobs of samples, in groups of one commit."""
    group: list[tuple[int, bytes]] = []
    size = 0
    for number, tree in enumerate(samples.trees):
        blob = dump_blob(tree, samples.kind)
        group.append((number, blob))
        size += len(blob)
        if size >= COMMIT_BYTES:
            yield group
            group, size = [], 0
    yield group


class Lmdb(Peer):
    """LMDB: a mapped B-tree of blobs; tensors are read-only memory that lives as long as the transaction."""

    name = "LMDB, zero-copy"
    package = "lmdb"
    durable = True

    def write(self, samples: Samples) -> None:
        import lmdb

        with contextlib.closing(lmdb.open(str(self.folder), map_size=1 << 40)) as environment:
            for group in grouped(samples):
                with environment.begin(write=True) as transaction:
                    for number, blob in group:
                        transaction.put(_NUMBER.pack(number), blob, append=True)
            environment.sync(force=True)

    def open(self) -> None:
        import lmdb

        self._environment = lmdb.open(str(self.folder), readonly=True, lock=False, map_size=1 << 40)
        self._transaction = self._environment.begin(buffers=True)

    def get(self, number: int) -> Tree:
        return load_blob(self._transaction.get(_NUMBER.pack(number)), self.kind)

    def scan(self) -> Iterator[Tree]:
        with self._transaction.cursor() as cursor:
            for blob in cursor.iternext(keys=False, values=True):
                yield load_blob(blob, self.kind)

    def close(self) -> None:
        self._transaction.abort()
        self._environment.close()


class Sqlite(Peer):
    """SQLite: a table of blobs."""

    name = "SQLite blobs"
    durable = True

    def write(self, samples: Samples) -> None:
        with contextlib.closing(self._connect()) as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("CREATE TABLE sample (number INTEGER PRIMARY KEY, data BLOB NOT NULL)")
            for group in grouped(samples):
                db.execute("BEGIN")
                db.executemany("INSERT INTO sample VALUES (?, ?)", group)
                db.execute("COMMIT")

    def open(self) -> None:
        self._db = self._connect()

    def get(self, number: int) -> Tree:
        row = self._db.execute("SELECT data FROM sample WHERE number = ?", (number,)).fetchone()
        return load_blob(row[0], self.kind)

    def scan(self) -> Iterator[Tree]:
        for (blob,) in self._db.execute("SELECT data FROM sample ORDER BY number"):
            yield load_blob(blob, self.kind)

    def close(self) -> None:
        self._db.close()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "samples.sqlite", isolation_level=None)


class DiskCache(Peer):
    """diskcache: SQLite for small blobs, one file for each large one."""

    name = "diskcache (bytes)"
    package = "diskcache"

    def write(self, samples: Samples) -> None:
        with self._connect() as cache:
            for group in grouped(samples):
                with cache.transact():
                    for number, blob in group:
                        cache.set(number, blob)

    def open(self) -> None:
        self._cache = self._connect()

    def get(self, number: int) -> Tree:
        return load_blob(self._cache.get(number), self.kind)

    def close(self) -> None:
        self._cache.close()

    def _connect(self) -> Any:
        import diskcache

        return diskcache.Cache(str(self.folder), size_limit=1 << 40, eviction_policy="none", cull_limit=0)
