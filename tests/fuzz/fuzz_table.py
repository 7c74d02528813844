"""Tables: any bytes are a table of some format, or refused by a `SourceError`; and what its rows name stays inside.

The first byte of an input says which format it is: `j` lines of JSON, `c` a .csv, `t` a .tsv, `p` Parquet, `a` a stream
of Arrow. Of the last two the cells may hold pictures.
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
from precook.fs.trust import FileSystem
from precook.memo.memo import Memory
from precook.report import SILENT
from precook.sources.embedded import PageCache, TableFile, collect_embedded
from precook.sources.facts import PictureReader
from precook.sources.sample_files import table_files
from precook.sources.tables import read_table
from precook.sources.walk import OUTSIDE
from tests.fuzz.frame import Target, mutate_bytes, mutate_json

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError:  # the other formats need nothing
    pa = None

SUFFIXES = {b"j": ".jsonl", b"c": ".csv", b"t": ".tsv", b"p": ".parquet", b"a": ".arrow"}
ROWS = [
    {"image": "a.png", "caption": "a cat", "mask": "a-mask.png"},
    {"image": "b/c.png", "caption": 'a "quoted", comma\n', "mask": None},
    {"image": "../secret.png", "caption": "", "mask": "/etc/passwd"},
    {"image": "link.png", "caption": "é", "mask": "link.png"},
]
LISTS = [{**row, "caption": [row["caption"], "more"]} for row in ROWS]
EMBEDDED = [
    {"image": {"bytes": b"GIF89a" + bytes(20), "path": "a.png"}, "caption": "a", "mask": b"GIF"},
    {"image": {"bytes": None, "path": "../secret.png"}, "caption": None, "mask": None},
    {"image": None, "caption": "b", "mask": b""},
] * 3


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
        file = TableFile(path, path.name, table, PageCache())
        facts = {
            (0, column): collect_embedded(
                file,
                column,
                PictureReader(),
                Memory(None),
                file_system=FileSystem(0, trusted=False),
                save=lambda: None,
                report=SILENT,
            )
            for column in table.embedded
        }
    except SourceError as error:
        assert error.hint
        return False
    assert all(isinstance(row.image, str) and (row.image or "image" in table.embedded) for row in table.rows)
    assert all(isinstance(caption, str) for row in table.rows for caption in row.captions or ())
    assert all(problem.reason and problem.number > 0 for problem in table.problems)
    files, problems = table_files(concept, path.parent, [file], facts)
    assert len(files.pictures) + len(problems) == len(table.rows)
    listing = files.listing
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
        for version, dictionary in (("1.0", True), ("2.0", False), ("1.0", False)):
            file = io.BytesIO()
            table = pa.Table.from_pylist(EMBEDDED)
            options = {"data_page_version": version, "use_dictionary": dictionary, "row_group_size": 4}
            parquet.write_table(table, file, compression="snappy", **options)
            found.append(b"p" + file.getvalue())
        for rows in (ROWS, LISTS, EMBEDDED):
            file = io.BytesIO()
            table = pa.Table.from_pylist(rows)
            with pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table, max_chunksize=4)
            found.append(b"a" + file.getvalue())
    return found


def mutate_footer(data: bytes, rng: random.Random) -> bytes:
    """What a Parquet file says about itself, with a length that is right again."""
    length = int.from_bytes(data[-8:-4], "little")
    if not 0 < length < len(data) - 8:
        return mutate_bytes(data, rng)
    footer = mutate_bytes(data[-8 - length : -8], rng)
    return data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def mutate(data: bytes, rng: random.Random) -> bytes:
    """A line of JSON is changed as JSON, everything else as bytes."""
    kind, rest = data[:1], data[1:]
    if kind == b"p" and rng.randrange(2):
        return kind + mutate_footer(rest, rng)
    if kind != b"j" or rng.randrange(4) == 0:
        return kind + mutate_bytes(rest, rng)
    lines = rest.split(b"\n")
    number = rng.randrange(len(lines))
    lines[number] = mutate_json(lines[number], rng)
    return kind + b"\n".join(lines)[: 1 << 16]


TARGET = Target("table", seeds, check, mutate, ("image", "caption", "mask", "../", "/etc/passwd", "link.png", "PAR1"))
