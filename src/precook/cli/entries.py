"""Which entries are meant: by the first digits of a key, or by the recipe that made them."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precook.errors import PrecookError, printable
from precook.identity.recipe import recipe_digest
from precook.values import Key

if TYPE_CHECKING:
    from precook.store.store import Store

SHORT_DIGEST = 8
"""Digits of a recipe's digest that are shown where people tell recipes apart."""
_LEAST_DIGITS = 4
"""Digits of a recipe's digest that are enough to name it."""
_KEY_DIGITS = 64
_FEW = 5
_SHOWN_DIGITS = 16


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A recipe as it is stored with the entries that it made."""

    kind: str
    hex: str
    data: Any
    """Its plain data, in canonical form."""

    @property
    def name(self) -> str:
        """Its kind and the first digits of its digest: enough to tell it from others."""
        return f"{self.kind} {self.hex[:SHORT_DIGEST]}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"kind": self.kind, "digest": self.hex}


@functools.lru_cache(maxsize=4096)
def read_recipe(form: bytes) -> RecipeInfo | None:
    """The recipe with this canonical form; None where an entry has none.

    The store may be somebody else's: a form that cannot be read is told as such, and is no error.
    """
    if not form:
        return None
    digest = recipe_digest(form).hex
    try:
        kind, data = json.loads(form)
    except (ValueError, TypeError, RecursionError):
        return RecipeInfo("unreadable", digest, None)
    return RecipeInfo(kind if isinstance(kind, str) else "unreadable", digest, data)


def matching_recipes(store: Store, wanted: str) -> set[str]:
    """Digests of the recipes of this kind, or whose digest begins so; an error names all recipes where none does."""
    known = [info for recipe in store.stats().recipes if (info := read_recipe(recipe.form)) is not None]
    digits = wanted.lower()
    matching = {
        info.hex
        for info in known
        if info.kind == wanted or (len(digits) >= _LEAST_DIGITS and info.hex.startswith(digits))
    }
    if not matching:
        names = ", ".join(sorted(info.name for info in known)) or "none"
        message = f"no recipe here has the kind or digest {printable(wanted)!r}"
        raise PrecookError(message, hint=f"recipes in this store: {names}")
    return matching


def find_key(store: Store, digits: str) -> Key:
    """The one key that begins with these digits; an error where there is none, or more than one."""
    if len(digits) == _KEY_DIGITS:
        return Key.from_hex(digits)
    keys = store.begins_with(digits, most=_FEW + 1)  # one more than is shown, so that the error can say so
    if len(keys) > 1:
        few = ", ".join(f"{key.hex[:_SHOWN_DIGITS]}…" for key in keys[:_FEW])
        more = " and more" if len(keys) > _FEW else ""
        message = f"more than one entry begins with {digits}"
        raise PrecookError(message, hint=f"give more digits: {few}{more}")
    # The index no longer has what was found damaged; whoever asks for it is told what happened to it.
    keys = keys or [key for key, _ in store.stats().damaged if key.hex.startswith(digits)]
    if not keys:
        message = f"no entry begins with {digits}"
        raise PrecookError(message, hint="`precook ls` lists the entries")
    return keys[0]
