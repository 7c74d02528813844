"""Settings from a config file or from Python data, or everything that is wrong with them, in our own words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from precook.config.concept import Concept, TagSettings
from precook.config.encoders import ENCODERS
from precook.config.field_types import FieldPath, Flaw, Section
from precook.config.messages import described, did_you_mean, quoted
from precook.config.schema import Settings
from precook.config.sections import (
    ImageOverrides,
    ImageSettings,
    TextOverrides,
    TextSettings,
    VideoOverrides,
    VideoSettings,
)
from precook.config.texts import PassageSettings
from precook.config.yaml import MAX_DIGITS, Origin, read_document
from precook.errors import ConfigError

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "a mapping of fields",
    "dict_type": "a mapping of fields",
}
"""What pydantic's errors about types mean."""
_SECTIONS: dict[str, type[Section]] = {
    "concepts": Concept,
    "image": ImageSettings,
    "text": TextSettings,
    "video": VideoSettings,
}

_IN_CONCEPTS: dict[str, type[Section]] = {
    "tags": TagSettings,
    "passages": PassageSettings,
    "image": ImageOverrides,
    "text": TextOverrides,
    "video": VideoOverrides,
}


def read_config(path: Path) -> tuple[Settings, Origin]:
    """The settings in a file and the lines they stand on; a `ConfigError` tells everything that is wrong.

    Nothing but this file is looked at: the folders and models it names need not exist.
    """
    document = read_document(path)
    data, origin = document.data, document.origin
    problems = [problem for _, problem in document.problems]
    if not isinstance(data, dict):
        message = "the file is empty" if data is None else f"must be a mapping of fields, not {described(data)}"
        problems = problems or [origin.problem((), message, "`precook init` writes a file to begin with")]
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


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file (draft 2020-12), for editors that check and complete YAML."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Settings.model_json_schema(),
        "title": "precook.yaml",
    }


def _complaints(error: ValidationError) -> Iterable[tuple[FieldPath, str, str]]:
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


def _flaw(kind: str, location: FieldPath, context: dict[str, Any], value: object) -> Flaw:
    if kind == "missing":
        return _missing(str(location[-1]), _section(location))
    if kind == "extra_forbidden":
        return _unknown(str(location[-1]), _section(location))
    if kind in _TYPES:
        return Flaw(f"must be {_TYPES[kind]}, not {described(value)}", _type_hint(kind, location[-1], value))
    match kind:
        case "greater_than_equal":
            return Flaw(f"must be {_number(context['ge'])} or more, not {described(value)}")
        case "less_than_equal":
            return Flaw(f"must be {_number(context['le'])} or less, not {described(value)}")
    flaws = {
        "finite_number": Flaw(f"must be a finite number, not {value}"),
        "string_unicode": Flaw(f"{quoted(value)} is not valid Unicode", "remove what is not"),
        "invalid_key": Flaw("the name of a field must be text", "put it in quotes"),
    }
    return flaws.get(kind, Flaw(f"{described(value)} does not belong here"))


def _missing(name: str, section: type[Section]) -> Flaw:
    field = section.model_fields[name]
    if field.examples:
        return Flaw("this field is missing", f"add `{name}: {field.examples[0]}`")
    meaning = (field.description or "").rstrip(".")
    return Flaw("this field is missing", f"add it: {meaning[:1].lower()}{meaning[1:]}")


def _type_hint(kind: str, name: str | int, value: object) -> str:
    """How to write a value of the right type."""
    match kind:
        case "int_type":
            return _as_number(value, int)
        case "float_type":
            return _as_number(value, float)
        case "bool_type":
            return _as_bool(value)
        case "string_type" if value is None and name == "background":
            return 'a colour that begins with # needs quotes: "#ffffff"'
        case "string_type":
            return "put it in quotes" if isinstance(value, bool | int | float) else ""
    return "remove the line, or write fields below it" if value is None else ""


def _number(limit: float) -> str:
    return str(int(limit) if limit == int(limit) else limit)


def _section(location: FieldPath) -> type[Section]:
    """The part of the file that the last field of `location` is in."""
    if location[0] == "encoders" and len(location) > 3:  # noqa: PLR2004 - encoders, name, kind, field
        return ENCODERS[str(location[2])]
    if location[0] == "concepts" and len(location) > 3:  # noqa: PLR2004 - concepts, number, section, field
        return _IN_CONCEPTS[str(location[2])]
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
    if not isinstance(value, str) or len(value) > MAX_DIGITS:
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
