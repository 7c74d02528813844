"""Captions: what the bytes of a caption file and the names of pictures say."""

from __future__ import annotations

import codecs
import os
from collections import Counter
from encodings.aliases import aliases
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from precook.sources.captions import MAX_BYTES, CaptionError, checked, from_file_name, read_lines, split_lines

MARKS = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
TEXT = st.text(st.characters(exclude_characters="\0\r\n", exclude_categories=["Cs"]))
LINE = TEXT.map(str.strip).filter(bool)
CODECS = sorted({*aliases.values(), "idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"})


def reason(content: bytes, encoding: str = "utf-8") -> str:
    """Why these bytes are refused."""
    with pytest.raises(CaptionError) as caught:
        read_lines(content, encoding)
    return str(caught.value)


# Any text


@given(
    st.lists(LINE),
    st.sampled_from(sorted(MARKS)),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.booleans(),
)
def test_lines_come_back_whatever_the_editor(
    lines: list[str], encoding: str, end: str, final_end: bool, marked: bool
) -> None:
    """Encoding, byte order mark, line ends and a last line end change nothing about the captions."""
    content = (end.join(lines) + end * final_end).encode(encoding)
    if marked:
        assert read_lines(MARKS[encoding] + content) == lines
    else:
        # A text that begins with these bytes has a mark, whoever wrote it.
        assume(not content.startswith(tuple(MARKS.values())))
        assert read_lines(content, encoding) == lines


@given(st.lists(LINE, min_size=1), st.randoms(use_true_random=False))
def test_reordered_lines_are_the_same_captions(lines: list[str], random: object) -> None:
    """Reordering the lines of a file gives the same captions, as often as before."""
    shuffled = list(lines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    before, after = (read_lines(codecs.BOM_UTF8 + "\n".join(texts).encode()) for texts in (lines, shuffled))
    assert Counter(before) == Counter(after) == Counter(lines)


@given(st.binary())
@example(b"\xff\xfe\x00")
@example(b"\xff\xfe\x00\xd8")
@example(b"\x00\x00\xfe\xff\x00\x00\xd8\x00")
@example(b"\xef\xbb\xbf\xed\xa0\x80")
def test_any_bytes_give_captions_or_a_reason(content: bytes) -> None:
    """No content of a caption file ends in another error, and what is accepted can be encoded."""
    try:
        lines = read_lines(content)
    except CaptionError as error:
        assert ": " in str(error)
    else:
        assert all(line and line == line.strip() and line.encode() for line in lines)


@given(st.binary() | st.text(st.sampled_from("ab\\uUxNd8{}+-2AA~ \n")).map(str.encode), st.sampled_from(CODECS))
@example(b"+2AA-", "utf_7")
@example(b"+AAA-", "utf_7")
@example(b"\\ud800", "unicode_escape")
def test_any_encoding_gives_captions_or_a_reason(content: bytes, encoding: str) -> None:
    """Whatever codec Python has under the name that was set, no lone surrogate, NUL or other error comes out of it."""
    try:
        lines = read_lines(content, encoding)
    except CaptionError as error:
        assert ": " in str(error)
    else:
        assert not any("\0" in line for line in lines)
        assert all(line.encode() for line in lines)


# Files people have


def test_a_megabyte_is_one_caption() -> None:
    """A caption of a megabyte is read whole."""
    text = "long " * (1 << 18) + "ünd"
    assert read_lines(text.encode() + b"\n") == [text]


def test_a_file_beyond_the_limit_is_refused() -> None:
    """A file of the limit's size is read, one byte more is refused with both sizes."""
    assert read_lines(b"a" * MAX_BYTES) == ["a" * MAX_BYTES]
    assert reason(b"a" * (MAX_BYTES + 1)).startswith("16,777,217 bytes, and a caption file has at most 16,777,216: ")


def test_a_byte_order_mark_is_no_part_of_the_caption() -> None:
    """Editors that begin UTF-8 files with a mark do not make another caption."""
    assert read_lines(b"\xef\xbb\xbfa cat\n") == read_lines(b"a cat\n") == ["a cat"]


def test_only_one_byte_order_mark_is_taken_off() -> None:
    """A second U+FEFF, and one inside the text, are characters of the caption."""
    assert read_lines("\ufeff\ufeffa\ufeffcat\ufeff".encode()) == ["\ufeffa\ufeffcat\ufeff"]


def test_crlf_is_one_line_end() -> None:
    """A file from Windows has the captions of the same file from elsewhere."""
    assert read_lines(b"a cat\r\na dog\r\n") == ["a cat", "a dog"]


def test_latin_1_is_refused_with_the_byte() -> None:
    """What is not UTF-8 is refused, naming the first bad byte and both ways out."""
    assert reason("a café, à Paris".encode("latin-1")) == (
        "byte 0xe9 at offset 5 is not UTF-8: save the file as UTF-8, or set `caption_encoding`"
    )


def test_a_bad_byte_is_counted_from_the_start_of_the_file() -> None:
    """Offsets count the byte order mark, as a hex editor does."""
    assert reason(b"\xef\xbb\xbfab\xff").startswith("byte 0xff at offset 5 ")


def test_cp1252_is_read_when_it_is_named() -> None:
    """With `caption_encoding` set, that codec is used, and strictly."""
    assert read_lines("“a café” 5 €".encode("cp1252"), "cp1252") == ["“a café” 5 €"]
    assert reason(b"a\x81b", "cp1252").startswith("byte 0x81 at offset 1 is not CP1252: ")


@pytest.mark.parametrize("encoding", sorted(MARKS))
def test_a_byte_order_mark_overrules_the_setting(encoding: str) -> None:
    """In a folder of cp1252 files, one saved with a mark is read by its mark."""
    assert read_lines(MARKS[encoding] + "a café".encode(encoding), "cp1252") == ["a café"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["a cat on a mat", "un café crème", "猫 cat 犬 dog"])
def test_utf_16_without_a_mark_is_refused_and_recognised(encoding: str, text: str) -> None:
    """The reason says that it looks like UTF-16, and the setting it names reads the file."""
    said = reason(text.encode(encoding))
    assert "look like UTF-16 without a byte order mark: " in said
    assert said.endswith(f"save the file as UTF-8, or set `caption_encoding` to {encoding}")
    assert read_lines(text.encode(encoding), encoding) == [text]


def test_unmarked_utf_32_is_not_taken_for_utf_16() -> None:
    """A suggestion that would end in the next refusal is not made."""
    assert reason("a cat".encode("utf-32-le")) == "the text has a NUL character (U+0000) at position 1: remove it"


def test_utf_16_without_a_mark_or_order_is_refused() -> None:
    """The setting utf-16 does not let the machine's byte order decide."""
    said = reason("a cat".encode("utf-16-le"), "utf-16")
    assert said == "UTF-16 without a byte order mark: set `caption_encoding` to utf-16-le or utf-16-be"
    assert read_lines("a cat".encode("utf-16"), "utf-16") == ["a cat"]
    assert read_lines(b"", "utf-16") == []


def test_utf_16_cut_short_is_refused() -> None:
    """Half a character at the end of a file is noticed."""
    assert reason("a cat".encode("utf-16")[:-1]).startswith("byte 0x74 at offset 10 is not UTF-16-")


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b" \t\r\n\r \xe3\x80\x80\n"])
def test_an_empty_file_has_no_captions(content: bytes) -> None:
    """Nothing, a mark alone, and blank lines only are no captions; what that means is for the plan to say."""
    assert read_lines(content) == []


@pytest.mark.parametrize("content", [b"a\0cat", b"a cat\0", b"cat\0", b"\0", b"a cat\0\0\0\0\0\0\0\0"])
def test_nul_is_refused(content: bytes) -> None:
    """A NUL is no part of a caption; the reason says where the first is."""
    position = content.index(0)
    assert reason(content) == f"the text has a NUL character (U+0000) at position {position}: remove it"


def test_text_is_not_normalised() -> None:
    """Composed and decomposed accents stay two captions, because a tokenizer sees two."""
    assert read_lines("é\ne\u0301\n".encode()) == ["é", "e\u0301"]


@pytest.mark.parametrize("encoding", ["utf8", "UTF-8", "utf_8", "utf-8-sig"])
def test_the_names_of_utf_8_are_one_encoding(encoding: str) -> None:
    """However UTF-8 is spelt in the config, the file reads the same."""
    assert read_lines("\ufeffa café".encode(), encoding) == read_lines("a café".encode(), encoding) == ["a café"]


@pytest.mark.parametrize("encoding", ["klingon", "", "a\0b", "\ud800", "\x1b[31m", "zlib", "rot13", "idna", "punycode"])
def test_what_is_no_encoding_is_refused(encoding: str) -> None:
    """An unknown codec, or one that is not for text files, is named, escaped, with examples of others."""
    said = reason(b"a cat", encoding)
    assert said == f"{encoding!a} is no encoding of text files: set `caption_encoding` to one such as utf-8 or cp1252"
    assert said.isprintable()


# Lines


@pytest.mark.parametrize("char", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_other_separators_end_no_line(char: str) -> None:
    """Only the three line ends of text files end a caption."""
    assert split_lines(f"a{char}cat\nb") == [f"a{char}cat", "b"]


def test_lines_are_stripped_and_kept_in_order() -> None:
    """Surrounding white space and blank lines go; order and repetitions stay."""
    assert split_lines("  b\t\n\n a  cat\u00a0\r\r\nb") == ["b", "a  cat", "b"]


def test_checked_text_is_the_text() -> None:
    """What can be a caption comes back untouched, white space included."""
    assert checked(" a café 🐈\n") == " a café 🐈\n"
    with pytest.raises(CaptionError, match=r"a lone surrogate \(U\+DC80\) at position 1: "):
        checked("é\udc80")


# File names


@pytest.mark.parametrize("stem", ["a cat, sleeping", "cat (2)", "IMG_0042", "猫", "cat.v2", "two\nlines"])
def test_a_file_name_is_a_caption_as_it_stands(stem: str) -> None:
    """Numbers, underscores and copies' brackets stay; surrounding white space goes."""
    assert from_file_name(stem) == from_file_name(f" {stem}\t") == stem


def test_a_file_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    """A picture whose name is not UTF-8 has no caption in it; the reason says what to do."""
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).touch()
    [file] = tmp_path.iterdir()
    with pytest.raises(CaptionError, match="not UTF-8: rename the file, or take the caption from elsewhere"):
        from_file_name(file.stem)


def test_a_file_of_very_many_lines_is_refused() -> None:
    """Each line would take memory of its own."""
    assert len(read_lines(b"a\r\n" * 50_000)) == 50_000
    with pytest.raises(CaptionError, match="200,000 lines, and a caption file has at most 100,000"):
        read_lines(b"a\n" * 200_000)
