"""Aggregates: the small values of a whole group and variation, in one entry and in columns.

mgds asks for all of them at every epoch's start. Each also lies in its sample's own entry, so this one can always be
put together again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.memo.memo import Memory
from precook.store.keysets import split
from precook.store.store import Store
from precook.values import Bytes, Key

_RECIPE = Recipe("mgds-aggregates", {"version": 1})
_NOTES = "mgds aggregates/1"
_IMMUTABLE = (str, int, float, bool, bytes, type(None))
_FEW = 4096
"""Values of a column among which an equal one is looked for when another comes."""

Values = dict[str, Any]
"""A sample's aggregates by name."""


@dataclass(frozen=True, slots=True)
class _ValueColumn:
    """One name's values: many members share a few of them."""

    codes: npt.NDArray[np.int32]
    values: list[Any]


class Aggregates:
    """The aggregates of a group's members."""

    def __init__(self, columns: Mapping[str, _ValueColumn]) -> None:
        self.columns = dict(columns)

    def get(self, member: int) -> Values:
        """A member's aggregates, in a dict and in containers of their own."""
        return {name: _own(column.values[column.codes[member]]) for name, column in self.columns.items()}


def aggregates_key(keys: Bytes) -> Key:
    """The key of the aggregates of the entries with these keys."""
    return _RECIPE.key(digest(keys.tobytes()))


def load_aggregates(
    store: Store,
    keys: Bytes,
    names: Sequence[str],
    *,
    group: str,
    fresh: Mapping[bytes, Values],
    memory: Memory,
    read: Callable[[Key], Values],
) -> Aggregates:
    """The aggregates of the entries with these keys.

    They come from one entry where that is there; else from the last such entry of the group, from what was just made
    (`fresh`), and from the samples' own entries (`read`).
    """
    key = aggregates_key(keys)
    found = _open(store, key)
    if found is not None:
        return found[1]
    note = digest(group).bytes
    last = memory.note(_NOTES, note)
    before = _open(store, Key.from_hex(last)) if last is not None else None
    old = {one: at for at, one in enumerate(split(before[0]))} if before is not None else {}
    every = split(keys)
    at = np.array([old.get(one, -1) for one in every], np.int64)
    new = np.flatnonzero(at < 0).tolist()
    rows = [fresh[every[one]] if every[one] in fresh else read(Key(every[one])) for one in new]
    columns: dict[str, _ValueColumn] = {}
    plain = True
    for name in names:
        column = before[1].columns[name] if before is not None else _ValueColumn(np.zeros(0, np.int32), [])
        columns[name], is_plain = _extended(column, at, new, [row[name] for row in rows])
        plain &= is_plain
    if plain and not store.read_only:
        parts = {name: {"codes": one.codes, "values": _dump(one.values)} for name, one in columns.items()}
        store.put(key, {"keys": keys, "columns": parts}, recipe=_RECIPE)
        memory.write_note(_NOTES, note, key.hex)
    return Aggregates(columns)


def _extended(
    column: _ValueColumn, at: npt.NDArray[np.int64], new: Sequence[int], values: Sequence[Any]
) -> tuple[_ValueColumn, bool]:
    """The rows `at` of a column, and new values at the places where there was none; and whether all are plain."""
    kept, codes = np.unique(column.codes[at[at >= 0]], return_inverse=True)
    found = [column.values[code] for code in kept.tolist()]
    made = np.zeros(len(at), np.int32)
    made[at >= 0] = codes
    plain = True
    numbers = {_text(value): code for code, value in enumerate(found)} if len(found) <= _FEW else {}
    for place, value in zip(new, values, strict=True):
        text = _text(value)
        plain &= text is not None
        code = numbers.get(text) if text is not None else None
        if code is None:
            code = len(found)
            found.append(value)
            if text is not None and len(numbers) <= _FEW:
                numbers[text] = code
        made[place] = code
    return _ValueColumn(made, found), plain


def _open(store: Store, key: Key) -> tuple[Bytes, Aggregates] | None:
    entry = store.get(key, None, tensors="numpy")
    if entry is None:
        return None
    columns = {
        name: _ValueColumn(column["codes"], [_read(form) for form in json.loads(column["values"].tobytes())])
        for name, column in entry["columns"].items()
    }
    return entry["keys"], Aggregates(columns)


def _dump(values: list[Any]) -> Bytes:
    text = json.dumps([_write(value) for value in values], separators=(",", ":"))
    return np.frombuffer(text.encode("ascii"), np.uint8)


def _text(value: Any) -> str | None:
    """A plain value as text; None for one that is not plain."""
    try:
        return json.dumps(_write(value), separators=(",", ":"))
    except TypeError:
        return None


def _write(value: Any) -> Any:
    """A plain value as JSON that tells tuples from lists, and keys that are no text from those that are."""
    kind = type(value)
    if kind is tuple:
        return {"t": [_write(item) for item in value]}
    if kind is list:
        return [_write(item) for item in value]
    if kind is dict:
        return {"d": [[_write(key), _write(item)] for key, item in value.items()]}
    if kind in (str, int, float, bool) or value is None:
        return value
    raise TypeError


def _read(form: Any) -> Any:
    kind = type(form)
    if kind is list:
        return [_read(item) for item in form]
    if kind is not dict:
        return form
    if "t" in form:
        return tuple(_read(item) for item in form["t"])
    return {_read(key): _read(item) for key, item in form["d"]}


def _own(value: Any) -> Any:
    if isinstance(value, _IMMUTABLE) or (type(value) is tuple and all(isinstance(part, _IMMUTABLE) for part in value)):
        return value
    return copy.deepcopy(value)
