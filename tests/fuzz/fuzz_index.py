"""The index: whatever lies in its place, a store opens, gives no wrong entry, and has them all once it is made anew.

An input is JSON: `writes`, bytes that are written over the file of a good store, `size`, to which it is then cut or
grown, and `sql`, statements that somebody has run on it. `log` is what lies beside it as SQLite's own log, in hex.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import precook
from tests.fuzz.frame import Target, mutate_json
from tests.support.snapshots import freeze

RECIPE = precook.Recipe("good", {"a": 1})
COUNT = 8
MAX_SIZE = 1 << 20


def value(number: int) -> Any:
    """The tree under a key."""
    return {"x": np.arange(number + 1), "number": number}


@functools.cache
def template() -> Path:
    """A store of several packs and a snapshot, one of whose entries was removed."""
    path = Path(tempfile.mkdtemp()) / "cache"
    with precook.open(path) as store:
        for start in range(0, COUNT, 4):
            with store.writer() as writer:
                for number in range(start, start + 4):
                    writer.put(RECIPE.key(number), value(number), recipe=RECIPE, labels={"n": number})
        freeze(store, "test", [RECIPE.key(number) for number in range(4)])
        store.get(RECIPE.key(0))
    with contextlib.closing(sqlite3.connect(path / "index.sqlite")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def change(path: Path, form: Any) -> None:
    """Do to an index what an input says; `ValueError` and the like where it says nothing that can be done."""
    if form["sql"]:
        run_sql(path, form["sql"])
    data = bytearray(path.read_bytes())
    for offset, text in form["writes"]:
        written = bytes.fromhex(text)
        place = int(offset) % (len(data) + 1)
        data[place : place + len(written)] = written
    if form["size"] is not None:
        size = int(form["size"]) % MAX_SIZE
        data = data[:size].ljust(size, b"\0")
    path.write_bytes(data)
    if form["log"]:
        path.with_name(path.name + "-wal").write_bytes(bytes.fromhex(form["log"]))


def run_sql(path: Path, statements: Any) -> None:
    """Let somebody's statements change the database."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema=ON")
        steps = [0]

        def end() -> bool:
            steps[0] += 1
            return steps[0] > 2000

        database.set_progress_handler(end, 1000)
        for statement in statements:
            with contextlib.suppress(sqlite3.Error, sqlite3.Warning):
                database.execute(statement).fetchmany(10)
        with contextlib.suppress(sqlite3.Error):
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def check(data: bytes) -> bool:
    """Open a store with a changed index, read everything, and make the index anew."""
    path = template().with_name("copy")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template(), path)
    try:
        form = json.loads(data)
        change(path / "index.sqlite", form)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError, AttributeError):
        return False  # there is no such index
    with contextlib.suppress(precook.StoreError), precook.open(path, read_only=True) as store:
        read(store)
    with precook.open(path) as store:
        read(store)
        store.stats()
        store.totals()
        list(store.entries())
        store.verify()
        store.put(RECIPE.key(-1), value(0), recipe=RECIPE)
        store.reindex()
    with precook.open(path) as store:
        found = read(store)
        # What somebody has removed by hand, with all its checksums, is removed.
        assert form["sql"] or found == COUNT, found
        assert store.get(RECIPE.key(-1))["number"] == 0
    return True


def read(store: precook.Store) -> int:
    """How many entries are there; none is another than was put."""
    found = 0
    for number in range(COUNT):
        with contextlib.suppress(precook.MissingEntryError):
            tree = store.get(RECIPE.key(number), tensors="numpy")
            assert tree["number"] == number
            assert np.array_equal(tree["x"], value(number)["x"])
            found += 1
    return found


def seeds() -> list[bytes]:
    """The index as it is, with other bytes, cut off, and changed by statements."""
    forms: list[dict[str, Any]] = [{}]
    forms += [{"writes": [[offset, "ff00ff"]]} for offset in (0, 18, 28, 100, 200, 4096, 4200, 8192, 20_000)]
    forms += [{"size": size} for size in (0, 50, 512, 4096, 30_000, 200_000)]
    forms += [{"log": "377f0682"}, {"log": "00" * 100}]
    forms += [{"sql": [statement]} for statement in SQL]
    forms += [{"sql": [f"DROP TABLE {name}", view]} for name, view in VIEWS.items()]
    whole = {"writes": [], "size": None, "sql": [], "log": ""}
    return [json.dumps({**whole, **form}).encode() for form in forms]


SQL = [
    "DELETE FROM entry",
    "UPDATE entry SET row = row + 1",
    "UPDATE entry SET pack = 99",
    "UPDATE entry SET row = 'x', bytes = NULL",
    "UPDATE pack SET entries = -1, bytes = 1 << 62",
    "UPDATE store SET removals = 'x'",
    "DROP TABLE entry",
    "CREATE TABLE more (x)",
    "CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM entry; END",
    "UPDATE sqlite_master SET sql = 'x' WHERE name = 'entry'",
    "UPDATE sqlite_master SET sql = CAST(x'ff' AS TEXT) WHERE name = 'entry'",
    "INSERT INTO note VALUES ('verify', x'00', x'ff', x'00')",
    "INSERT INTO dropped SELECT id, x'ff', x'00' FROM pack",
    "PRAGMA user_version = 77",
    "PRAGMA application_id = 1",
]


ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)"
VIEWS = {
    "entry": f"CREATE VIEW entry AS {ENDLESS} SELECT x AS key, x AS pack, x AS row, x AS recipe, x AS bytes FROM r",
    "store": f"CREATE VIEW store AS {ENDLESS} SELECT x AS id, x AS made, x AS removals FROM r",
    "note": f"CREATE VIEW note AS {ENDLESS} SELECT x AS kind, x AS key, x AS text, x AS checksum FROM r",
}
"""In the place of a table, what never ends."""


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Bytes at other places, or anything else about the input."""
    if rng.randrange(3):
        return mutate_json(data, rng)
    try:
        form = json.loads(data)
        form["writes"].append([rng.randrange(1 << 17), rng.randbytes(rng.choice([1, 1, 2, 4, 16, 64])).hex()])
    except (ValueError, LookupError, TypeError, AttributeError):
        return mutate_json(data, rng)
    return json.dumps(form).encode()


TARGET = Target("index", seeds, check, mutate)
