"""Reading the config file: plain data with the line of every field, then settings, or all that is wrong with it.

The file is read as YAML events, never as objects: nothing in it can name a type, refer to another part, or nest
without end. Plain words are text, except `null`, `true` and `false` and decimal numbers, as in YAML 1.2: `no` is a
name, `12:30` is not 750, and `0100` is neither 100 nor 64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from precook.config.encoders import ENCODERS, Flaw, Section, Where
from precook.config.messages import described, did_you_mean, quoted
from precook.config.schema import Concept, ImageSettings, Settings, TextSettings
from precook.errors import ConfigError, ConfigProblem, printable

LIMIT = 1 << 20
"""Bytes a config file may have."""

_DEPTH = 40
_DIGITS = 100
_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_SECTIONS: dict[str, type[Section]] = {"concepts": Concept, "image": ImageSettings, "text": TextSettings}
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
    lines: Mapping[Where, int] = field(default_factory=dict)

    def line(self, where: Where) -> int | None:
        """The line of a field, or of the nearest one around it that stands in the file."""
        for length in range(len(where), -1, -1):
            if where[:length] in self.lines:
                return self.lines[where[:length]]
        return None

    def problem(self, where: Where, message: str, hint: str | None = None) -> ConfigProblem:
        """Something wrong with the field at `where`, such as `("encoders", "latent", "dtype")`."""
        return ConfigProblem(_dotted(where), self.line(where), message, hint or "")

    def error(self, where: Where, message: str, hint: str | None = None) -> ConfigError:
        """The error to raise for a problem that was found after reading."""
        return ConfigError(self.problem(where, message, hint), file=self.file)


def read_config(path: Path) -> tuple[Settings, Origin]:
    """The settings in a file and the lines they stand on; a `ConfigError` tells everything that is wrong.

    Nothing but this file is looked at: the folders and models it names need not exist.
    """
    document = _Document(path, _text(path))
    data = document.read()
    origin = Origin(path, document.lines)
    problems = [problem for _, problem in document.problems]
    if not isinstance(data, dict):
        what = "the file is empty" if data is None else f"must be a mapping of fields, not {described(data)}"
        problems = problems or [origin.problem((), what, "`precook init` writes a file to begin with")]
        raise ConfigError(*problems, file=path)
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        # What could not be read is not complained about again for what stands in its place.
        unread = {where for where, _ in document.problems}
        problems += [
            origin.problem(*complaint)
            for complaint in _complaints(error)
            if not any(complaint[0][:length] in unread for length in range(1, len(complaint[0]) + 1))
        ]
    if problems:
        raise ConfigError(*sorted(problems, key=lambda problem: problem.line or 0), file=path)
    return settings, origin


def check(data: Mapping[str, Any]) -> Settings:
    """Settings from Python data with the fields of the file; a `ConfigError` tells everything that is wrong.

    >>> cats = {"name": "cats", "path": "data/cats"}
    >>> check({"dataset": "pets", "concepts": [cats], "encoders": {"pixels": {"uses": "image"}}}).store
    'cache'
    """
    origin = Origin()
    if not isinstance(data, Mapping):
        raise origin.error((), f"must be a mapping of fields, not {described(data)}")
    try:
        return Settings.model_validate(dict(data))
    except ValidationError as error:
        raise ConfigError(*(origin.problem(*complaint) for complaint in _complaints(error))) from None


def schema() -> dict[str, Any]:
    """The JSON schema of the file (draft 2020-12), for editors that check and complete YAML."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Settings.model_json_schema(),
        "title": "precook.yaml",
    }


def _text(path: Path) -> str:
    origin = Origin(path)
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
    except FileNotFoundError:
        hint = "`precook init` writes one, --config names another"
        raise origin.error((), "there is no such file", hint) from None
    except IsADirectoryError:
        raise origin.error((), "is a directory", "name the file in it, such as precook.yaml") from None
    except PermissionError:
        raise origin.error((), "may not be read", "change its permissions, or run as its owner") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise origin.error((), f"cannot be read: {printable(reason)}", "check the path") from None
    if len(content) > LIMIT:
        raise origin.error((), f"is larger than {LIMIT >> 20} MiB", "a config is a page or two: check the path")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = ConfigProblem("", line, f"byte 0x{content[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        raise ConfigError(problem, file=path) from None


class _Document:
    """A YAML document as plain data, with the line of every field and all that must not stand there."""

    def __init__(self, file: Path, text: str) -> None:
        self.lines: dict[Where, int] = {}
        self.problems: list[tuple[Where, ConfigProblem]] = []
        self._file = file
        self._text = text

    def read(self) -> Any:
        """The data; None for an empty file."""
        try:
            self._loader = yaml.SafeLoader(self._text)
        except yaml.reader.ReaderError as error:
            line = self._text.count("\n", 0, error.position) + 1
            raise self._broken(f"the character U+{error.character:04X} is not allowed", line, "remove it") from None
        try:
            return self._document()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self._broken(_syntax(error), mark.line + 1 if mark else None, self._hint(error)) from None
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

    def _node(self, where: Where) -> Any:
        event = self._next()
        line = event.start_mark.line + 1
        self.lines.setdefault(where, line)
        if isinstance(event, yaml.AliasEvent):
            self._note(where, line, f"the alias {quoted(f'*{event.anchor}')} is not allowed", "write it out")
            return None
        self._refuse_marks(event, where)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, where)
        if len(where) > _DEPTH:
            raise self._broken(f"nested more than {_DEPTH} levels deep", line, "check brackets and indentation")
        return self._list(where) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(where)

    def _list(self, where: Where) -> list[Any]:
        items: list[Any] = []
        while not self._loader.check_event(yaml.SequenceEndEvent):
            items.append(self._node((*where, len(items))))
        self._next()
        return items

    def _mapping(self, where: Where) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            event = self._next()
            line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                raise self._broken(
                    "the name of a field must be text", line, "put text that begins with { or [ in quotes"
                )
            inside = (*where, event.value)
            self._refuse_marks(event, inside)
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

    def _scalar(self, event: Any, where: Where) -> Any:
        text: str = event.value
        # What is in quotes or blocks is text, whatever it looks like.
        value = _plain_word(text) if event.implicit[0] else text
        if not isinstance(value, str) and len(text) > _DIGITS:
            self._note(where, event.start_mark.line + 1, f"a number of {len(text)} digits", "write a shorter one")
            return None
        return value

    def _refuse_marks(self, event: Any, where: Where) -> None:
        line = event.start_mark.line + 1
        if event.anchor is not None:
            message = f"the anchor {quoted(f'&{event.anchor}')} is not allowed"
            self._note(where, line, message, "remove it, and write out what refers to it")
        if event.tag is not None:
            self._note(where, line, f"the tag {quoted(event.tag)} is not allowed", "remove it")

    def _note(self, where: Where, line: int, message: str, hint: str) -> None:
        self.problems.append((where, ConfigProblem(_dotted(where), line, message, hint)))

    def _hint(self, error: yaml.MarkedYAMLError) -> str:
        mark = error.problem_mark or error.context_mark
        line = self._text.splitlines()[mark.line :][:1] if mark else []
        if line and re.match(r" *\t", line[0]):
            return "indent with spaces, not with tabs"
        text = f"{error.context} {error.problem}"
        known = (hint for part, hint in _SYNTAX_HINTS.items() if part in text)
        return next(known, "check this line and the one before it")

    def _broken(self, message: str, line: int | None, hint: str) -> ConfigError:
        """The error that ends reading; what was noted before it comes first."""
        noted = (problem for _, problem in self.problems)
        return ConfigError(*noted, ConfigProblem("", line, message, hint), file=self._file)


def _plain_word(text: str) -> Any:
    """What a word without quotes means."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        # Longer ones are refused; Python would take its time over them.
        return int(text) if len(text) <= _DIGITS else 0
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _syntax(error: yaml.MarkedYAMLError) -> str:
    begun = ""
    if error.context_mark and error.problem_mark and error.context_mark.line != error.problem_mark.line:
        begun = f", {error.context} that begins on line {error.context_mark.line + 1}"
    return f"not valid YAML: {printable(error.problem or error.context)}{begun}"


def _dotted(where: Where) -> str:
    """A place as people write it: `concepts[0].path`."""
    parts = [
        f".{part}" if isinstance(part, str) and re.fullmatch(r"[A-Za-z_][\w-]{0,63}", part) else f"[{_bracketed(part)}]"
        for part in where
    ]
    return "".join(parts).removeprefix(".")


def _bracketed(part: str | int) -> str:
    return str(part) if isinstance(part, int) else quoted(part)


def _complaints(error: ValidationError) -> Iterable[tuple[Where, str, str]]:
    """What pydantic found, in our words."""
    for item in error.errors(include_url=False):
        location = item["loc"]
        where = location
        if location[:1] == ("encoders",) and len(location) > 2:  # noqa: PLR2004 - encoders, name, kind
            # The third part is the encoder's kind, or says that the name itself is meant; the file has neither.
            where = (*location[:2], *location[3:])
        if item["type"] == "precook":
            flaws: tuple[Flaw, ...] = item["ctx"]["flaws"]
        else:
            flaws = (_flaw(item["type"], location, item.get("ctx", {}), item["input"]),)
        for flaw in flaws:
            yield (*where, *flaw.path), flaw.message, flaw.hint


def _flaw(kind: str, location: Where, context: dict[str, Any], value: object) -> Flaw:
    match kind:
        case "missing":
            missing = _section(location).model_fields[str(location[-1])]
            if missing.examples:
                return Flaw("this field is missing", f"add `{location[-1]}: {missing.examples[0]}`")
            meaning = (missing.description or "").rstrip(".")
            return Flaw("this field is missing", f"add it: {meaning[:1].lower()}{meaning[1:]}")
        case "extra_forbidden":
            return _unknown(str(location[-1]), _section(location))
        case "int_type":
            return Flaw(f"must be a whole number, not {described(value)}", _as_number(value, int))
        case "float_type":
            return Flaw(f"must be a number, not {described(value)}", _as_number(value, float))
        case "finite_number":
            return Flaw(f"must be a finite number, not {value}")
        case "bool_type":
            return Flaw(f"must be true or false, not {described(value)}", _as_bool(value))
        case "string_type":
            hint = "put it in quotes" if isinstance(value, bool | int | float) else ""
            if value is None and location[-1] == "background":
                hint = 'a colour that begins with # needs quotes: "#ffffff"'
            return Flaw(f"must be text, not {described(value)}", hint)
        case "greater_than_equal":
            return Flaw(f"must be {_number(context['ge'])} or more, not {described(value)}")
        case "less_than_equal":
            return Flaw(f"must be {_number(context['le'])} or less, not {described(value)}")
        case "string_unicode":
            return Flaw(f"{quoted(value)} is not valid Unicode", "remove what is not")
        case "model_type" | "dict_type":
            hint = "remove the line, or write fields below it" if value is None else ""
            return Flaw(f"must be a mapping of fields, not {described(value)}", hint)
        case "invalid_key":
            return Flaw("the name of a field must be text", "put it in quotes")
        case _:
            return Flaw(f"{described(value)} does not belong here")


def _number(limit: float) -> str:
    return str(int(limit) if limit == int(limit) else limit)


def _section(location: Where) -> type[Section]:
    """The part of the file that the last field of `location` is in."""
    if location[0] == "encoders" and len(location) > 3:  # noqa: PLR2004 - encoders, name, kind, field
        return ENCODERS[str(location[2])]
    return _SECTIONS.get(str(location[0]), Settings) if len(location) > 1 else Settings


def _unknown(name: str, section: type[Section]) -> Flaw:
    message = f"unknown field {quoted(name)}"
    if name in Settings.model_fields:
        return Flaw(message, "it belongs at the left margin")
    for home, other in _SECTIONS.items():
        if name in other.model_fields:
            return Flaw(message, f"it belongs under {home}")
    meant = did_you_mean(name, section.model_fields)
    return Flaw(f"{message}{meant}", "" if meant else f"fields here: {', '.join(section.model_fields)}")


def _as_number(value: object, kind: type[int | float]) -> str:
    """How to write a number that was written as text."""
    if not isinstance(value, str) or len(value) > _DIGITS:
        return "write a number without a point" if isinstance(value, float) else ""
    try:
        number = kind(value)
    except ValueError:
        return ""
    return f"write {number}" if math.isfinite(number) else ""


def _as_bool(value: object) -> str:
    word = value.lower() if isinstance(value, str) else ""
    if word in {"yes", "on", "y", "true"}:
        return "write true"
    return "write false" if word in {"no", "off", "n", "false"} else ""
