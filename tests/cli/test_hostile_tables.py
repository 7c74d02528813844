"""Tables that claim more than they have: an error that says so, soon and in little memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from precook.sources.thrift import I64, LIST, STRUCT, Struct, ThriftList
from tests.cli.test_hostile_store import limited
from tests.sources.test_parquet import columns, forged
from tests.support.projects import picture

CONFIG = """\
store: cache
dataset: given
concepts: [{{name: given, path: {table}, captions: {{column: caption}}}}]
encoders:
  pixels: {{uses: image}}
"""


def parquet(path: Path, images: tuple[list[str], list[int]], captions: list[list[str]] | None = None) -> None:
    """A Parquet file; images are values, and which of them stands in each row."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    values, rows = images
    image = pyarrow.DictionaryArray.from_arrays(pyarrow.array(rows, pyarrow.int32()), pyarrow.array(values))
    caption = pyarrow.nulls(len(rows), pyarrow.string()) if captions is None else pyarrow.array(captions)
    table = pyarrow.table({"image": image, "caption": caption})
    parquet.write_table(table, path, row_group_size=len(rows), compression="gzip", use_dictionary=["image"])


def sparse(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 64 << 30)


TABLES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "more rows than bytes": (
        "t.parquet",
        lambda path: parquet(path, (["a.png"], [0] * 4_000_000)),
        "it claims 4,000,000 values",
    ),
    "one long text in every row": (
        "t.parquet",
        lambda path: parquet(path, (["a" * 1_000_000], [0] * 200_000)),
        "its texts are more than 50 times the file",
    ),
    "a text of zeros": (
        "t.parquet",
        lambda path: parquet(path, (["a.png"], [0]), [["a" * 200_000_000]]),
        "it claims 1 values of 190.7 MiB",
    ),
    "lists of nothing": (
        "t.parquet",
        lambda path: parquet(path, (["a.png"], [0] * 100), [[""] * 50_000] * 100),
        "it claims 5,000,000 values",
    ),
    "holes": ("t.jsonl", sparse, "64.0 GiB, or mostly holes"),
    "holes in a csv": ("t.csv", sparse, "64.0 GiB, or mostly holes"),
    "nothing but problems": ("t.jsonl", lambda path: path.write_text("1\n" * 300_000), "more than 100,000 rows cannot"),
    "a FIFO": ("t.csv", os.mkfifo, "a FIFO, not a file"),
}


@pytest.mark.parametrize("what", TABLES)
def test_a_table_that_claims_too_much_is_refused(tmp_path: Path, what: str) -> None:
    """It is not unfolded to find out: the command ends with the table's name, the reason and a next step."""
    name, make, reason = TABLES[what]
    make(tmp_path / name)
    config = tmp_path / "precook.yaml"
    config.write_text(CONFIG.format(table=name))
    ended = limited("plan", "--config", config)
    assert ended.returncode == 1, ended.stderr
    assert f"{name}: {reason}" in ended.stderr
    assert "hint:" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_forged_statistics_end_no_process(tmp_path: Path) -> None:
    """Pyarrow would: a histogram of levels that a column does not have is an exception that nobody catches."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"image": ["a.png"], "caption": ["a cat"]}), tmp_path / "t.parquet")

    def change(footer: Struct) -> None:
        for column in columns(footer):
            column[16] = (STRUCT, {2: (LIST, ThriftList(I64, [1, 2]))})

    (tmp_path / "t.parquet").write_bytes(forged((tmp_path / "t.parquet").read_bytes(), change))
    picture(tmp_path / "a.png", 1)
    config = tmp_path / "precook.yaml"
    config.write_text(CONFIG.format(table="t.parquet"))
    ended = limited("plan", "--config", config)
    assert ended.returncode == 0, ended.stderr
    assert "given: 1 sample in 1 concept" in ended.stdout
