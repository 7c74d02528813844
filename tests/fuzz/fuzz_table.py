"""Tables: any bytes are a table of some format, or refused by a `SourceError`; and what its rows name stays inside.

The first byte of an input says which format it is: `j` lines of JSON, `c` a .csv, `t` a .tsv, `p` Parquet.
"""

from __future__ import annotations

import functools
import io
import json
import os
import random
import tempfile
from pathlib import Path

from precook.config.concept import Concept
from precook.errors import SourceError
from precook.sources.sample_files import table_files
from precook.sources.tables import read_table
from precook.sources.walk import OUTSIDE
from tests.fuzz.frame import Target, mutate_bytes, mutate_json

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError:  # the other formats need nothing
    pa = None

SUFFIXES = {b"j": ".jsonl", b"c": ".csv", b"t": ".tsv", b"p": ".parquet"}
ROWS = [
    {"image": "a.png", "caption": "a cat", "mask": "a-mask.png"},
    {"image": "b/c.png", "caption": 'a "quoted", comma\n', "mask": None},
    {"image": "../secret.png", "caption": "", "mask": "/etc/passwd"},
    {"image": "link.png", "caption": "é", "mask": "link.png"},
]
LISTS = [{**row, "caption": [row["caption"], "more"]} for row in ROWS]


@functools.cache
def folder() -> Path:
    """A folder with pictures that are there, and links that lead out of it."""
    home = Path(tempfile.mkdtemp())
    inside = home / "inside"
    (inside / "b").mkdir(parents=True)
    for name in ("a.png", "a-mask.png", "b/c.png", "../secret.png"):
        (inside / name).write_bytes(b"")
    (inside / "link.png").symlink_to("../secret.png")
    (inside / "up").symlink_to("..")
    return inside


def check(data: bytes) -> bool:
    """Read a table and look at the files that it names."""
    path = folder() / f"table{SUFFIXES.get(data[:1], '.jsonl')}"
    path.write_bytes(data[1:])
    concept = Concept.model_validate(
        {"name": "t", "path": path.name, "captions": {"column": "caption"}, "masks": {"column": "mask"}}
    )
    try:
        table = read_table(path, caption_column="caption", mask_column="mask")
    except SourceError as error:
        assert error.hint
        return False
    assert all(isinstance(row.image, str) and row.image for row in table.rows)
    assert all(isinstance(caption, str) for row in table.rows for caption in row.captions or ())
    assert all(problem.reason and problem.number > 0 for problem in table.problems)
    listing = table_files(concept, path, table).listing
    root = os.path.realpath(folder())
    for row in listing.regular().nonzero()[0].tolist()[:100]:
        assert os.path.realpath(listing.full_path(row)).startswith(root + os.sep)
    for row in (listing.modes == OUTSIDE).nonzero()[0].tolist()[:100]:
        assert "outside: allow" in listing.problem(row)
    return True


def seeds() -> list[bytes]:
    """The same rows in each format."""
    found = [b"j" + "\n".join(map(json.dumps, rows)).encode() for rows in (ROWS, LISTS)]
    for kind, separator in ((b"c", ","), (b"t", "\t")):
        cells = [['"{}"'.format(str(row[name] or "").replace('"', '""')) for name in row] for row in ROWS]
        text = "\r\n".join(separator.join(line) for line in [["image", "caption", "mask"], *cells])
        found.append(kind + text.encode())
    if pa is not None:
        for rows in (ROWS, LISTS, ROWS * 50):
            for compression in ("none", "gzip"):
                file = io.BytesIO()
                parquet.write_table(pa.Table.from_pylist(rows), file, compression=compression)
                found.append(b"p" + file.getvalue())
    return found


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A line of JSON is changed as JSON, everything else as bytes."""
    kind, rest = data[:1], data[1:]
    if kind != b"j" or rng.randrange(4) == 0:
        return kind + mutate_bytes(rest, rng)
    lines = rest.split(b"\n")
    number = rng.randrange(len(lines))
    lines[number] = mutate_json(lines[number], rng)
    return kind + b"\n".join(lines)[: 1 << 16]


TARGET = Target("table", seeds, check, mutate, ("image", "caption", "mask", "../", "/etc/passwd", "link.png", "PAR1"))
