"""Keys of everything a plan wants, remembered: the key of an unchanged picture is not worked out again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from precook.identity.recipe import Recipe
from precook.sources.geometry import COLUMNS, Geometry, GeometryRows
from precook.sources.memory import Memory
from precook.sources.segments import Bytes, Kind

_GEOMETRY = slice(32, 32 + 4 * COLUMNS)
_BACKGROUND = slice(_GEOMETRY.stop, _GEOMETRY.stop + 8)
_WHITE = 255
"""In the last byte: no mask file, a white mask."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a key is made of, apart from the recipe, as its row in memory says it."""

    input: bytes
    """The digest of the picture, mask or text."""
    geometry: Geometry | None
    background: tuple[int, int, int] | None
    white: bool

    @property
    def settings(self) -> dict[str, object]:
        """The settings that stand in the key."""
        settings: dict[str, object] = {}
        if self.geometry is not None:
            settings["geometry"] = self.geometry.form
        if self.background is not None:
            settings["background"] = list(self.background)
        return settings


def picture_kind(recipe: Recipe | bytes) -> Kind:
    """Keys of pictures and masks by input, geometry and background."""
    return Kind(f"picture keys/1/{_hex(recipe)}", key=_BACKGROUND.stop, value=32)


def text_kind(recipe: Recipe | bytes) -> Kind:
    """Keys of texts by their digest."""
    return Kind(f"text keys/1/{_hex(recipe)}", key=32, value=32)


def picture_rows(
    digests: Bytes,
    cuts: GeometryRows,
    *,
    alphas: npt.NDArray[np.bool_] | None = None,
    background: tuple[int, int, int] = (0, 0, 0),
    white: npt.NDArray[np.bool_] | None = None,
) -> Bytes:
    """What keys of pictures (with `alphas`) or masks (with `white`) are made of, a row each.

    The background is a part only of pictures that it shows through.
    """
    rows = np.zeros((len(digests), _BACKGROUND.stop), np.uint8)
    rows[:, :32] = digests
    rows[:, _GEOMETRY] = np.ascontiguousarray(cuts, "<i4").view(np.uint8)
    if alphas is not None:
        rows[alphas, _BACKGROUND.start : _BACKGROUND.start + 4] = np.array([*background, 1], np.uint8)
    if white is not None:
        rows[white, :32] = 0
        rows[white, -1] = _WHITE
    return rows


def read_parts(row: Bytes) -> Parts:
    """What a row of `picture_rows`, or the digest of a text, stands for."""
    if len(row) == 32:  # noqa: PLR2004 - a digest
        return Parts(row.tobytes(), None, None, white=False)
    red, green, blue, shows = row[_BACKGROUND][:4].tolist()
    return Parts(
        input=row[:32].tobytes(),
        geometry=Geometry.of(np.ascontiguousarray(row[_GEOMETRY]).view("<i4")),
        background=(red, green, blue) if shows else None,
        white=bool(row[-1] == _WHITE),
    )


def find_keys(kind: Kind, rows: Bytes, recipe: Recipe, memory: Memory) -> Bytes:
    """The key for each row, from memory or worked out now and remembered."""
    known, keys = memory.recall(kind, rows)
    if known.all():
        return keys
    missing = np.flatnonzero(~known)
    fresh = _text_keys(recipe, rows[missing]) if kind.key == 32 else _picture_keys(recipe, rows[missing])  # noqa: PLR2004
    keys = keys.copy()
    keys[missing] = fresh
    memory.remember(kind, rows[missing], fresh)
    return keys


def _text_keys(recipe: Recipe, digests: Bytes) -> Bytes:
    return np.frombuffer(recipe.keys(digests.tobytes()), np.uint8).reshape(-1, 32)


def _picture_keys(recipe: Recipe, rows: Bytes) -> Bytes:
    """Keys of rows that differ in more than the digest: those with the same settings are worked out together."""
    settings = np.ascontiguousarray(rows[:, 32:]).view(np.dtype((np.void, rows.shape[1] - 32))).ravel()
    order = np.argsort(settings, kind="stable")
    ordered = settings[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    keys = np.zeros((len(rows), 32), np.uint8)
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        group = order[start:stop]
        parts = read_parts(rows[group[0]])
        if parts.white:
            keys[group] = np.frombuffer(recipe.key("white", **parts.settings).bytes, np.uint8)
        else:
            made = recipe.keys(rows[group, :32].tobytes(), **parts.settings)
            keys[group] = np.frombuffer(made, np.uint8).reshape(-1, 32)
    return keys


def _hex(recipe: Recipe | bytes) -> str:
    return recipe.hex() if isinstance(recipe, bytes) else recipe.hex
