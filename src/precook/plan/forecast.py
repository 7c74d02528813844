"""Forecast: how many bytes and seconds a build would take, from what earlier builds took."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from precook.identity.recipe import Recipe
from precook.memo.memo import Memory
from precook.store.store import Store

_RATES = "rates"


@dataclass(frozen=True, slots=True)
class Rate:
    """What an encoder takes for an entry."""

    nbytes: float
    seconds: float | None
    """None where entries are there but nobody timed them."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a build would write and how long it would take; None where nothing is known yet."""

    nbytes: int | None
    seconds: float | None
    free: int | None
    """Bytes left on the store's disk."""

    @property
    def fits(self) -> bool:
        """Whether the disk can hold it, as far as is known."""
        return self.nbytes is None or self.free is None or self.nbytes <= self.free


def record_rate(memory: Memory, recipe: Recipe, *, entries: int, nbytes: int, seconds: float) -> None:
    """Remember what a build took for entries of a recipe."""
    if entries:
        rate = {"bytes": nbytes / entries, "seconds": seconds / entries}
        memory.write_note(_RATES, recipe.digest.bytes, json.dumps(rate))


def find_rates(recipes: list[Recipe], store: Store, memory: Memory) -> dict[bytes, Rate]:
    """What is known about recipes, by their digests: from builds, else from the entries in the store."""
    rates: dict[bytes, Rate] = {}
    for recipe in recipes:
        note = memory.note(_RATES, recipe.digest.bytes)
        if note is not None:
            noted = json.loads(note)
            rates[recipe.digest.bytes] = Rate(noted["bytes"], noted["seconds"])
    rest = {recipe.form: recipe.digest.bytes for recipe in recipes if recipe.digest.bytes not in rates}
    if rest:
        for form, entries, nbytes in store.totals():
            if form in rest and entries:
                rates[rest[form]] = Rate(nbytes / entries, None)
    return rates


def forecast(counts: dict[bytes, int], rates: dict[bytes, Rate], store: Path) -> Forecast:
    """What the missing entries, counted by recipe, would take."""
    known = [rates.get(recipe) for recipe, count in counts.items() if count]
    sizes = [count * rates[recipe].nbytes for recipe, count in counts.items() if count and recipe in rates]
    times = [count * (rates[recipe].seconds or 0) for recipe, count in counts.items() if count and recipe in rates]
    # A store that is not there yet will lie on the disk of the nearest folder that is.
    folder = next((folder for folder in (store, *store.absolute().parents) if folder.is_dir()), None)
    return Forecast(
        nbytes=None if None in known else round(sum(sizes)),
        seconds=None if any(rate is None or rate.seconds is None for rate in known) else sum(times),
        free=None if folder is None else shutil.disk_usage(folder).free,
    )
