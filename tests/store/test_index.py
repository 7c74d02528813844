"""The index: whatever lies in its place the store opens by itself, and what only the index knows is kept."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import precook
from precook.maintain.prune import plan_clear
from tests.crash.library import UnavailableError, compile_library
from tests.support.commands import environment

GONE = precook.Recipe("gone", {})
COUNT = 12


@pytest.fixture
def keys(recipe: precook.Recipe) -> list[precook.Key]:
    return [recipe.key(number) for number in range(COUNT)]


@pytest.fixture
def built(path: Path, recipe: precook.Recipe, keys: list[precook.Key]) -> Path:
    """A store of one pack, of which one entry was removed: its row is still there, and only the index says so."""
    with precook.open(path) as store:
        with store.writer() as writer:
            writer.put(GONE.key(0), np.arange(30), recipe=GONE)
            for number, key in enumerate(keys):
                writer.put(key, np.full(300, number), recipe=recipe)
        assert plan_clear(store, recipe="gone").execute().entries == 1
    return path


def check(path: Path, keys: list[precook.Key], **options: bool) -> bool:
    """Every entry can be read, in a store that opens by itself; whether the one that was removed stays away."""
    with precook.open(path, **options) as store:
        assert store.missing(keys) == []
        assert [int(store.get(key)[0]) for key in keys] == list(range(COUNT))
        return GONE.key(0) not in store


def definitions(index: Path) -> list[tuple[str, ...]]:
    """What is in a database."""
    with contextlib.closing(sqlite3.connect(index)) as db:
        return db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()


def edited(index: Path, script: str) -> None:
    """Change a database as a stranger would."""
    with contextlib.closing(sqlite3.connect(index)) as db:
        db.executescript(script)


# What lies there is damaged.


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_a_flipped_bit_in_a_definition_is_mended_by_opening(built: Path, keys: list[precook.Key], bit: int) -> None:
    """Also where the text is then none; and what was removed comes back only where its own table is hit."""
    index = built / "index.sqlite"
    good = index.read_bytes()
    begin, end = good.find(b"CREATE TABLE note"), good.find(b"CREATE TABLE store")
    # Of the table that says so itself: its name, and its definition.
    own = range(good.find(b"droppeddropped"), good.find(b"ROWID", good.find(b"CREATE TABLE dropped")) + 5)
    for offset in [*range(begin, end, 61), end + 15]:
        index.write_bytes(good[:offset] + bytes([good[offset] ^ bit]) + good[offset + 1 :])
        assert check(built, keys) or own.start - 16 < offset < own.stop, offset
        assert definitions(index)


@pytest.mark.parametrize("command", ["status", "reindex", "ls", "verify", "gc"])
def test_a_flipped_bit_in_a_definition_stops_no_command(built: Path, command: str) -> None:
    """Not even those that change nothing: they do without the index."""
    index = built / "index.sqlite"
    good = index.read_bytes()
    offset = good.find(b"TABLE pack")
    index.write_bytes(good[:offset] + bytes([good[offset] ^ 0x80]) + good[offset + 1 :])
    assert finished(command, "--store", built).returncode == 0


# What lies there is no index.


def make_directory(place: Path) -> None:
    place.mkdir()
    (place / "content").write_text("somebody's")


def make_socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        # Under a short name: that of a socket may have a hundred characters only.
        short = Path(os.path.relpath(place.with_name("s")))
        before = Path.cwd()
        os.chdir(place.parent)
        try:
            listener.bind("s")
        finally:
            os.chdir(before)
        short.rename(place)


def make_link(place: Path) -> None:
    target = place.parent.parent / f"{place.name}.target"
    edited(target, "CREATE TABLE theirs (a); INSERT INTO theirs VALUES (7);")
    place.symlink_to(target)


ODD: dict[str, Callable[[Path], None]] = {
    "directory": make_directory,
    "fifo": os.mkfifo,
    "socket": make_socket,
    "link": make_link,
    "dangling link": lambda place: place.symlink_to("nowhere"),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal", ".next"])
def test_what_is_no_file_is_put_aside_and_never_opened(
    built: Path, keys: list[precook.Key], caplog: pytest.LogCaptureFixture, what: str, ending: str
) -> None:
    """Nobody waits for a FIFO, what a link leads to stays as it is, nothing of anybody's is lost, and it is told."""
    place = built / f"index.sqlite{ending}"
    place.unlink(missing_ok=True)
    ODD[what](place)
    kind = stat.S_IFMT(place.lstat().st_mode)
    target = place.resolve().read_bytes() if what == "link" else b""
    removed_is_known = bool(ending)

    # Who only reads leaves it where it is.
    assert check(built, keys, read_only=True) == removed_is_known
    assert stat.S_IFMT(place.lstat().st_mode) == kind

    assert check(built, keys) == removed_is_known
    assert place.name in caplog.text
    assert not place.exists() or place.is_file()
    aside = list(built.glob(f"index.sqlite{ending}.aside-*"))
    if "link" in what:
        assert not aside
    else:
        assert [stat.S_IFMT(path.lstat().st_mode) for path in aside] == [kind]
        assert aside[0].name in caplog.text
    if what == "link":
        assert (built.parent / f"{place.name}.target").read_bytes() == target
    # Once is enough.
    caplog.clear()
    check(built, keys)
    assert not caplog.records


def test_a_journal_that_names_a_file_does_not_cost_that_file(built: Path, keys: list[precook.Key]) -> None:
    """A rollback journal is none of ours, and SQLite would remove the file that the end of one names."""
    victim = built.parent / "victim"
    victim.write_text("precious")
    name = os.fsencode(victim)
    page = struct.pack(">I", 1)
    header = bytes.fromhex("d9d505f920a163d7") + struct.pack(">IIIII", 0, 1, 1, 512, 4096)
    ending = page + name + struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    (built / "index.sqlite-journal").write_bytes(header.ljust(512, b"\0") + ending)
    check(built, keys, read_only=True)
    assert check(built, keys)
    assert victim.read_text() == "precious"
    assert not (built / "index.sqlite-journal").exists()


# What lies there is somebody else's index.

NEVER_ENDS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT"
HOSTILE = {
    "a view without end for the packs": (
        f"DROP TABLE pack; CREATE VIEW pack AS {NEVER_ENDS} i AS number, x'00' AS id, 0 AS created, 0 AS bytes,"
        " 0 AS entries, 0 AS payload, 0 AS live, 0 AS doomed FROM n;"
    ),
    "a view without end for the store": (
        f"DROP TABLE store; CREATE VIEW store AS {NEVER_ENDS} 'x' AS id, x'00' AS made, 0 AS removals FROM n;"
    ),
    "a view for the entries": (
        "DROP TABLE entry; CREATE VIEW entry AS SELECT x'00' AS key, 0 AS pack, 0 AS row, 0 AS recipe, 0 AS bytes"
        " WHERE 0;"
    ),
    "a trigger": "CREATE TRIGGER undo AFTER INSERT ON pack BEGIN DELETE FROM entry; END;",
    "another table": "CREATE TABLE extra (a);",
    "another index": "CREATE INDEX extra ON entry (bytes);",
    "a column that is computed": "ALTER TABLE recipe ADD COLUMN extra AS (number * 2);",
    "what was remembered without end": (
        f"DROP TABLE memory; CREATE VIEW memory AS {NEVER_ENDS} 'files' AS kind, i AS number, x'00' AS keys,"
        " x'00' AS contents, x'00' AS checksum FROM n;"
    ),
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("read_only", [True, False])
def test_an_index_with_anything_in_it_that_is_not_ours_is_not_used(
    built: Path, keys: list[precook.Key], script: str, read_only: bool
) -> None:
    """A view, a trigger, a table more: nothing of it is run, no entry is missing, and what was removed stays so."""
    index = built / "index.sqlite"
    ours = definitions(index)
    edited(index, script)
    assert opened_by_another(built, keys, read_only=read_only)
    assert check(built, keys)
    assert definitions(index) == ours


@pytest.mark.parametrize("table", ["pack", "store", "memory"])
def test_pages_that_lead_back_to_others_are_not_followed_for_ever(
    built: Path, keys: list[precook.Key], table: str
) -> None:
    """A few pages can stand for more rows than anybody can read; that is noticed, and the index is made anew."""
    make_endless(built / "index.sqlite", table)
    assert opened_by_another(built, keys, read_only=True)
    assert opened_by_another(built, keys, read_only=False)


def make_endless(index: Path, table: str) -> None:
    """Give a table a root that leads by eight steps, four hundred ways each, to the leaf that it had."""
    with contextlib.closing(sqlite3.connect(index)) as db:
        # A row for it: an empty page is refused where others lead to it.
        db.execute("INSERT INTO memory VALUES ('files', 0, x'00', x'00', x'00')")
        db.commit()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(index.read_bytes())
    pages = len(data) // size
    # The leaf moves to the end; every page behind it leads to the one before, and the old root to the last.
    data += data[(root - 1) * size : root * size]
    below = pages + 1
    for _ in range(8):
        data += interior(size, below)
        below += 1
    data[(root - 1) * size : root * size] = interior(size, below)
    data[28:32] = struct.pack(">I", len(data) // size)
    data[92:96] = data[24:28]
    index.write_bytes(data)


def interior(size: int, child: int) -> bytes:
    """A page of a table that leads to one other page, as often as there is room."""
    cells = 400
    cell = struct.pack(">IB", child, 1)
    begin = size - cells * len(cell)
    header = struct.pack(">BHHHBI", 5, 0, cells, begin, 0, child)
    pointers = b"".join(struct.pack(">H", begin + number * len(cell)) for number in range(cells))
    return (header + pointers).ljust(begin, b"\0") + cell * cells


READER = """
import sys
import precook

with precook.open(sys.argv[1], read_only=sys.argv[2] == "True") as store:
    keys = [precook.Key(bytes.fromhex(key)) for key in sys.argv[3:]]
    assert [int(store.get(key)[0]) for key in keys] == list(range(len(keys)))
    assert store.missing(keys) == []
    assert store.stats().entries >= len(keys)
    memory = store.memory()
    print(len(store))
"""


def opened_by_another(path: Path, keys: list[precook.Key], *, read_only: bool) -> bool:
    """Whether another process, which is ended should it never come to an end, finds every entry and no more."""
    command = [sys.executable, "-c", READER, path, read_only, *(key.hex for key in keys)]
    ended = subprocess.run(
        list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert not ended.returncode, ended.stderr
    return int(ended.stdout) == COUNT


def finished(*args: object) -> subprocess.CompletedProcess[str]:
    """A command that has come to its end in a process of its own."""
    command = [sys.executable, "-m", "precook", *map(str, args)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)


# The system does not give what lies there.

STRUCK = """
import sys
from pathlib import Path

from precook.cli.main import app
from tests.crash.library import FAULTS, Library

Library().arm(Path(sys.argv[1]), FAULTS[sys.argv[2]], int(sys.argv[3]))
app(sys.argv[4:], prog_name="precook")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes calls of a process fail."""
    try:
        return compile_library(tmp_path_factory.mktemp("library"))
    except UnavailableError as error:
        pytest.skip(str(error))


def struck(library: Path, place: Path, fault: str, at: int, *args: object) -> subprocess.CompletedProcess[str]:
    """A command in whose process the `at`-th read of a file fails."""
    command = [sys.executable, "-c", STRUCK, place, fault, at, *args]
    preloaded = {**environment(), "LD_PRELOAD": str(library)}
    return subprocess.run(
        list(map(str, command)), env=preloaded, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_single_read_error_brings_nothing_back(library: Path, built: Path, keys: list[precook.Key]) -> None:
    """Whichever read of the old index fails: a command succeeds or says so, and what was removed stays removed."""
    for command in ("status", "reindex"):
        for at in range(1, 60, 7):
            ended = struck(library, built / "index.sqlite", "read-eio", at, command, "--store", built)
            assert ended.returncode in (0, 1), ended.stderr
            assert "Traceback" not in ended.stderr
            assert check(built, keys), f"{command}, read {at}"


@pytest.mark.parametrize("command", ["status", "ls", "reindex", "gc"])
def test_an_index_that_the_disk_has_lost_is_made_anew(
    library: Path, built: Path, keys: list[precook.Key], command: str
) -> None:
    """Every read of it fails, for good: commands work all the same, and those that may write put another in its place.

    What only it knew may be lost then, and that is told.
    """
    before = (built / "index.sqlite").stat().st_ino
    ended = struck(library, built / "index.sqlite", "read-eio-forever", 1, command, "--store", built)
    # What is struck goes by the name, so the new one cannot be read either in that process.
    assert ended.returncode == 0 or (command == "reindex" and "cannot be read" in ended.stderr), ended.stderr
    assert "may come back" in ended.stderr
    assert ((built / "index.sqlite").stat().st_ino != before) == (command == "reindex")
    with precook.open(built) as store:
        assert store.missing(keys) == []
