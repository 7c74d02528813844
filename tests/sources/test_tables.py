"""Tables: the samples in .jsonl, .csv, .tsv and .parquet files, and what is said about the rest."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precook import SourceChangedError, SourceError
from precook.sources.table_formats import RowProblem
from precook.sources.tables import SourceTable, TableRow, read_columns, read_table, resolve

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
PATH = TEXT.filter(bool)
LIMIT = 131072
"""The csv module's own limit for a cell."""


@pytest.fixture(autouse=True)
def csv_limit() -> Iterator[None]:
    """The csv module as Python starts it, whatever ran before."""
    before = csv.field_size_limit(LIMIT)
    yield
    csv.field_size_limit(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where tables lie."""
    return tmp_path


def read(path: Path, content: str | bytes, **columns: str | None) -> SourceTable:
    """Write a table and read it."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_table(path, **{"caption_column": "caption", "mask_column": None, **columns})  # type: ignore[arg-type]


def refusal(path: Path, content: str | bytes, **columns: str | None) -> str:
    """What is said about a table that is refused as a whole."""
    with pytest.raises(SourceError) as caught:
        read(path, content, **columns)
    assert caught.value.path == path
    assert caught.value.hint
    return str(caught.value).removeprefix(f"{path}: ")


def reason(path: Path, content: str | bytes, **columns: str | None) -> str:
    """What is said about the second of three rows, where the others are good."""
    table = read(path, content, **columns)
    assert [row.image for row in table.rows] == ["1.jpg", "3.jpg"]
    [problem] = table.problems
    assert problem.number == table.rows[0].number + 1 == table.rows[1].number - 1
    assert problem.reason.isprintable()
    return problem.reason


def jsonl_reason(folder: Path, line: str | bytes, **columns: str | None) -> str:
    line = line.encode() if isinstance(line, str) else line
    first, last = (json.dumps({"image": f"{number}.jpg", "caption": "a cat", "mask": None}).encode() for number in "13")
    return reason(folder / "cats.jsonl", b"\n".join([first, line, last]), **columns)


def csv_reason(folder: Path, line: str | bytes, **columns: str | None) -> str:
    line = line.encode() if isinstance(line, str) else line
    return reason(
        folder / "cats.csv", b"image,caption,mask\n1.jpg,a cat,\n" + line + b"\n3.jpg,a cat,m.png\n", **columns
    )


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def comma_separated(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ["note", "mask", "image", "caption"], delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def parquet_of(columns: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file, **options)
    return file.getvalue()


# What every format gives


@given(
    st.lists(
        st.fixed_dictionaries({"image": PATH, "caption": TEXT, "mask": TEXT, "note": TEXT}),
        min_size=1,
    )
)
def test_every_format_gives_the_same_rows(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]) -> None:
    """A dataset moved from one format to another is the same dataset."""
    folder = tmp_path_factory.mktemp("tables")
    expected = tuple(
        TableRow(number, row["image"], (row["caption"].strip(),) if row["caption"].strip() else (), row["mask"] or None)
        for number, row in enumerate(rows, 1)
    )
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    contents = {
        "a.jsonl": jsonl(rows),
        "a.csv": comma_separated(rows),
        "a.tsv": comma_separated(rows, "\t"),
        "a.parquet": parquet_of(columns, row_group_size=3),
    }
    for name, content in contents.items():
        table = read(folder / name, content, mask_column="mask")
        assert table.rows == expected, name
        assert table.problems == ()


@given(
    st.lists(
        st.fixed_dictionaries(
            {"image": PATH, "caption": st.none() | st.lists(TEXT, max_size=4), "mask": st.none() | TEXT}
        ),
        min_size=1,
    )
)
def test_lists_of_captions_are_the_same_in_both_formats_that_have_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    """Lists and nulls give the same rows from .jsonl and .parquet."""
    folder = tmp_path_factory.mktemp("tables")
    expected = tuple(
        TableRow(
            number,
            row["image"],
            None if row["caption"] is None else tuple(text.strip() for text in row["caption"] if text.strip()),
            row["mask"] or None,
        )
        for number, row in enumerate(rows, 1)
    )
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, content in {"a.jsonl": jsonl(rows), "a.parquet": parquet_of(columns)}.items():
        table = read(folder / name, content, mask_column="mask")
        assert table.rows == expected, name
        assert table.problems == ()


@given(st.binary(max_size=200), st.sampled_from(["a.jsonl", "a.csv", "a.tsv", "a.parquet"]))
def test_any_bytes_give_a_table_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    """Whatever a table holds, it is read, its rows are refused, or it is refused."""
    path = tmp_path_factory.mktemp("tables") / name
    head = b'{"image": "a.jpg", "caption": ""}\n' if name == "a.jsonl" else b"image,caption\n"
    for start in (b"", head, head.replace(b",", b"\t")):
        path.write_bytes(start + content)
        try:
            read_table(path, caption_column="caption", mask_column=None)
        except SourceError as error:
            assert error.hint


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.JSONL", "a.csv", "a.Csv", "a.tsv", "a.parquet"])
def test_a_megabyte_caption_is_read(folder: Path, name: str) -> None:
    """A caption of a megabyte is one caption in every format."""
    rows = [{"image": "a.jpg", "caption": "long " * (1 << 18) + "ünd"}]
    kind = Path(name).suffix.lower()
    if kind == ".parquet":
        content = parquet_of({key: [value] for key, value in rows[0].items()})
    elif kind in (".jsonl", ".ndjson"):
        content = jsonl(rows)
    else:
        content = comma_separated(rows, "," if kind == ".csv" else "\t")
    assert read(folder / name, content).rows == (TableRow(1, "a.jpg", (rows[0]["caption"],), None),)


@pytest.mark.parametrize(
    ("name", "beginning", "columns"),
    [
        ("t.jsonl", b'{"a": 1}\n\nnot JSON\n{"b": 2, "a": 3}\n', ["a", "b"]),
        ("t.csv", b'a,"b c"\n1,2\n', ["a", "b c"]),
        ("t.tsv", b"\xef\xbb\xbfa\tb\n1\t2\n", ["a", "b"]),
        ("t.jsonl", b"", []),
    ],
)
def test_columns_are_told_by_the_beginning(folder: Path, name: str, beginning: bytes, columns: list[str]) -> None:
    """A table that is far too large to be read is asked in a moment, and what is no file is refused."""
    (folder / name).write_bytes(beginning)
    if beginning:
        os.truncate(folder / name, 64 << 30)  # a hole: reading it would take minutes, and more memory than there is
    assert read_columns(folder / name) == columns
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(SourceError):
        read_columns(folder / name)


def test_columns_that_are_not_asked_for_are_not_looked_at(folder: Path) -> None:
    """Without a caption and mask column, rows have neither, whatever the table holds."""
    content = jsonl([{"image": "a.jpg", "caption": 7, "mask": {"a": 1}}])
    assert read(folder / "a.jsonl", content, caption_column=None).rows == (TableRow(1, "a.jpg", None, None),)
    content = parquet_of({"image": ["a.jpg"], "caption": [7]})
    assert read(folder / "a.parquet", content, caption_column=None).rows == (TableRow(1, "a.jpg", None, None),)
    assert read(folder / "a.csv", "image\na.jpg", caption_column=None).rows == (TableRow(1, "a.jpg", None, None),)


def test_columns_have_the_names_that_are_given(folder: Path) -> None:
    """Every column can have another name, dots and spaces included."""
    columns = {"image_column": "the file", "caption_column": "text.en", "mask_column": "é"}
    expected = (TableRow(1, "a.jpg", ("a cat",), "m.png"),)
    row = {"text": "no", "the file": "a.jpg", "text.en": "a cat", "é": "m.png"}
    assert read(folder / "a.jsonl", jsonl([row]), **columns).rows == expected
    assert read(folder / "a.csv", "é,the file,text,text.en\nm.png,a.jpg,no,a cat", **columns).rows == expected
    content = parquet_of({name: [value] for name, value in row.items()})
    assert read(folder / "a.parquet", content, **columns).rows == expected


def test_a_text_with_line_ends_is_one_caption(folder: Path) -> None:
    """Only caption files are split into lines; a cell is one caption, stripped."""
    caption = "a cat,\r\non a \u2028mat"
    rows = [{"image": "a.jpg", "caption": f"\n{caption}\n"}]
    expected = (TableRow(1, "a.jpg", (caption,), None),)
    assert read(folder / "a.jsonl", jsonl(rows)).rows == expected
    assert read(folder / "a.csv", comma_separated(rows)).rows == expected


def test_repeated_captions_of_a_list_are_kept(folder: Path) -> None:
    """A caption that stands twice in a list is two captions."""
    content = jsonl([{"image": "a.jpg", "caption": ["b", " a", "b ", ""]}])
    assert read(folder / "a.jsonl", content).rows[0].captions == ("b", "a", "b")


# Where pictures lie


def test_relative_names_start_at_the_table() -> None:
    """A picture lies relative to its table, or where an absolute path says; dots are the user's own."""
    table = Path("data/cats.jsonl")
    assert resolve(table, "more/a.jpg") == Path("data/more/a.jpg")
    assert resolve(table, "../a.jpg") == Path("data/../a.jpg")
    assert resolve(table, "/pictures/a.jpg") == Path("/pictures/a.jpg")


def test_paths_are_kept_as_written(folder: Path) -> None:
    """White space, dots, stars and non-ASCII letters in a path are part of it."""
    images = [" a.jpg", "../b.jpg", "/c.jpg", "*.jpg", "~/d.jpg", "Ünïcode/猫.jpg", "new\nline.jpg"]
    table = read(folder / "a.jsonl", jsonl([{"image": image, "caption": ""} for image in images]))
    assert [row.image for row in table.rows] == images


def test_a_name_that_is_not_utf_8_can_be_written_in_json(folder: Path) -> None:
    """A table written with Python's json module finds files whose names are not UTF-8."""
    picture = folder / os.fsdecode(b"caf\xe9.jpg")
    picture.touch()
    table = read(folder / "a.jsonl", jsonl([{"image": picture.name, "caption": None}]))
    assert resolve(folder / "a.jsonl", table.rows[0].image).exists()


# Problems of one row


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "broken JSON at character "),
        ('{"image" "2.jpg"}', "broken JSON at character 10, Expecting ':' delimiter: write one object per line"),
        ('{"image": "2.jpg"} {}', "broken JSON at character 20, Extra data: write one object per line"),
        ('{"image": "2.jpg", "x": "\t"}', "broken JSON at character 26, Invalid control character at"),
        ('{"image": "2.jpg", "image": "4.jpg"}', "field 'image' stands there twice: remove one"),
        ('{"image": "2.jpg", "x": [{"\\u001b": 1, "\\u001b": 1}]}', "field '\\x1b' stands there twice: remove one"),
        ('{"image": "2.jpg", "x": NaN}', "NaN is not JSON: write null, or leave the field out"),
        ('{"image": "2.jpg", "x": [-Infinity]}', "-Infinity is not JSON: write null, or leave the field out"),
        ('["2.jpg", "a cat"]', "a list, not an object: write one object per line"),
        ('"2.jpg"', "text, not an object: write one object per line"),
        ("null", "null, not an object: write one object per line"),
        ("7", "a number, not an object: write one object per line"),
        ("\ufeff{}", "broken JSON at character 1, "),
        ("[" * 100_000, "nested too deeply: write one flat object per line"),
        (b'{"image": "caf\xe9.jpg"}', "byte 0xe9 at offset 14 of the line is not UTF-8: save the table as UTF-8"),
        ('{"caption": "a cat"}', "no picture in column 'image': write its path there"),
        ('{"image": null}', "no picture in column 'image': write its path there"),
        ('{"image": ""}', "no picture in column 'image': write its path there"),
        ('{"image": 7}', "a number in column 'image': write a path there"),
        ('{"image": ["2.jpg"]}', "a list in column 'image': write a path there"),
        ('{"image": {"path": "2.jpg"}}', "an object in column 'image': write a path there"),
        ('{"image": "2\\u0000.jpg"}', "a NUL character in the path in column 'image': no file has such a name"),
        ('{"image": "2\\ud800.jpg"}', "a lone surrogate in the path in column 'image': no file has such a name"),
        ('{"image": "2.jpg", "caption": 7.5}', "a number in column 'caption': write a text, or a list of texts"),
        ('{"image": "2.jpg", "caption": false}', "true or false in column 'caption': write a text, or a list of texts"),
        ('{"image": "2.jpg", "caption": {}}', "an object in column 'caption': write a text, or a list of texts"),
        ('{"image": "2.jpg", "caption": ["", null]}', "null in a list in column 'caption': write a text, or "),
        ('{"image": "2.jpg", "caption": [["a"]]}', "a list in a list in column 'caption': write a text, or "),
        ('{"image": "2.jpg", "caption": "a\\u0000"}', "column 'caption': the text has a NUL character (U+0000) at"),
        ('{"image": "2.jpg", "caption": ["\\udc80"]}', "column 'caption': the text has a lone surrogate (U+DC80) at"),
        ('{"image": "2.jpg", "mask": 7}', "a number in column 'mask': write a path there"),
        ('{"image": "2.jpg", "mask": "\\u0000"}', "a NUL character in the path in column 'mask': no file has such"),
    ],
)
def test_a_bad_line_is_a_problem_of_its_own(folder: Path, line: str | bytes, expected: str) -> None:
    """A line of a .jsonl that is no sample is named with the reason, and the others are read."""
    assert jsonl_reason(folder, line, mask_column="mask").startswith(expected)


def test_a_number_of_absurd_length_is_a_problem_of_its_row(folder: Path) -> None:
    """Python's limit for digits does not end the reading of a table."""
    if not hasattr(sys, "get_int_max_str_digits"):
        pytest.skip("this Python has no such limit")
    assert jsonl_reason(folder, '{"image": "2.jpg", "x": ' + "1" * 5000 + "}").startswith("unusable JSON, ")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2.jpg,a cat", "2 cells, and the header has 3: quote a cell with a separator in it"),
        ("2.jpg,a cat, sleeping,m.png", "4 cells, and the header has 3: quote a cell with a separator in it"),
        (",a cat,m.png", "no picture in column 'image': write its path there"),
        (b"2.jpg,caf\xe9,", "byte 0xe9 is not UTF-8 text: save the table as UTF-8, without NUL"),
        (b"2.jpg,a\0cat,", "byte 0x00 is not UTF-8 text: save the table as UTF-8, without NUL"),
        (b"2\0.jpg,a cat,", "byte 0x00 is not UTF-8 text: save the table as UTF-8, without NUL"),
    ],
)
def test_a_bad_csv_row_is_a_problem_of_its_own(folder: Path, line: str | bytes, expected: str) -> None:
    """A row of a .csv that is no sample is named with the reason, and the others are read."""
    assert csv_reason(folder, line, mask_column="mask") == expected


# JSON lines


def test_blank_lines_are_skipped_and_counted(folder: Path) -> None:
    """The number of a row is the line an editor shows."""
    table = read(folder / "a.jsonl", '\ufeff\n{"image": "a", "caption": "b"}\r\n  \n7\n\n{"image": "c"}')
    assert table.rows == (TableRow(2, "a", ("b",), None), TableRow(6, "c", None, None))
    assert [problem.number for problem in table.problems] == [4]


def test_a_line_may_leave_captions_and_mask_out(folder: Path) -> None:
    """Absent and null say nothing; empty text says that there is no caption."""
    lines = [{"image": "1"}, {"image": "2", "caption": None, "mask": None}, {"image": "3", "caption": "", "mask": ""}]
    lines.append({"image": "4", "caption": [], "mask": "m"})
    table = read(folder / "a.jsonl", jsonl(lines), mask_column="mask")
    assert [(row.captions, row.mask) for row in table.rows] == [(None, None), (None, None), ((), None), ((), "m")]


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_jsonl_has_no_rows(folder: Path, content: str) -> None:
    """A table without lines is a table without samples."""
    table = read(folder / "a.jsonl", content)
    assert (table.rows, table.problems) == ((), ())


def test_a_table_of_broken_lines_tells_about_each(folder: Path) -> None:
    """Where no line can be read, the lines are the problem, not their columns."""
    table = read(folder / "a.jsonl", "a\nb\n")
    assert [problem.number for problem in table.problems] == [1, 2]


# Comma- and tab-separated values


def test_csv_as_spreadsheets_write_it(folder: Path) -> None:
    """A mark, CRLF, quoted separators, quotes and line ends, and blank lines are all in order."""
    content = '\ufeffimage,caption\r\n\r\n"a,b.jpg","a ""big"" cat,\r\nasleep"\r\n\r\nc.jpg,5" tall\r\n'
    assert read(folder / "a.csv", content).rows == (
        TableRow(1, "a,b.jpg", ('a "big" cat,\r\nasleep',), None),
        TableRow(2, "c.jpg", ('5" tall',), None),
    )


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_lines_end_like_those_of_captions(folder: Path, end: str) -> None:
    """All three line ends end a row, and no other character does."""
    content = end.join(["image,caption", "a.jpg,b\u2028c\x0bd\x1ce\x85f", "g.jpg,h"])
    assert [row.captions for row in read(folder / "a.csv", content).rows] == [("b\u2028c\x0bd\x1ce\x85f",), ("h",)]


def test_tsv_is_separated_by_tabs(folder: Path) -> None:
    """In a .tsv commas are text."""
    assert read(folder / "a.tsv", "image\tcaption\na,b.jpg\tc, d").rows == (TableRow(1, "a,b.jpg", ("c, d",), None),)


def test_a_header_alone_is_a_table_without_rows(folder: Path) -> None:
    """A .csv without rows has its columns checked and no samples."""
    assert read(folder / "a.csv", "image,caption\n").rows == ()
    assert "no column 'caption'" in refusal(folder / "b.csv", "image\n")


@pytest.mark.parametrize("content", ["", "\ufeff", "\n\n"])
def test_a_csv_without_a_header_is_refused(folder: Path, content: str) -> None:
    """An empty .csv lacks its header row."""
    assert refusal(folder / "a.csv", content) == "no header row (name the columns in the first row)"


def test_a_column_that_stands_twice_is_refused(folder: Path) -> None:
    """Which of two columns is meant is not guessed; other columns may repeat."""
    assert refusal(folder / "a.csv", "image,caption,caption\n").startswith("column 'caption' stands there twice (")
    assert read(folder / "b.csv", "x,image,x,caption\n1,a.jpg,2,b").rows == (TableRow(1, "a.jpg", ("b",), None),)


@pytest.mark.parametrize(
    "broken", ['b.jpg,"never closed\nc.jpg,a cat\n', 'b.jpg,"a "big" cat"\nc.jpg,a cat\n', '"b.jpg"x,a cat\n']
)
def test_broken_quotes_refuse_the_whole_csv(folder: Path, broken: str) -> None:
    """After a stray quote nobody knows where rows begin: the error names the line, and nothing is guessed."""
    said = refusal(folder / "a.csv", f'image,caption\na.jpg,"two\nlines"\n{broken}')
    assert said.startswith("the row that begins in line 4 is broken: ")
    assert said.endswith("and double the quotes in it)")


def test_the_csv_limit_is_put_back(folder: Path) -> None:
    """Reading a long cell leaves the csv module as it was for everybody else, also when the table is refused."""
    read(folder / "a.csv", "image,caption\na.jpg," + "a" * (LIMIT + 1))
    assert csv.field_size_limit() == LIMIT
    refusal(folder / "a.csv", 'image,caption\na.jpg,"' + "a" * (LIMIT + 1))
    assert csv.field_size_limit() == LIMIT


def test_the_csv_limit_is_put_back_after_several_at_once(folder: Path) -> None:
    """Tables read in several threads at once are all read, and leave the limit as it was."""
    paths = [folder / f"{number}.csv" for number in range(8)]
    for number, path in enumerate(paths):
        path.write_text("image,caption\n" + "a.jpg,b\n" * 20_000 + "c.jpg," + "d" * (LIMIT + 1 + number * 1000))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(paths)) as pool:
            tables = list(pool.map(lambda path: read_table(path, caption_column="caption", mask_column=None), paths))
    finally:
        sys.setswitchinterval(interval)
    assert [len(table.rows) for table in tables] == [20_001] * 8
    assert csv.field_size_limit() == LIMIT


def test_the_csv_limit_is_not_touched_for_a_small_table(folder: Path) -> None:
    """A table that fits into the limit is read under it, and nobody else's reading is disturbed."""
    limits: set[int] = set()

    def look(frame: FrameType, event: str, function: Any) -> None:
        limits.add(csv.field_size_limit())

    sys.setprofile(look)
    try:
        table = read(folder / "a.csv", "image,caption\na.jpg,b")
    finally:
        sys.setprofile(None)
    assert len(table.rows) == 1
    assert limits == {LIMIT}


def test_a_csv_limit_that_suffices_is_left_alone(folder: Path) -> None:
    """A process that allows longer cells keeps its limit."""
    csv.field_size_limit(10 * LIMIT)
    read(folder / "a.csv", "image,caption\na.jpg," + "a" * (2 * LIMIT))
    assert csv.field_size_limit() == 10 * LIMIT


# Parquet


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        pyarrow.dictionary(pyarrow.int8(), pyarrow.large_string()),
        *([pyarrow.string_view()] if hasattr(pyarrow, "string_view") else []),
    ],
    ids=str,
)
def test_every_kind_of_text_column_is_text(folder: Path, kind: Any) -> None:
    """What pandas, polars and datasets write as text is read as text."""
    texts = pyarrow.array(["a", "b", None, "a"]).cast(kind)
    images = pyarrow.array(["1", "2", "3", "1"]).cast(kind)
    content = parquet_of({"image": images, "caption": texts, "mask": texts})
    table = read(folder / "a.parquet", content, mask_column="mask")
    assert [(row.number, row.image, row.captions, row.mask) for row in table.rows] == [
        (1, "1", ("a",), "a"),
        (2, "2", ("b",), "b"),
        (3, "3", None, None),
        (4, "1", ("a",), "a"),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.list_(pyarrow.string()),
        pyarrow.large_list(pyarrow.large_string()),
        pyarrow.list_(pyarrow.string(), 2),
        pyarrow.list_(pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
    ],
    ids=str,
)
def test_every_kind_of_list_column_is_a_list(folder: Path, kind: Any) -> None:
    """A list of texts is several captions, however long its offsets are."""
    captions = pyarrow.array([["a", " "], None, ["b", "a"]]).cast(kind)
    content = parquet_of({"image": ["1", "2", "3"], "caption": captions})
    assert [row.captions for row in read(folder / "a.parquet", content).rows] == [("a",), None, ("b", "a")]


def test_columns_of_nulls_say_nothing(folder: Path) -> None:
    """A column without any value has no type; captions and masks are absent, and rows need their picture."""
    empty = pyarrow.nulls(2)
    content = parquet_of({"image": ["1", None], "caption": empty, "mask": empty})
    table = read(folder / "a.parquet", content, mask_column="mask")
    assert table.rows == (TableRow(1, "1", None, None),)
    assert table.problems == (RowProblem(2, "no picture in column 'image': write its path there"),)


def test_numbers_go_on_from_one_part_of_the_file_to_the_next(folder: Path) -> None:
    """A large file is read in parts, and its rows keep their numbers and order."""
    count = 150_000
    content = parquet_of({"image": [str(number) for number in range(1, count + 1)]}, row_group_size=40_000)
    rows = read(folder / "a.parquet", content, caption_column=None).rows
    assert len(rows) == count
    assert all(row.image == str(row.number) == str(place) for place, row in enumerate(rows, 1))


def test_a_row_that_is_not_utf_8_is_a_problem_of_its_own(folder: Path) -> None:
    """Parquet promises UTF-8 and does not check it; rows that break the promise are named."""
    raw = pyarrow.array([b"a", b"caf\xe9", b"c", b"d"])
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 4, raw.buffers())
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 1, 3, 4], pyarrow.int32()), texts)
    table = read(folder / "a.parquet", parquet_of({"image": texts, "caption": lists}))
    assert [row.number for row in table.rows] == [1, 4]
    assert table.problems == (
        RowProblem(2, "text that is not UTF-8 in column 'image': write a path there"),
        RowProblem(3, "text that is not UTF-8 in column 'caption': write a text, or a list of texts"),
    )


def test_a_null_in_a_list_is_a_problem_of_its_row(folder: Path) -> None:
    """Parquet and JSON are judged alike."""
    content = parquet_of({"image": ["1.jpg", "2.jpg", "3.jpg"], "caption": [["a"], ["b", None], []]})
    said = reason(folder / "a.parquet", content)
    assert said == "null in a list in column 'caption': write a text, or a list of texts"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([{"bytes": "picture", "path": "a.jpg"}], "struct<bytes: string, path: string>"),
        ([{"bytes": b"picture", "size": 7}], "struct<bytes: binary, size: int64>"),
        ([[b"picture"]], "list<"),
        ([7], "int64"),
        ([["a.jpg"]], "list<"),
    ],
)
def test_a_parquet_column_that_holds_no_text_is_refused(folder: Path, values: list[Any], kind: str) -> None:
    """The type stands over the whole column, so the whole table is refused before its pictures are read."""
    said = refusal(folder / "a.parquet", parquet_of({"image": values}), caption_column=None)
    assert said.startswith(f"column 'image' holds {kind}")
    assert said.endswith("not text (a picture or mask is a path, a caption a text or a list of texts)")
    if kind != "list<":
        said = refusal(folder / "a.parquet", parquet_of({"image": ["a"], "caption": values}))
        assert said.startswith(f"column 'caption' holds {kind}")


@pytest.mark.parametrize("cut", [0, 3, 20, -1, -8, -40])
def test_a_broken_parquet_is_refused(folder: Path, cut: int) -> None:
    """A file cut short is refused with the reason."""
    content = parquet_of({"image": ["a.jpg"], "caption": ["a cat"]})[:cut]
    assert refusal(folder / "a.parquet", content).startswith("broken parquet: ")


def test_a_parquet_column_whose_name_is_not_utf_8_is_refused(folder: Path) -> None:
    """What the library underneath cannot even name is an error of ours."""
    content = parquet_of({"image": ["a.jpg"], "xé": [1]}, store_schema=False).replace("xé".encode(), b"x\xff\xff")
    assert refusal(folder / "a.parquet", content, caption_column=None).startswith("broken parquet: 'utf-8' codec")


def test_damage_inside_a_parquet_is_refused(folder: Path) -> None:
    """A page whose bytes were changed is not read as something else."""
    content = bytearray(
        parquet_of({"image": ["a" * 500]}, compression="zstd", use_dictionary=False, write_page_checksum=True)
    )
    content[4:40] = bytes(36)
    assert refusal(folder / "a.parquet", bytes(content), caption_column=None).startswith("broken parquet: ")


def test_parquet_columns_that_are_not_asked_for_are_not_read(folder: Path) -> None:
    """Damage in another column, which may hold gigabytes of pictures, is not even seen."""
    content = bytearray(parquet_of({"image": ["a.jpg"], "picture": [b"p" * 5000]}, use_dictionary=False))
    chunk = parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(1)
    start, size = chunk.data_page_offset, chunk.total_compressed_size
    content[start : start + size] = bytes(size)
    with pytest.raises((OSError, pyarrow.ArrowException)):
        parquet.read_table(io.BytesIO(content))
    assert read(folder / "a.parquet", bytes(content), caption_column=None).rows == (TableRow(1, "a.jpg", None, None),)


def test_a_parquet_column_that_stands_twice_is_refused(folder: Path) -> None:
    """Which of two columns is meant is not guessed."""
    file = io.BytesIO()
    column = pyarrow.array(["a"])
    parquet.write_table(pyarrow.Table.from_arrays([column, column], names=["image", "image"]), file)
    said = refusal(folder / "a.parquet", file.getvalue(), caption_column=None)
    assert said.startswith("column 'image' stands there twice (")


def test_without_pyarrow_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet is an extra; without it the next step is one command."""
    content = parquet_of({"image": ["a.jpg"]})
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    said = refusal(folder / "a.parquet", content, caption_column=None)
    assert said == "parquet needs pyarrow (pip install 'precook[parquet]')"


# Tables that are refused


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_missing_column_is_named_with_the_nearest(folder: Path, name: str) -> None:
    """An error names the columns there are, and the one that was probably meant."""
    row = {"IMAGE": "a.jpg", "captions": "a cat", "width": "512"}
    contents = {
        "a.jsonl": jsonl([row, row]),
        "a.csv": ",".join(row) + "\n" + ",".join(row.values()),
        "a.parquet": parquet_of({key: [value] for key, value in row.items()}),
    }
    there = "among its columns 'IMAGE', 'captions', 'width'"
    step = "rename the column, or name it in the config"
    path, content = folder / name, contents[name]
    assert refusal(path, content) == f"no column 'image' {there} (the nearest is 'IMAGE': {step})"
    assert refusal(path, content, image_column="IMAGE") == (
        f"no column 'caption' {there} (the nearest is 'captions': {step})"
    )
    assert refusal(path, content, image_column="IMAGE", caption_column=None, mask_column="mask") == (
        f"no column 'mask' {there} ({step})"
    )


def test_many_columns_are_not_all_listed(folder: Path) -> None:
    """An error about a wide table stays readable, and escapes what it shows."""
    said = refusal(folder / "a.csv", "\x1b[31m," + ",".join(f"column {number}" for number in range(100)))
    assert said.startswith("no column 'image' among its columns '\\x1b[31m', 'column 0', ")
    assert "'column 10' and 89 more (" in said


def test_objects_without_fields_lack_the_column(folder: Path) -> None:
    """A table of empty objects is told what it lacks."""
    assert refusal(folder / "a.jsonl", "{}\n{}").startswith("no column 'image' among its columns none (")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_other_encodings_are_refused(folder: Path, name: str, encoding: str) -> None:
    """A table that begins with another encoding's mark is refused once, not once per row."""
    text = '{"image": "a"}' if encoding in ("utf-16", "utf-32") else '\ufeff{"image": "a"}'
    assert refusal(folder / name, text.encode(encoding)) == "the table is UTF-16 or UTF-32 (save it as UTF-8)"


@pytest.mark.parametrize("name", ["a.json", "a.txt", "a", "a.jsonl.gz", ".csv"])
def test_what_is_no_table_is_refused_by_its_name(folder: Path, name: str) -> None:
    """The error lists the names that tables have."""
    assert refusal(folder / name, "") == (
        "not a table (the name of a table ends in .jsonl, .ndjson, .csv, .tsv, .parquet)"
    )


def test_what_cannot_be_read_is_named(folder: Path) -> None:
    """Absent, a directory, a pipe, a loop of links and an impossible name each end in an error with the path."""
    (folder / "folder.csv").mkdir()
    os.mkfifo(folder / "pipe.csv")
    (folder / "loop.csv").symlink_to("loop.csv")
    expected = {
        "absent.csv": "No such file or directory",
        "folder.csv": "a folder, not a file",
        "pipe.csv": "a FIFO, not a file",
        "loop.csv": "Too many levels of symbolic links",
        "a\0b.csv": "embedded null",
    }
    for name, words in expected.items():
        with pytest.raises(SourceError, match=words) as caught:
            read_table(folder / name, caption_column=None, mask_column=None)
        assert caught.value.path == folder / name
        assert caught.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_table_without_permission_is_named(folder: Path) -> None:
    """A table that may not be read ends in an error that says so."""
    path = folder / "a.csv"
    path.write_text("image\n")
    path.chmod(0)
    with pytest.raises(SourceError, match="Permission denied"):
        read_table(path, caption_column=None, mask_column=None)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_table_that_changes_while_it_is_read_is_refused(folder: Path, name: str) -> None:
    """Rows of half an edit are never used: somebody appends between the first and the last byte read."""
    path = folder / name
    path.write_bytes(b'{"image": "a.jpg"}\n')

    def append(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in ("readall", "pread"):
            sys.setprofile(None)
            with path.open("ab") as file:
                file.write(b'{"image": "b.jpg"}\n')

    sys.setprofile(append)
    try:
        with pytest.raises(SourceChangedError) as caught:
            read_table(path, caption_column=None, mask_column=None)
    finally:
        sys.setprofile(None)
    assert caught.value.path == path


@pytest.mark.parametrize("groups", [2, 100])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_lists_of_a_file_in_several_parts_are_read(folder: Path, groups: int, version: str, dictionary: bool) -> None:
    """A file of many rows is written in parts, each with a dictionary of its own."""
    captions = [[f"a {number}", "b", "a"][: number % 4] for number in range(20)]
    content = parquet_of(
        {"image": [str(number) for number in range(20)], "caption": captions},
        row_group_size=groups,
        use_dictionary=dictionary,
        data_page_version=version,
    )
    found = [row.captions for row in read(folder / "a.parquet", content).rows]
    assert found == [tuple(texts) for texts in captions]


def test_one_text_in_lists_of_very_many_is_refused(folder: Path) -> None:
    """What a dictionary has once would be written out for each place that names it."""
    captions = pyarrow.array([["x" * 100_000] * 1000] * 2)
    content = parquet_of({"image": ["1", "2"], "caption": captions}, compression="gzip")
    assert len(content) < 10_000
    assert refusal(folder / "a.parquet", content).startswith("its texts are more than 50 times the file")
