"""What sections of the config file are made of: types of fields, checks of values, and messages for wrong ones."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from precook.config.messages import described, did_you_mean, either, quoted
from precook.values import has_surrogates

FieldPath = tuple[str | int, ...]
"""A place in the file: names of fields and numbers of items, from the outside in."""

NOT_IN_KEYS: dict[str, Any] = {"decides": False}
"""Marks a field whose change makes no entry of a sample missing; every other field may."""
IN_KEYS_IF_CHANGED: dict[str, Any] = {"decides": "unless default"}
"""Marks a field that came later: at its default it is no part of a key, so that those of older stores stay."""

_DEPTH = 32


class Section(BaseModel):
    """A part of the file: frozen, without unknown fields, and nothing in it is converted from another type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def decides(field: FieldInfo) -> bool:
    """Whether a field may decide stored bytes, and so belongs into keys."""
    extra = field.json_schema_extra
    return not (isinstance(extra, dict) and extra.get("decides") is False)


def is_in_key(field: FieldInfo, value: object) -> bool:
    """Whether a field that has this value belongs into a key."""
    later = field.json_schema_extra == IN_KEYS_IF_CHANGED
    return decides(field) and not (later and value == field.default)


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with a value, or with a part of it."""

    message: str
    hint: str = ""
    path: FieldPath = ()
    """From the value to the part."""


def refusal(*flaws: Flaw) -> PydanticCustomError:
    """The error a validator raises to say in our words what is wrong."""
    return PydanticCustomError("precook", "refused", {"flaws": flaws})


def one_of(choice: object) -> BeforeValidator:
    """Only the words of this `Literal`, with the nearest one for any other."""
    words: tuple[str, ...] = get_args(choice)

    def check(value: object) -> object:
        if isinstance(value, str) and value in words:
            return value
        meant = did_you_mean(value, words) if isinstance(value, str) else ""
        raise refusal(Flaw(f"must be {either(words)}, not {described(value)}{meant}"))

    return BeforeValidator(check)


def matching(pattern: str, rule: str, hint: str = "") -> AfterValidator:
    """Only text of this pattern, which the rule says in words."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise refusal(Flaw(f"must be {rule}, not {described(text)}", hint))
        return text

    return AfterValidator(check)


def whole_or(word: str) -> BeforeValidator:
    """A whole number of at least 1, or this word."""

    def check(value: object) -> object:
        # A bool is an int to Python, not to whoever writes a config.
        if (isinstance(value, str) and value == word) or (type(value) is int and value >= 1):
            return value
        raise refusal(Flaw(f"must be a whole number of at least 1, or {word}, not {described(value)}"))

    return BeforeValidator(check)


def as_tuple(value: object) -> object:
    """A list as a tuple, so that nobody changes it later."""
    if isinstance(value, list | tuple):
        return tuple(value)
    hint = f"write [{value}]" if type(value) is int else "begin each item with a dash"
    raise refusal(Flaw(f"must be a list, not {described(value)}", hint))


def not_empty(value: object) -> object:
    """Anything but an empty list or mapping.

    Pydantic's own lower limit counts the items that are right, and so calls a list of wrong ones empty.
    """
    if isinstance(value, list | tuple | dict) and not value:
        raise refusal(Flaw("must not be empty"))
    return value


def unique(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items, each of which stands there once."""
    first: dict[Any, int] = {}
    twice = [
        Flaw(f"{quoted(item)} stands here twice", "remove one of them", (number,))
        for number, item in enumerate(items)
        if first.setdefault(item, number) != number
    ]
    if twice:
        raise refusal(*twice)
    return items


def clean(text: str) -> str:
    """Text that can be part of a file name and of UTF-8."""
    return _clean_part((), text)


def _clean_non_empty(text: str) -> str:
    if not text:
        raise refusal(Flaw("must not be empty"))
    return clean(text)


def _clean_part(path: FieldPath, text: str) -> str:
    if "\0" in text:
        raise refusal(Flaw("must not contain a null character", "remove it", path))
    if has_surrogates(text):
        hint = "remove what is not; files and folders need names in UTF-8"
        raise refusal(Flaw(f"{quoted(text)} is not valid Unicode", hint, path))
    return text


def plain(value: object, path: FieldPath = ()) -> Any:
    """A copy of plain data as JSON knows it; lists, whatever kind of sequence they were."""
    if len(path) > _DEPTH:
        raise refusal(Flaw(f"is nested more than {_DEPTH} levels deep", "make it flatter", path))
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise refusal(Flaw(f"a name must be text, not {described(name)}", "put it in quotes", path))
        return {_clean_part(path, name): plain(item, (*path, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, (*path, number)) for number, item in enumerate(value)]
    if isinstance(value, str):
        return _clean_part(path, value)
    if isinstance(value, float) and not math.isfinite(value):
        raise refusal(Flaw(f"must be a finite number, not {value}", "write null for no limit", path))
    if value is None or isinstance(value, bool | int | float):
        return value
    raise refusal(Flaw(f"must be plain data, not {described(value)}", path=path))


Text = Annotated[str, AfterValidator(clean)]
NonEmpty = Annotated[str, AfterValidator(_clean_non_empty), WithJsonSchema({"type": "string", "minLength": 1})]
PathText = Annotated[
    NonEmpty, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)
]
"""A path, which Python callers may give as one."""
Positive = Annotated[int, Field(ge=1)]
