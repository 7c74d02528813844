"""What the entries of an mgds cache hold: the values of one sample, or the aggregates of a whole group.

A sample's entry has its split values and its aggregates. Since mgds asks for all aggregates at every epoch's start, the
aggregates of a group in one variation also lie together in one entry, in columns. That entry can always be put together
again from those of the samples.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precook.errors import EncodeError
from precook.identity.digest import digest
from precook.identity.recipe import Recipe
from precook.memo.memo import Memory
from precook.store.keysets import split
from precook.store.lazy import LazyTensor
from precook.store.leaves import has_nan
from precook.store.store import Store
from precook.store.tree import Parts, Tree, take_apart
from precook.values import Bytes, Key

_DISTRIBUTION = "DiagonalGaussianDistribution"
"""A class of diffusers, kept as the parameters that make it, and made again when it is read."""
_AGGREGATES = Recipe("mgds-aggregates", {"version": 1})
_NOTES = "mgds aggregates/1"
_IMMUTABLE = (str, int, float, bool, bytes, type(None))
_MAX_COMPARED = 4096
"""Values of a column among which an equal one is looked for when another comes."""

Values = dict[str, Any]
"""A sample's values by name."""


def entry_parts(
    split_values: Values, aggregate: Values, texts: Mapping[str, str], pixels: Mapping[str, bytes] | None = None
) -> Parts:
    """An entry, ready to be stored; what must not be in a cache is refused.

    `texts` are prompts that led to it, for people and for training without sources. `pixels` says of latents what they
    were made of.
    """
    tree: dict[str, Any] = {"split": {}, "aggregate": {}, "distributions": []}
    if texts:
        tree["texts"] = dict(texts)
    if pixels:
        tree["pixels"] = dict(pixels)
    for part, values in (("split", split_values), ("aggregate", aggregate)):
        for name, value in values.items():
            if value is None:
                # mgds would fall through to the modules before the cache, and ask them for another sample.
                raise EncodeError(f"{name} has no value")
            if type(value).__name__ == _DISTRIBUTION:
                tree["distributions"].append(name)
                tree[part][name] = {"parameters": value.parameters, "deterministic": bool(value.deterministic)}
            else:
                tree[part][name] = value
    parts = take_apart(tree)
    for path, leaf in zip(parts.paths, parts.leaves, strict=True):
        if has_nan(leaf):
            raise EncodeError(f"{path} holds numbers that are not numbers (NaN)")
    return parts


def split_values(tree: Tree, device: Any) -> Values:
    """The split values of an entry, with their tensors on a device."""
    values: Values = _moved(tree["split"], device)
    for name in tree["distributions"]:
        if name in values:
            vae = importlib.import_module("diffusers.models.autoencoders.vae")
            stored = values[name]
            values[name] = vae.DiagonalGaussianDistribution(stored["parameters"], deterministic=stored["deterministic"])
    return values


def _moved(value: Any, device: Any) -> Any:
    """A value with its tensors on a device; containers keep their types."""
    if device is None or str(device) == "cpu":
        return value
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(item, device) for item in value)
    return value.to(device) if hasattr(value, "to") else value


@dataclass(frozen=True, slots=True)
class _ValueColumn:
    """One name's values: many members share a few of them."""

    codes: npt.NDArray[np.int32]
    """For each member, the row of its value."""
    values: list[Any]


class Aggregates:
    """The aggregates of a group's members."""

    def __init__(self, columns: Mapping[str, _ValueColumn]) -> None:
        self._columns = dict(columns)

    def get(self, member: int) -> Values:
        """A member's aggregates, in a dict and in containers of their own."""
        values = {name: column.values[column.codes[member]] for name, column in self._columns.items()}
        return {name: value if _is_immutable(value) else copy.deepcopy(value) for name, value in values.items()}

    def column(self, name: str) -> _ValueColumn:
        """The values of one name."""
        return self._columns[name]


def _is_immutable(value: Any) -> bool:
    return isinstance(value, _IMMUTABLE) or (
        type(value) is tuple and all(isinstance(part, _IMMUTABLE) for part in value)
    )


def aggregates_key(keys: Bytes) -> Key:
    """The key of the aggregates of the entries with these keys."""
    return _AGGREGATES.key(digest(keys.tobytes()))


def load_aggregates(
    store: Store, keys: Bytes, names: Sequence[str], *, group: str, made: Mapping[bytes, Values], memory: Memory
) -> Aggregates:
    """The aggregates of the entries with these keys.

    They come from one entry where that is there. Else they are put together from the last such entry of the group, from
    what was just `made`, and from the samples' own entries.
    """
    key = aggregates_key(keys)
    stored = _open(store, key)
    if stored is not None:
        return stored[1]
    note = digest(group).bytes
    last = memory.note(_NOTES, note)
    earlier = _open(store, Key.from_hex(last)) if last is not None else None
    earlier_rows = {member: row for row, member in enumerate(split(earlier[0]))} if earlier is not None else {}
    members = split(keys)
    origin = np.array([earlier_rows.get(member, -1) for member in members], np.int64)
    new = np.flatnonzero(origin < 0).tolist()
    rows = [made.get(members[row]) or _read_aggregates(store, Key(members[row])) for row in new]
    columns: dict[str, _ValueColumn] = {}
    plain = True
    for name in names:
        column = earlier[1].column(name) if earlier is not None else _ValueColumn(np.zeros(0, np.int32), [])
        columns[name], is_plain = _extend(column, origin, new, [row[name] for row in rows])
        plain &= is_plain
    if plain and not store.read_only:
        trees = {}
        for name, column in columns.items():
            text = json.dumps([_to_json(value) for value in column.values], separators=(",", ":"))
            trees[name] = {"codes": column.codes, "values": np.frombuffer(text.encode("ascii"), np.uint8)}
        store.put(key, {"keys": keys, "columns": trees}, recipe=_AGGREGATES)
        memory.write_note(_NOTES, note, key.hex)
    return Aggregates(columns)


def _read_aggregates(store: Store, key: Key) -> Values:
    """The aggregates in a sample's own entry."""
    # Lazily: the large tensors of the split values are not wanted here, and as numpy they take least to be named.
    values = store.get(key, lazy=True, tensors="numpy")["aggregate"]
    return dict(store.get(key)["aggregate"] if _has_lazy(values) else values)


def _has_lazy(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_lazy(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_lazy(item) for item in value)
    return isinstance(value, LazyTensor)


def _extend(
    column: _ValueColumn, origin: npt.NDArray[np.int64], new: Sequence[int], values: Sequence[Any]
) -> tuple[_ValueColumn, bool]:
    """The rows `origin` of a column, with new values where there was none; and whether all of these are plain."""
    kept, kept_codes = np.unique(column.codes[origin[origin >= 0]], return_inverse=True)
    distinct = [column.values[code] for code in kept.tolist()]
    codes = np.zeros(len(origin), np.int32)
    codes[origin >= 0] = kept_codes
    all_plain = True
    code_of = {_text(value): code for code, value in enumerate(distinct)} if len(distinct) <= _MAX_COMPARED else {}
    for row, value in zip(new, values, strict=True):
        text = _text(value)
        all_plain &= text is not None
        code = code_of.get(text) if text is not None else None
        if code is None:
            code = len(distinct)
            distinct.append(value)
            if text is not None and len(code_of) <= _MAX_COMPARED:
                code_of[text] = code
        codes[row] = code
    return _ValueColumn(codes, distinct), all_plain


def _open(store: Store, key: Key) -> tuple[Bytes, Aggregates] | None:
    """The entry that holds a group's aggregates: the keys it was made of, and its columns."""
    entry = store.get(key, None, tensors="numpy")
    if entry is None:
        return None
    columns = {
        name: _ValueColumn(column["codes"], [_from_json(form) for form in json.loads(column["values"].tobytes())])
        for name, column in entry["columns"].items()
    }
    return entry["keys"], Aggregates(columns)


def _text(value: Any) -> str | None:
    """A plain value as text; None for one that is not plain."""
    try:
        return json.dumps(_to_json(value), separators=(",", ":"))
    except TypeError:
        return None


def _to_json(value: Any) -> Any:
    """A plain value as JSON that tells tuples from lists, and keys that are no text from those that are."""
    kind = type(value)
    if kind is tuple:
        return {"t": [_to_json(item) for item in value]}
    if kind is list:
        return [_to_json(item) for item in value]
    if kind is dict:
        return {"d": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if kind in (str, int, float, bool) or value is None:
        return value
    raise TypeError


def _from_json(form: Any) -> Any:
    kind = type(form)
    if kind is list:
        return [_from_json(item) for item in form]
    if kind is not dict:
        return form
    if "t" in form:
        return tuple(_from_json(item) for item in form["t"])
    return {_from_json(key): _from_json(item) for key, item in form["d"]}
