"""Words for mistakes: the name that was meant, and what was found in its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from precook.errors import printable

_SHOWN = 60
"""Characters of a text that a message shows."""


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, whatever its case and dashes; None where nothing comes close.

    >>> nearest("Diffuser_VAE", ["diffusers-vae", "mask"])
    'diffusers-vae'
    >>> nearest("colour", ["flip", "crop"]) is None
    True
    """
    folded: dict[str, str] = {}
    for known in valid:
        folded.setdefault(_fold(known), known)
    matches = difflib.get_close_matches(_fold(name), folded, n=1)
    return folded[matches[0]] if matches else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of a message about an unknown name: a question, or nothing.

    >>> did_you_mean("centre", ["center", "random"])
    "; did you mean 'center'?"
    """
    meant = nearest(name, valid)
    return "" if meant is None else f"; did you mean '{meant}'?"


def either(names: Sequence[str]) -> str:
    """Some names to choose from.

    >>> either(["a"]), either(["a", "b", "c"])
    ('a', 'a, b or c')
    """
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def quoted(text: object) -> str:
    r"""A name or text as messages show it: on one line, harmless to a terminal, and not too long.

    >>> print(quoted("a\nb"))
    'a\nb'
    """
    shown = str(text)
    return f"'{printable(shown[:_SHOWN])}{'…' if len(shown) > _SHOWN else ''}'"


def described(value: object) -> str:
    """What was found, in the words of somebody who writes a config.

    >>> described("64"), described(64), described(True), described(None), described([64])
    ("text '64'", 'the number 64', 'true', 'nothing', 'a list')
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        too_long = isinstance(value, int) and value.bit_length() > _SHOWN
        return "a very large number" if too_long else f"the number {value}"
    if isinstance(value, str):
        return f"text {quoted(value)}"
    if isinstance(value, list | tuple | dict):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"a value of the Python type {type(value).__name__}"


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")
