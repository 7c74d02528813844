"""YAML: the config file as plain data, with the line of every field and what must not stand there.

The file is read as YAML events, never as objects: nothing in it can name a type, refer to another part, or nest
without end. Plain words are text, except `null`, `true` and `false` and decimal numbers, as in YAML 1.2: `no` is a
name, `12:30` is not 750, and `0100` is neither 100 nor 64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from precook.config.field_types import FieldPath
from precook.config.messages import quoted
from precook.errors import ConfigError, ConfigProblem, printable
from precook.fs.read import NotAFileError, TooLargeError, read_small

LIMIT = 1 << 20
"""Bytes a config file may have."""

MAX_DIGITS = 100
"""Characters a number may have: Python would take its time over much longer ones."""

MAX_VALUES = 50_000
"""Values a config may have: 20,000 take a second to read and to check, and a file of 1 MiB could have 500,000."""

_DEPTH = 40
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_SYNTAX_HINTS = {
    "mapping values are not allowed": "put text that contains ': ' in quotes, and check the indentation",
    "expected <block end>": "check the indentation; put text that begins with { or [ in quotes",
    "while scanning for the next token": "put text that begins with such a character in quotes",
    "expected ',' or": "close the bracket",
    "unexpected end of stream": "close the quote",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where settings came from: the file and the line of each field, both unknown for those made in Python."""

    file: Path | None = None
    lines: Mapping[FieldPath, int] = field(default_factory=dict)

    def line(self, where: FieldPath) -> int | None:
        """The line of a field, or of the nearest one around it that stands in the file."""
        for length in range(len(where), -1, -1):
            if where[:length] in self.lines:
                return self.lines[where[:length]]
        return None

    def problem(self, where: FieldPath, message: str, hint: str | None = None) -> ConfigProblem:
        """Something wrong with the field at `where`, such as `("encoders", "latent", "dtype")`."""
        return ConfigProblem(_dotted(where), self.line(where), message, hint or "")

    def error(self, where: FieldPath, message: str, hint: str | None = None) -> ConfigError:
        """The error to raise for a problem that was found after reading."""
        return ConfigError(self.problem(where, message, hint), file=self.file)


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says."""

    data: Any
    """None for an empty file."""
    origin: Origin
    problems: list[tuple[FieldPath, ConfigProblem]]
    """What must not stand there, though it could be read, by its place."""


def read_document(path: Path) -> Document:
    """The data in a YAML file; a `ConfigError` where it is no YAML file at all."""
    parser = _Parser(path, _read_text(path))
    data = parser.parse()
    return Document(data, Origin(path, parser.lines), parser.problems)


def _read_text(path: Path) -> str:
    origin = Origin(path)
    try:
        content = read_small(path, LIMIT)
    except FileNotFoundError:
        hint = "`precook init` writes one, --config names another"
        raise origin.error((), "there is no such file", hint) from None
    except NotAFileError as error:
        hint = "name the file in it, such as precook.yaml" if path.is_dir() else "write it into a file, and name that"
        raise origin.error((), f"is {error.reason}", hint) from None
    except TooLargeError:
        hint = "a config is a page or two: check the path"
        raise origin.error((), f"is larger than {LIMIT >> 20} MiB", hint) from None
    except PermissionError:
        raise origin.error((), "may not be read", "change its permissions, or run as its owner") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise origin.error((), f"cannot be read: {printable(reason)}", "check the path") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = ConfigProblem("", line, f"byte 0x{content[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        raise ConfigError(problem, file=path) from None


class _Parser:
    """Reads YAML events and notes the line of every field, and what must not stand there."""

    def __init__(self, file: Path, text: str) -> None:
        self.lines: dict[FieldPath, int] = {}
        self.problems: list[tuple[FieldPath, ConfigProblem]] = []
        self._file = file
        self._text = text
        self._values = 0

    def parse(self) -> Any:
        """The data; None for an empty file."""
        try:
            self._loader = yaml.SafeLoader(self._text)
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            raise self._broken(f"the character U+{error.character:04X} is not allowed", line, "remove it") from None
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except (ValueError, OverflowError):
            # PyYAML converts the numbers in escapes and directives unchecked.
            message = "not valid YAML: the number in an escape or directive is too large"
            raise self._broken(message, self._loader.line + 1, "in quotes, write a backslash twice") from None
        finally:
            self._loader.dispose()

    def _next(self) -> Any:
        return self._loader.get_event()  # type: ignore[no-untyped-call]

    def _document(self) -> Any:
        self._next()
        if self._loader.check_event(yaml.StreamEndEvent):
            return None
        self._next()
        data = self._node(())
        self._next()
        if not self._loader.check_event(yaml.StreamEndEvent):
            line = self._next().start_mark.line + 1
            raise self._broken("a second document begins here", line, "keep one; each project has its own file")
        return data

    def _node(self, where: FieldPath) -> Any:
        event = self._next()
        line = event.start_mark.line + 1
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._broken(
                f"has more than {MAX_VALUES:,} values", line, "put samples into a table, not into a config"
            )
        self.lines.setdefault(where, line)
        if isinstance(event, yaml.AliasEvent):
            self._note(where, line, f"the alias {quoted(f'*{event.anchor}')} is not allowed", "write it out")
            return None
        self._refuse_anchor_and_tag(event, where)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, where)
        if len(where) > _DEPTH:
            raise self._broken(f"nested more than {_DEPTH} levels deep", line, "check brackets and indentation")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(where)
        items: list[Any] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            items.append(self._node((*where, len(items))))
        self._next()
        return items

    def _mapping(self, where: FieldPath) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            event = self._next()
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                raise self._broken(
                    "the name of a field must be text", line, "put text that begins with { or [ in quotes"
                )
            inside = (*where, event.value)
            self._refuse_anchor_and_tag(event, inside)
            if event.implicit[0] and not isinstance(_plain_word(event.value), str):
                self._note(inside, line, f"the name {quoted(event.value)} must be text", "put it in quotes")
            if event.value in fields:
                first = self.lines[inside]
                message = f"the field {quoted(event.value)} is given twice, first on line {first}"
                self._note(inside, line, message, "keep one of them")
            else:
                self.lines[inside] = line
            fields.setdefault(event.value, self._node(inside))
        self._next()
        return fields

    def _scalar(self, event: Any, where: FieldPath) -> Any:
        text: str = event.value
        # What is in quotes or blocks is text, whatever it looks like.
        value = _plain_word(text) if event.implicit[0] else text
        if not isinstance(value, str) and len(text) > MAX_DIGITS:
            self._note(where, event.start_mark.line + 1, f"a number of {len(text)} digits", "write a shorter one")
            return None
        return value

    def _refuse_anchor_and_tag(self, event: Any, where: FieldPath) -> None:
        line = event.start_mark.line + 1
        if event.anchor is not None:
            message = f"the anchor {quoted(f'&{event.anchor}')} is not allowed"
            self._note(where, line, message, "remove it, and write out what refers to it")
        if event.tag is not None:
            self._note(where, line, f"the tag {quoted(event.tag)} is not allowed", "remove it")

    def _note(self, where: FieldPath, line: int, message: str, hint: str) -> None:
        self.problems.append((where, ConfigProblem(_dotted(where), line, message, hint)))

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> ConfigError:
        begun = ""
        if error.context_mark and error.problem_mark and error.context_mark.line != error.problem_mark.line:
            begun = f", {error.context} that begins on line {error.context_mark.line + 1}"
        message = f"not valid YAML: {printable(error.problem or error.context)}{begun}"
        known = (hint for part, hint in _SYNTAX_HINTS.items() if part in f"{error.context} {error.problem}")
        hint = next(known, "check this line and the one before it")
        mark = error.problem_mark or error.context_mark
        line = self._text.splitlines()[mark.line :][:1] if mark else []
        if line and re.match(r" *\t", line[0]):
            hint = "indent with spaces, not with tabs"
        return self._broken(message, mark.line + 1 if mark else None, hint)

    def _broken(self, message: str, line: int | None, hint: str) -> ConfigError:
        """The error that ends reading; what was noted before it comes first."""
        noted = (problem for _, problem in self.problems)
        return ConfigError(*noted, ConfigProblem("", line, message, hint), file=self._file)


def _plain_word(text: str) -> Any:
    """What a word without quotes means."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        # `_scalar` refuses longer ones.
        return int(text) if len(text) <= MAX_DIGITS else 0
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _dotted(where: FieldPath) -> str:
    """A place as people write it: `concepts[0].path`."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if re.fullmatch(r"[A-Za-z_][\w-]{0,63}", part) else f"[{quoted(part)}]"
    return text.removeprefix(".")
