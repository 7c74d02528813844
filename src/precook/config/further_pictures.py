"""Further pictures in the config file: what samples have beside their own picture, such as one to edit or a depth map.

A name has one picture, or a list of them, which are numbered: the pictures of the list `control` are `control_1`,
`control_2` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_serializer
from pydantic_core import PydanticCustomError

from precook.config.field_types import Flaw, NonEmpty, Section, Text, clean, one_of, refusal
from precook.config.messages import described, did_you_mean, either, quoted

OWN = "image"
"""The name of a sample's own picture."""
VIDEO = "video"
"""The name of a sample's own file as a clip."""
PARTS = (OWN, "text", "mask", VIDEO)
"""What else encoders may take of a sample: no further picture has such a name."""
NAME = r"[a-z_][a-z0-9_]{0,63}"

_PLACEHOLDERS = ("stem", "name")
_FIELDS = ("path", "column", "fit", "optional")
_EXAMPLE = 'write "../control/{stem}.png", {column: control}, or {path: …, fit: own, optional: true}'

Fit = Literal["target", "own"]


class FurtherPicture(Section):
    """Where one further picture of each sample lies, and how it is cut."""

    path: Text | None = Field(default=None, description="Pattern with {stem} or {name}, from the picture's folder.")
    column: NonEmpty | None = Field(default=None, description="Instead of path: the column of the table.")
    fit: Annotated[Fit, one_of(Fit)] = Field(
        default="target", description="target: cut as the sample's own picture; own: cut by its own shape."
    )
    optional: bool = Field(default=False, description="Whether samples without it are kept.")

    @model_serializer
    def _spelled(self) -> object:
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) != _default(name)}
        return self.path if list(given) == ["path"] else given


def checked_pattern(value: object, example: str) -> str:
    """A pattern of file names, one for each picture."""
    if not isinstance(value, str):
        # Without quotes YAML takes {stem} for a mapping.
        hint = f'put a pattern in quotes: "{example}"' if isinstance(value, dict) else ""
        raise refusal(Flaw(f"must be a pattern or {{column: …}}, not {described(value)}", hint))
    usable = f"use {either([f'{{{name}}}' for name in _PLACEHOLDERS])}"
    names = re.findall(r"\{([^{}]*)\}", value)
    for name in names:
        if name not in _PLACEHOLDERS:
            raise refusal(Flaw(f"unknown placeholder {quoted(f'{{{name}}}')}", usable))
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", value)):
        raise refusal(Flaw(f"{quoted(value)} has a brace without its partner", usable))
    if not names:
        raise refusal(Flaw(f"{quoted(value)} would be one file for every picture", usable))
    return clean(value)


def numbered(images: Mapping[str, FurtherPicture | tuple[FurtherPicture, ...]]) -> dict[str, FurtherPicture]:
    """Every further picture by its name; those of a list are numbered from 1."""
    pictures: dict[str, FurtherPicture] = {}
    for name, given in images.items():
        if isinstance(given, tuple):
            pictures |= {f"{name}_{number}": one for number, one in enumerate(given, 1)}
        else:
            pictures[name] = given
    return pictures


def _default(name: str) -> object:
    return FurtherPicture.model_fields[name].default


def _images(value: object) -> object:
    if not isinstance(value, dict):
        raise refusal(Flaw(f"must be a mapping of names to patterns, not {described(value)}", _EXAMPLE))
    flaws: list[Flaw] = []
    images: dict[str, Any] = {}
    for name, given in value.items():
        if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
            rule = "1 to 64 small letters, digits and underscores, the first no digit"
            flaws.append(Flaw(f"the name of a picture must be {rule}, not {described(name)}"))
        elif name in PARTS:
            flaws.append(Flaw("a sample has a part of that name already", "choose another name", (name,)))
        elif not isinstance(given, list | tuple):
            images[name] = _picture(given, (name,), flaws)
        elif not given:
            flaws.append(Flaw("must not be empty", _EXAMPLE, (name,)))
        else:
            images[name] = tuple(_picture(one, (name, number), flaws) for number, one in enumerate(given))
    if not flaws:
        counted = [
            f"{name}_{number}"
            for name, many in images.items()
            if isinstance(many, tuple)
            for number in range(1, len(many) + 1)
        ]
        twice = [name for name in counted if name in images or counted.count(name) > 1]
        flaws += [Flaw(f"two pictures are called {quoted(name)}", "choose other names") for name in twice[:1]]
    if flaws:
        raise refusal(*flaws)
    return images


def _picture(value: object, where: tuple[str | int, ...], flaws: list[Flaw]) -> FurtherPicture | None:
    """One further picture, or None and what is wrong with it."""
    if isinstance(value, FurtherPicture):
        return value
    given: dict[Any, Any] = value if isinstance(value, dict) else {"path": value}
    wrong: list[Flaw] = []
    for name in given:
        if name not in _FIELDS:
            meant = did_you_mean(name, _FIELDS) if isinstance(name, str) else ""
            wrong.append(Flaw(f"unknown field {quoted(name)}{meant}", _EXAMPLE))
    if not wrong and ("path" in given) == ("column" in given):
        wrong.append(Flaw("must have either a path or a column", _EXAMPLE))
    if "optional" in given and type(given["optional"]) is not bool:
        wrong.append(Flaw(f"must be true or false, not {described(given['optional'])}", path=("optional",)))
    fit = given.get("fit", "target")
    if fit not in ("target", "own"):
        wrong.append(Flaw(f"must be target or own, not {described(fit)}", path=("fit",)))
    column = given.get("column")
    if "column" in given and (not isinstance(column, str) or not column):
        wrong.append(Flaw(f"must be the name of a column, not {described(column)}", path=("column",)))
    if not wrong and "path" in given:
        try:
            checked_pattern(given["path"], "../control/{stem}.png")
        except PydanticCustomError as error:
            wrong += (error.context or {})["flaws"]
    flaws += [Flaw(flaw.message, flaw.hint, (*where, *flaw.path)) for flaw in wrong]
    return None if wrong else FurtherPicture(**given)


_PATTERN_SCHEMA: dict[str, Any] = {"type": "string", "pattern": r"\{(?:stem|name)\}"}
_PICTURE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        _PATTERN_SCHEMA,
        {
            "type": "object",
            "properties": {
                "path": _PATTERN_SCHEMA,
                "column": {"type": "string", "minLength": 1},
                "fit": {"enum": ["target", "own"]},
                "optional": {"type": "boolean"},
            },
            "oneOf": [{"required": ["path"]}, {"required": ["column"]}],
            "additionalProperties": False,
        },
    ]
}
FurtherPictures = Annotated[
    dict[str, FurtherPicture | tuple[FurtherPicture, ...]],
    BeforeValidator(_images),
    PlainSerializer(
        lambda images: {
            name: [one.model_dump() for one in given] if isinstance(given, tuple) else given.model_dump()
            for name, given in images.items()
        }
    ),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {
                "anyOf": [_PICTURE_SCHEMA, {"type": "array", "items": _PICTURE_SCHEMA, "minItems": 1}]
            },
            "propertyNames": {"pattern": f"^{NAME}$", "not": {"enum": [*PARTS]}},
        }
    ),
]
"""Further pictures by name, each one or a list."""


def _of(value: object) -> object:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names:
        raise refusal(Flaw(f"must be the name of a picture, not {described(value)}", "write of: control, for example"))
    for name in names:
        if not isinstance(name, str) or re.fullmatch(NAME, name) is None or name in PARTS[1:]:
            raise refusal(
                Flaw(f"must be the name of a picture, not {described(name)}", f"write {OWN}, or one of images")
            )
    if len(set(names)) < len(names):
        raise refusal(Flaw("names a picture twice", "remove one of them"))
    return value if isinstance(value, str) else tuple(names)


_NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME}$"}
PictureName = Annotated[str, BeforeValidator(_of), WithJsonSchema(_NAME_SCHEMA)]
"""The name of one picture of a sample."""
PictureNames = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_of),
    WithJsonSchema({"anyOf": [_NAME_SCHEMA, {"type": "array", "items": _NAME_SCHEMA, "minItems": 1}]}),
]
"""The names of one picture or several."""
