"""Parquet files by our own reader: the cells that pyarrow wrote, and what a forged file can no longer do."""

from __future__ import annotations

import contextlib
import io
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook.sources import parquet_values
from precook.sources.parquet import Chunk, ParquetFooter, TableFileError, read_footer
from precook.sources.parquet_values import ParquetCells
from precook.sources.thrift import I32, I64, LIST, STRUCT, Struct, ThriftError, ThriftList, read_struct, write_struct

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def fresh(_: object, make: Callable[[], Any]) -> Any:
    """Nothing is kept."""
    return make()


def written(rows: list[Any], **options: Any) -> bytes:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    file = io.BytesIO()
    parquet.write_table(pa.table({"n": range(len(rows)), "image": pa.array(rows, kind)}), file, **options)
    return file.getvalue()


def forged(content: bytes, change: Callable[[Struct], object]) -> bytes:
    """A file whose footer says something else."""
    length = int.from_bytes(content[-8:-4], "little")
    footer, _ = read_struct(content[-8 - length : -8])
    change(footer)
    changed = write_struct(footer)
    return content[: -8 - length] + changed + len(changed).to_bytes(4, "little") + b"PAR1"


def columns(footer: Struct) -> list[Struct]:
    """What a footer says of each column of the first part."""
    return [column[3][1] for column in footer[4][1].values[0][1][1].values]


def cells(path: Path, content: bytes) -> list[bytes | None]:
    """All cells of the column of pictures, one by one."""
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        footer = read_footer(descriptor, len(content))
        pictures = footer.pictures("image")
        assert pictures is not None
        column = ParquetCells(footer, pictures[0])
        return [column.read(descriptor, row, fresh) for row in range(footer.rows)]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_cells_are_those_that_were_written(tmp_path: Path, compression: str, version: str, dictionary: bool) -> None:
    """In every packing and form of pages, with nulls of both kinds, equal values and empty ones."""
    rng = random.Random(compression + version)
    rows: list[Any] = []
    for number in range(60):
        content = rng.choice([rng.randbytes(rng.choice([0, 7, 3000])), b"the same"])
        rows.append(rng.choice([{"bytes": content, "path": f"{number}.png"}, {"bytes": None, "path": "x"}, None]))
    content = written(
        rows,
        compression=compression,
        data_page_version=version,
        use_dictionary=dictionary,
        row_group_size=25,
        data_page_size=2000,
        write_batch_size=4,
        write_page_checksum=True,
    )
    assert cells(tmp_path / "t.parquet", content) == [None if row is None else row["bytes"] for row in rows]


def test_statistics_are_never_passed_on(tmp_path: Path) -> None:
    """What pyarrow gets of a file has its values and no word about them."""
    content = written([{"bytes": b"x", "path": "a"}])
    (tmp_path / "t.parquet").write_bytes(content)
    descriptor = os.open(tmp_path / "t.parquet", os.O_RDONLY)
    footer = read_footer(descriptor, len(content))
    excerpt = footer.excerpt(descriptor, footer.leaves("n"))
    os.close(descriptor)
    assert parquet.read_table(io.BytesIO(excerpt)).to_pydict() == {"n": [0]}
    length = int.from_bytes(excerpt[-8:-4], "little")
    [column] = columns(read_struct(excerpt[-8 - length : -8])[0])
    assert set(column) <= {1, 2, 3, 4, 5, 6, 7, 9, 11}


FORGERIES: dict[str, tuple[Callable[[Struct], object], str]] = {
    "more rows than its parts": (lambda root: root.update({3: (I64, 9)}), "contradicts itself"),
    "fewer than no rows": (lambda root: root[4][1].values[0].update({3: (I64, -1)}), "rows below none"),
    "another type": (lambda root: columns(root)[1].update({1: (I32, 1)}), "other columns"),
    "other values": (lambda root: columns(root)[1].update({5: (I64, 7)}), "contradicts itself"),
    "beyond the file": (lambda root: columns(root)[1].update({7: (I64, 1 << 40)}), "outside of the file"),
    "before the file": (lambda root: columns(root)[1].update({9: (I64, 0), 11: (I64, 0)}), "outside of the file"),
    "a column too few": (lambda root: root[4][1].values[0][1][1].values.pop(), "other columns"),
    "in another file": (
        lambda root: root[4][1].values[0][1][1].values[1].update({1: (8, b"/etc/passwd")}),
        "in other files",
    ),
    "children that are not there": (lambda root: root[2][1].values[0].update({5: (I32, 9)}), "the schema is broken"),
    "no type that is known": (lambda root: root[2][1].values[1].update({1: (I32, 99)}), "no type of values"),
    "a codec that is not known": (lambda root: columns(root)[1].update({4: (I32, 3)}), "codec 3"),
    "no schema": (lambda root: root.update({2: (LIST, ThriftList(STRUCT, []))}), "the schema is broken"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_footer_that_contradicts_itself_is_refused(tmp_path: Path, what: str) -> None:
    """By us, and before anybody else looks at it."""
    change, words = FORGERIES[what]
    content = forged(written([{"bytes": b"x", "path": "a"}], use_dictionary=False), change)
    with pytest.raises(TableFileError, match=words):
        cells(tmp_path / "t.parquet", content)


def test_a_page_that_claims_much_more_than_its_bytes_is_refused(tmp_path: Path) -> None:
    """It is not unpacked to find out."""
    content = written([{"bytes": bytes(200 << 20), "path": "a"}], compression="gzip", use_dictionary=False)
    assert len(content) < 1 << 20
    with pytest.raises(TableFileError, match=r"a page of .* claims 200"):
        cells(tmp_path / "t.parquet", content)


def test_damage_in_a_page_is_found_by_its_checksum(tmp_path: Path) -> None:
    """Where the file has one."""
    picture = random.Random(0).randbytes(5000)
    content = written([{"bytes": picture, "path": "a"}], compression="none", write_page_checksum=True)
    place = content.index(picture) + 100
    damaged = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    assert zlib.crc32(damaged) != zlib.crc32(content)
    with pytest.raises(TableFileError, match="its checksum is another one"):
        cells(tmp_path / "t.parquet", damaged)


VALUES = st.recursive(
    st.integers(-(2**63), 2**63 - 1).map(lambda number: (I64, number)) | st.binary().map(lambda text: (8, text)),
    lambda inner: (
        st.dictionaries(st.integers(-100, 40), inner, max_size=5).map(lambda fields: (STRUCT, fields))
        | st.lists(st.binary(), max_size=20).map(lambda texts: (LIST, ThriftList(8, texts)))
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.integers(-100, 40), VALUES, max_size=6))
def test_a_struct_is_read_as_it_was_written(struct: Struct) -> None:
    """Whatever is in it, and to its last byte."""
    content = write_struct(struct)
    assert read_struct(content) == (struct, len(content))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_struct_or_refused(content: bytes) -> None:
    """With one kind of error, and in no more memory than they have."""
    with contextlib.suppress(ThriftError):
        read_struct(content)
    with contextlib.suppress(TableFileError):
        ParquetFooter(content, 100)


def test_a_table_without_rows_is_one(tmp_path: Path) -> None:
    """As pyarrow writes it: a part without rows, whose columns lie nowhere."""
    assert cells(tmp_path / "empty.parquet", written([])) == []


def test_parts_of_a_column_that_lie_over_each_other_are_refused(tmp_path: Path) -> None:
    """A small file that names the same bytes a thousand times would be read a thousand times."""

    def repeat(footer: Struct) -> None:
        groups = footer[4][1]
        footer[3] = I64, 1000 * footer[3][1]
        footer[4] = LIST, ThriftList(groups.kind, groups.values * 1000)

    content = forged(written([{"bytes": bytes(50_000), "path": "a"}], compression="none"), repeat)
    with pytest.raises(TableFileError, match="over each other"):
        cells(tmp_path / "forged.parquet", content)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "brotli", "lz4_raw"])
def test_a_page_that_is_shorter_than_it_claims_is_refused(codec: str) -> None:
    """Whatever lies in memory behind it is no part of a picture."""
    packed = pa.compress(bytes(100), codec=codec, asbytes=True)
    number = next(number for number, name in parquet_values._CODECS.items() if name == codec)
    part = parquet_values._Part.__new__(parquet_values._Part)
    object.__setattr__(part, "chunk", Chunk(4, len(packed), {4: (I32, number)}))
    assert parquet_values._decompressed(part, packed, 100) == bytes(100)
    for size in (101, 4000):
        with pytest.raises(TableFileError, match="damaged"):
            parquet_values._decompressed(part, packed, size)
