"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from precook.units import parse_duration, parse_size

_Value = TypeVar("_Value")

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="The store; without it, the config's, or the one here or in ./cache."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The config file; without it, precook.yaml here.")
]
NoWriteOption = Annotated[
    bool, typer.Option("--no-write", help="Write nothing at all, not even what was learnt about the sources.")
]
EncoderOption = Annotated[
    list[str] | None, typer.Option("--encoder", metavar="NAME", help="Only this encoder; may be given again.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it, only show what would be done.")]


def size_option(told: str) -> Any:
    """An option that takes a size with its unit."""
    return typer.Option(parser=_usage(parse_size), metavar="SIZE", help=told)


def duration_option(told: str) -> Any:
    """An option that takes a duration with its unit, as seconds."""
    return typer.Option(parser=_usage(parse_duration), metavar="TIME", help=told)


def key_digits(text: str) -> str:
    """Reads the first digits of a key."""
    if re.fullmatch(r"[0-9a-f]{4,64}", text.lower()) is None:
        message = f"{text[:80]!a} is not a key: write its 64 hexadecimal digits, or at least the first 4"
        raise typer.BadParameter(message)
    return text.lower()


def _usage(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A parser whose complaints are usage errors."""

    def parsed(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed
