"""Recipes and labels as people read them: from their canonical form back to words.

What is read here may come from a store somebody else made, so a form that cannot be read is shown as such.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precook.errors import PrecookError, printable
from precook.identity.recipe import recipe_digest

if TYPE_CHECKING:
    from precook.store.store import Store

SHORT = 8
"""Digits of a recipe's digest that are shown where people tell recipes apart."""
_DIGITS = 16
_LONG = 120
_MOST = 40


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A recipe as it is stored with the entries it made."""

    kind: str
    hex: str
    data: Any
    """Its plain data, in canonical form."""

    @property
    def name(self) -> str:
        """Its kind and the first digits of its digest: enough to tell it from others."""
        return f"{self.kind} {self.hex[:SHORT]}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"kind": self.kind, "digest": self.hex}


@functools.lru_cache(maxsize=4096)
def read_recipe(form: bytes) -> RecipeInfo | None:
    """The recipe with this canonical form; None where an entry has none."""
    if not form:
        return None
    digest = recipe_digest(form).hex
    try:
        kind, data = json.loads(form)
    except (ValueError, TypeError, RecursionError):
        return RecipeInfo("unreadable", digest, None)
    return RecipeInfo(kind if isinstance(kind, str) else "unreadable", digest, data)


def matching_recipes(store: Store, wanted: str) -> set[str]:
    """The digests of the recipes that are meant; an error that names all of them where none is."""
    known = [info for recipe in store.stats().recipes if (info := read_recipe(recipe.form)) is not None]
    matching = {info.hex for info in known if _is_meant(info, wanted)}
    if not matching:
        names = ", ".join(sorted(info.name for info in known)) or "none"
        message = f"no recipe here has the kind or digest {printable(wanted)!r}"
        raise PrecookError(message, hint=f"recipes in this store: {names}")
    return matching


def _is_meant(recipe: RecipeInfo, wanted: str) -> bool:
    return recipe.kind == wanted or (len(wanted) >= 4 and recipe.hex.startswith(wanted.lower()))  # noqa: PLR2004


@dataclass(frozen=True, slots=True)
class RecipeField:
    """One line of an outline."""

    depth: int
    name: str
    text: str


def outline(form: Any) -> list[RecipeField]:
    """Plain data in canonical form as indented lines, one for each value that fits on one."""
    try:
        items = list(_outline(form, 0))
    except RecursionError:
        return [RecipeField(0, "", "nested too deeply to show")]
    if len(items) > _MOST:
        items = [*items[:_MOST], RecipeField(0, "…", f"{len(items) - _MOST} more")]
    return items


def _outline(form: Any, depth: int) -> Iterator[RecipeField]:
    for name, value in _pairs(form):
        text = _inline(value)
        yield RecipeField(depth, name, "" if text is None else _cut(text))
        if text is None:
            yield from _outline(value, depth + 1)


def _pairs(form: Any) -> list[tuple[str, Any]]:
    """The named parts of a value; a value without any is one part without a name."""
    tag, content = _untag(form)
    if tag == "$dataclass" and isinstance(content, list) and len(content) == 2:  # noqa: PLR2004 - name and fields
        return [(str(content[0]), content[1])]
    if tag == "$dict" and isinstance(content, list):
        return [(str(_inline(pair[0])), pair[1]) for pair in content if isinstance(pair, list) and len(pair) == 2]  # noqa: PLR2004
    if tag is None and isinstance(content, dict):
        return list(content.items())
    if tag is None and isinstance(content, list):
        return [(f"[{number}]", item) for number, item in enumerate(content)]
    return [("", form)]


def _inline(form: Any) -> str | None:
    """A value on one line, None where it is a dict with something in it."""
    tag, content = _untag(form)
    if tag is not None:
        return _tagged(tag, content)
    if isinstance(content, list):
        items = [_inline(item) for item in content]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    if isinstance(content, dict):
        return None if content else "{}"
    return content if isinstance(content, str) else json.dumps(content)


def _tagged(tag: str, content: Any) -> str | None:
    if tag in ("$dict", "$dataclass"):
        return None
    if tag in ("$digest", "$key"):
        return f"{tag[1:]} {str(content)[:_DIGITS]}…"
    if tag == "$enum" and isinstance(content, list) and content:
        return str(content[0])
    if tag == "$bytes":
        return f"{_decoded_length(content):,} bytes"
    return _decoded_text(content) if tag == "$str" else str(content)


def _untag(form: Any) -> tuple[str | None, Any]:
    if isinstance(form, dict) and len(form) == 1:
        ((tag, content),) = form.items()
        if tag.startswith("$"):
            return tag, content
    return None, form


def _decoded_length(content: Any) -> int:
    try:
        return len(base64.b64decode(content))
    except (binascii.Error, TypeError, ValueError):
        return 0


def _decoded_text(content: Any) -> str:
    try:
        return bytes.fromhex(content).decode("utf-8", "surrogatepass")
    except (TypeError, ValueError):
        return str(content)


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]}… ({len(text):,} characters)"
