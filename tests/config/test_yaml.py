"""YAML files: words and numbers, lines of fields, and files that are no config."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import precook
from precook.config.check import check, read_config
from precook.config.yaml import LIMIT, Origin
from tests.support.configs import (
    DESIGN,
    SMALL,
    Reader,
    small,
    told,
)


@pytest.mark.parametrize("word", ["no", "yes", "on", "off", "y", "12:30", "0100", "0x40", "1_000", "2024-01-01", "="])
def test_words_that_look_like_something_else_are_text(read: Reader, word: str) -> None:
    """A folder called `no` needs no quotes, and `0100` is neither 100 nor 64."""
    settings, _ = read(SMALL.replace("data/cats", word))
    assert settings.concepts[0].path == word
    assert told(read, f"{SMALL}image: {{step: {word}}}") == [
        (7, "image.step", f"must be a whole number, not text '{word}'")
    ]


@pytest.mark.parametrize(("word", "value"), [("1e-3", 0.001), ("2", 2.0), ("+1.5E2", 150.0), (".5", 0.5), ("1.", 1.0)])
def test_numbers_are_read_as_people_write_them(read: Reader, word: str, value: float) -> None:
    """An exponent needs neither point nor sign."""
    settings, _ = read(SMALL.replace("data/cats\n", f"data/cats\n    loss_weight: {word}\n"))
    assert settings.concepts[0].loss_weight == value


def test_a_byte_order_mark_and_windows_line_ends_are_no_problem(read: Reader) -> None:
    """An editor's habits change nothing."""
    assert read(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())[0] == check(small())


def test_all_problems_are_told_at_once_with_their_lines(read: Reader) -> None:
    """One reading finds everything, in the order of the file, and the text of the error says how much more there is."""
    content = """\
dataset: pets
concepts:
  - name: cats
    path: 3
  - nam: dogs
    path: data/dogs
image:
  resolution: [512]
  crop: centre
encoders:
  latent:
    uses: diffusers-vae
    model: models/vae
    dtyp: float16
  prompt: {uses: transformers-text,
           model: m, layers: [-1,
             x]}
stamps: *all
text:
  - variations
"""
    assert [(line, where) for line, where, _ in told(read, content)] == [
        (4, "concepts[0].path"),
        (5, "concepts[1].name"),
        (5, "concepts[1].nam"),
        (8, "image.resolution"),
        (9, "image.crop"),
        (14, "encoders.latent.dtyp"),
        (17, "encoders.prompt.layers[1]"),
        (18, "stamps"),
        (19, "text"),
    ]
    with pytest.raises(precook.ConfigError) as caught:
        read(content)
    error = caught.value
    assert error.message == f"{error.file}:4: concepts[0].path: must be text, not the number 3"
    assert (error.line, error.where, error.hint) == (4, "concepts[0].path", "put it in quotes")
    assert str(error) == f"{error.message} (put it in quotes); and 8 more problems"


@pytest.mark.parametrize(
    ("content", "line", "where", "message"),
    [
        ("", None, "", "the file is empty"),
        ("# nothing\n---\n", 3, "", "the file is empty"),
        ("- a\n", 1, "", "must be a mapping of fields, not a list"),
        ("hello\n", 1, "", "must be a mapping of fields, not text 'hello'"),
        ("*all\n", 1, "", "the alias '*all' is not allowed"),
        ("a: b: c\n", 1, "", "not valid YAML: mapping values are not allowed here"),
        ("a: 1\nb: [1, 2\nc: 3\n", 3, "", "while parsing a flow sequence that begins on line 2"),
        ("a:\n\tb: 1\n", 2, "", "not valid YAML: found character '\\t' that cannot start any token"),
        ("a: 'b\n", 2, "", "not valid YAML: found unexpected end of stream"),
        ("a: @b\n", 1, "", "not valid YAML: found character '@' that cannot start any token"),
        ("masks: {stem}-mask.png\n", 1, "", "not valid YAML: expected <block end>"),
        (f"{SMALL}---\nb: 2\n", 7, "", "a second document begins here"),
        ("? [a]\n: b\n", 1, "", "the name of a field must be text"),
        ("a: 1\nb: " + "[" * 100, 2, "", "nested more than 40 levels deep"),
        ("- " * 1000, 1, "", "nested more than 40 levels deep"),
        ('a: "\\U0fffffff"\n', 1, "", "not valid YAML: the number in an escape or directive is too large"),
        ("%YAML " + "1" * 5000 + ".1\n---\n", 1, "", "not valid YAML"),
        ("a: 1\nb: '\x07'\n", 2, "", "the character U+0007 is not allowed"),
        (b"a: 1\nb: caf\xe9\n", 2, "", "byte 0xe9 is not UTF-8"),
        (SMALL.encode("utf-16"), 1, "", "is not UTF-8"),
        (b"#" * (LIMIT + 1), None, "", "is larger than 1 MiB"),
        (f"{SMALL}dataset: cats\n", 7, "dataset", "the field 'dataset' is given twice, first on line 1"),
        (SMALL.replace("path:", "name: x\n    path:"), 4, "concepts[0].name", "given twice, first on line 3"),
        (f"{SMALL}store: &here cache\n", 7, "store", "the anchor '&here' is not allowed"),
        (f"{SMALL}store: *here\n", 7, "store", "the alias '*here' is not allowed"),
        (f"{SMALL}store: !!str cache\n", 7, "store", "the tag 'tag:yaml.org,2002:str' is not allowed"),
        (f"{SMALL}store: !!python/object/apply:os.system [exit]\n", 7, "store", "python/object/apply:os.system"),
        (f"{SMALL}1: x\n", 7, "['1']", "the name '1' must be text"),
        (f"{SMALL}image: {{seed: {'1' * 200}}}\n", 7, "image.seed", "a number of 200 digits"),
        (f"{SMALL}<<: {{store: x}}\n", 7, "['<<']", "unknown field '<<'"),
        (f"{SMALL}image: {{background: #fff\n  }}\n", 7, "image.background", "must be text, not nothing"),
    ],
    ids=range(31),
)
def test_a_file_that_is_no_config_is_refused_with_its_line(
    read: Reader, content: str | bytes, line: int | None, where: str, message: str
) -> None:
    """Each way to break the file is one problem, where it is, with a next step."""
    with pytest.raises(precook.ConfigError) as caught:
        read(content)
    error = caught.value
    assert (error.line, error.where) == (line, where)
    assert message in error.message
    assert error.hint
    assert len(error.problems) == 1
    begin = f"{error.file}:{line}: " if line else f"{error.file}: "
    assert error.message.startswith(begin)


def test_a_tag_constructs_nothing(read: Reader, tmp_path: Path) -> None:
    """What would run a command elsewhere is only named here."""
    canary = tmp_path / "canary"
    told(read, f"{SMALL}store: !!python/object/apply:os.mkdir ['{canary}']\n")
    assert not canary.exists()


def test_a_tab_is_recognised(read: Reader) -> None:
    """Whatever the parser says about it, the hint is to use spaces."""
    with pytest.raises(precook.ConfigError, match="indent with spaces, not with tabs"):
        read("image:\n  step: 64\n\tcrop: center\n")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Missing, a directory, a bad name: each has its own words and a next step."""
    for path, message in [
        (tmp_path / "precook.yaml", "there is no such file (`precook init` writes one"),
        (tmp_path, "is a folder, not a file (name the file in it"),
        (tmp_path / ("x" * 300), "cannot be read: "),
        (tmp_path / "a\0b", "cannot be read: embedded null byte"),
    ]:
        with pytest.raises(precook.ConfigError) as caught:
            read_config(path)
        assert message in str(caught.value)
        assert (caught.value.file, caught.value.line, caught.value.where) == (path, None, "")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A config that this process may not read."""
    path = tmp_path / "precook.yaml"
    path.write_text(SMALL)
    path.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield path
    if user == 0:
        os.seteuid(0)


def test_a_file_without_permission_is_told(locked: Path) -> None:
    """Not the same as a missing one."""
    with pytest.raises(precook.ConfigError, match=r"may not be read \(change its permissions"):
        read_config(locked)


def test_messages_about_a_file_cannot_steer_a_terminal(read: Reader) -> None:
    """Escape sequences in names and values are shown, not sent."""
    content = SMALL + '"\\e[31m": "\\e[32m"\nstamps: "\\e[33m\\n"\n'
    with pytest.raises(precook.ConfigError) as caught:
        read(content)
    for problem in caught.value.problems:
        assert problem.told(Path("a\x1b")).isprintable()
        assert problem.hint.isprintable()


def test_what_is_found_later_is_told_with_its_line(read: Reader) -> None:
    """Other parts of precook point at the field, or at what is around it."""
    _, origin = read(DESIGN)
    error = origin.error(("encoders", "latent", "model"), "there is no such folder", "check the path")
    assert str(error) == (f"{origin.file}:21: encoders.latent.model: there is no such folder (check the path)")
    assert (error.file, error.line, error.where) == (origin.file, 21, "encoders.latent.model")
    assert origin.line(("concepts", 0, "path")) == 5
    assert origin.line(("concepts", 0, "samples")) == 4
    assert origin.line(("image", "resolutions", 1)) == 12
    assert origin.line(("keep",)) == 1
    assert Origin().line(("store",)) is None
    assert str(Origin().error(("concepts", 1, "path"), "is empty")) == "concepts[1].path: is empty"


def outcome(read: Reader, content: str | bytes) -> None:
    """Settings, or an error that can be printed."""
    try:
        settings, origin = read(content)
    except precook.ConfigError as error:
        str(error).encode()
        assert all(problem.message for problem in error.problems)
    else:
        assert check(settings.model_dump(mode="json")) == settings
        assert origin.lines[("dataset",)] >= 1


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(content=b"\xff\xfe")
@example(content=b'"\\ud800": 1')
@example(content=b"? ? ? ? ?")
@example(content=b"{a: {b: {c:")
def test_any_bytes_are_settings_or_a_clear_error(read: Reader, content: bytes) -> None:
    """Never a traceback, whatever the file holds."""
    outcome(read, content)


PIECES = st.sampled_from(
    [*"\n\t :-,[]{}#&*!|>'\"%@`?\\~=", "  ", ": ", "- ", "---\n", "null", "1e9", "\\ud800", "é", "\x85"]
)


@given(data=st.data())
def test_a_mistyped_file_is_settings_or_a_clear_error(read: Reader, data: st.DataObject) -> None:
    """A valid file with some slips of the hand: never a traceback."""
    content = data.draw(st.sampled_from([DESIGN, SMALL]))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 12))
        content = content[:start] + data.draw(PIECES | st.just("")) + content[start + length :]
    outcome(read, content)
