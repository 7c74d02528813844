"""Wanted entries: which entries an encoder shall have for some samples, and what each of their keys is made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from precook.config.sections import ImageSettings, TextSettings
from precook.identity.recipe import Recipe
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.plan.targets import Samples, Targets
from precook.sources.clips import VERSION as CLIPS
from precook.sources.draws import Purpose, draw
from precook.sources.frame_choice import FrameChoice
from precook.sources.geometry import COLUMNS, Geometry, GeometryRows
from precook.sources.samples import EMPTY
from precook.values import Bytes, Flags, Numbers

Input = Literal["image", "text", "mask", "video"]
NOBODY = -1
"""The owner of the empty prompt."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder as a plan sees it."""

    name: str
    """Its name in the config and in the batch; no part of any key."""
    input: Input
    recipe: Recipe
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What it would make entries with today: libraries, and the source files of an encoder of one's own."""
    advice: str = field(default="", compare=False)
    """What to do where entries were made with others."""
    documents: bool = False
    """Whether it takes texts in parts, too: conversations, and prompts with completions."""


@dataclass(frozen=True, slots=True)
class WantedEntries:
    """The entries that one encoder shall have, a row each; several rows may want the same entry."""

    encoding: Encoding
    kind: Kind
    rows: Bytes
    """What each key is made of, as memory has it."""
    samples: Numbers
    """Whose entry it is."""
    parts: Numbers
    """Which target of the sample, or which of its lines."""
    keys: Bytes
    first: Flags
    """The first row with its key; the others share its entry."""


def want(
    encoding: Encoding, samples: Samples, targets: Targets, image: ImageSettings, text: TextSettings, memory: Memory
) -> WantedEntries:
    """What an encoder needs for these samples."""
    if encoding.input == "text":
        kind = text_kind(encoding.recipe)
        rows, owners, parts = text_rows(samples, targets, text)
    else:
        clips = bool(targets.choices) and encoding.input != "mask"
        kind = (clip_kind if clips else picture_kind)(encoding.recipe)
        rows, owners, parts = _picture_rows(encoding, samples, targets, image)
    keys = find_keys(kind, rows, encoding.recipe, memory)
    return WantedEntries(encoding, kind, rows, owners, parts, keys, first_of_each(keys))


def text_rows(samples: Samples, targets: Targets, settings: TextSettings) -> tuple[Bytes, Numbers, Numbers]:
    """The texts that are kept, with whose each is and which of its captions; the empty prompt comes last."""
    owners = np.repeat(np.arange(samples.count), samples.line_counts)
    starts = np.cumsum(samples.line_counts) - samples.line_counts
    parts = np.arange(len(owners)) - starts[owners]
    keep = _kept_lines(samples, settings)
    keep &= targets.kept[owners]
    rows, owners, parts = (
        (samples.lines, owners, parts) if keep.all() else (samples.lines[keep], owners[keep], parts[keep])
    )
    # It stands in for captions: a dataset of texts alone has none.
    if settings.empty_prompt and (samples.pictured.any() or not samples.count):
        rows = np.concatenate([rows, np.frombuffer(EMPTY, np.uint8).reshape(1, 32)])
        owners, parts = np.append(owners, NOBODY), np.append(parts, 0)
    return rows, owners, parts


def _kept_lines(samples: Samples, settings: TextSettings) -> Flags:
    """Which of the samples' captions are kept: all, or so many of each, chosen by their text and never by position."""
    if settings.variations == "all":
        return np.ones(len(samples.lines), bool)
    owners = np.repeat(np.arange(samples.count), samples.line_counts)
    bits = draw(samples.lines, Purpose.LINES, number=0, seed=0)
    order = np.lexsort((bits, owners))
    starts = np.cumsum(samples.line_counts) - samples.line_counts
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - starts[owners[order]]
    return ranks < settings.variations


def _picture_rows(
    encoding: Encoding, samples: Samples, targets: Targets, settings: ImageSettings
) -> tuple[Bytes, Numbers, Numbers]:
    rows, owners, parts = [], [], []
    for number, (cuts, usable) in enumerate(zip(targets.cuts, targets.usable, strict=True)):
        chosen = usable & samples.masked if encoding.input == "mask" else usable
        if encoding.input == "mask":
            made = picture_rows(samples.masks[chosen], cuts[chosen], white=~samples.has_mask[chosen])
        elif chosen.all():
            made = picture_rows(samples.images, cuts, alphas=samples.alphas, background=settings.rgb)
        else:
            made = picture_rows(
                samples.images[chosen], cuts[chosen], alphas=samples.alphas[chosen], background=settings.rgb
            )
        if targets.choices and encoding.input != "mask":
            made = clip_rows(made, _taken(encoding, samples, targets.choices[number])[chosen])
        rows.append(made)
        owners.append(np.flatnonzero(chosen))
        parts.append(np.full(len(made), number))
    if len(rows) == 1:
        return rows[0], owners[0], parts[0]
    return np.concatenate(rows), np.concatenate(owners), np.concatenate(parts)


def _taken(encoding: Encoding, samples: Samples, choices: Numbers) -> Numbers:
    """The frames that an encoder takes of each clip: of one that takes pictures, the first that is chosen.

    A still picture is none of its frames but itself, so that its entry is that of any other dataset.
    """
    if encoding.input == "video":
        return choices
    assert samples.clips is not None, "they have choices"
    taken = np.zeros_like(choices)
    moving = np.array([times.count > 1 for times in samples.clips], bool)
    taken[moving, 0], taken[moving, 1] = choices[moving, 0], 1
    return taken


def first_of_each(keys: Bytes) -> Flags:
    """Which rows are the first with their content."""
    words = np.ascontiguousarray(keys).view("<u8")
    order = np.argsort(words[:, 0], kind="stable")
    ordered = words[order]
    first = np.ones(len(keys), bool)
    # Sorted by their first 64 bits alone, which is faster, and different digests practically never share them. Whole
    # keys are compared all the same: at worst an entry is listed twice, never is one taken for another.
    same = (ordered[1:] == ordered[:-1]).all(axis=1)
    first[order[1:][same]] = False
    return first


def rows_with(keys: Bytes, wanted: Collection[bytes]) -> Numbers:
    """The rows whose key is one of a few."""
    if not wanted:
        return np.zeros(0, np.int64)
    firsts = np.frombuffer(b"".join(key[:8] for key in wanted), "<u8")
    near = np.flatnonzero(np.isin(np.ascontiguousarray(keys).view("<u8")[:, 0], firsts))
    return near[[keys[row].tobytes() in wanted for row in near.tolist()]]


_GEOMETRY = slice(32, 32 + 4 * COLUMNS)
_BACKGROUND = slice(_GEOMETRY.stop, _GEOMETRY.stop + 8)
_CHOICE = slice(_BACKGROUND.stop, _BACKGROUND.stop + 16)
"""Of clips: three numbers of four bytes, and nothing."""
_WHITE = 255
"""In the last byte: no mask file, a white mask."""


@dataclass(frozen=True, slots=True)
class KeyParts:
    """What a key is made of, apart from the recipe, as its row in memory says it."""

    input: bytes
    """The digest of the picture, mask or text."""
    geometry: Geometry | None
    background: tuple[int, int, int] | None
    white: bool
    frames: FrameChoice | None = None
    """Of a clip: which frames."""

    @property
    def settings(self) -> dict[str, object]:
        """The settings that stand in the key."""
        settings: dict[str, object] = {}
        if self.geometry is not None:
            settings["geometry"] = self.geometry.form
        if self.background is not None:
            settings["background"] = list(self.background)
        if self.frames is not None:
            settings["frames"] = {"version": CLIPS, **self.frames.form}
        return settings


def picture_kind(recipe: Recipe | bytes) -> Kind:
    """Keys of pictures and masks by input, geometry and background."""
    return Kind(f"picture keys/1/{_hex(recipe)}", key=_BACKGROUND.stop, value=32)


def clip_kind(recipe: Recipe | bytes) -> Kind:
    """Keys of clips by input, geometry, background and frames."""
    return Kind(f"clip keys/1/{_hex(recipe)}", key=_CHOICE.stop, value=32)


def kind_like(kind: Kind, recipe: bytes) -> Kind:
    """Keys of the same sort that another recipe made."""
    family, _, _ = kind.name.rpartition("/")
    return replace(kind, name=f"{family}/{recipe.hex()}")


def text_kind(recipe: Recipe | bytes) -> Kind:
    """Keys of texts by their digest."""
    return Kind(f"text keys/1/{_hex(recipe)}", key=32, value=32)


def picture_rows(
    digests: Bytes,
    cuts: GeometryRows,
    *,
    alphas: Flags | None = None,
    background: tuple[int, int, int] = (0, 0, 0),
    white: Flags | None = None,
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


def clip_rows(rows: Bytes, choices: Numbers) -> Bytes:
    """What keys of clips are made of: rows of `picture_rows`, and which frames are taken; none of a still picture."""
    taken = np.zeros((len(rows), 4), "<u4")
    taken[:, :3] = choices
    return np.concatenate([rows, taken.view(np.uint8)], axis=1)


def read_parts(row: Bytes) -> KeyParts:
    """What a row of `picture_rows` or `clip_rows`, or the digest of a text, stands for."""
    if len(row) == 32:  # noqa: PLR2004 - a digest
        return KeyParts(row.tobytes(), None, None, white=False)
    frames = None
    if len(row) == _CHOICE.stop:
        start, count, rate, _ = np.ascontiguousarray(row[_CHOICE]).view("<u4").tolist()
        frames = FrameChoice(start, count, rate) if count else None
    red, green, blue, shows = row[_BACKGROUND][:4].tolist()
    return KeyParts(
        input=row[:32].tobytes(),
        geometry=Geometry.of(np.ascontiguousarray(row[_GEOMETRY]).view("<i4")),
        background=(red, green, blue) if shows else None,
        white=bool(row[_BACKGROUND.stop - 1] == _WHITE),
        frames=frames,
    )


def find_keys(kind: Kind, rows: Bytes, recipe: Recipe, memory: Memory) -> Bytes:
    """The key for each row, from memory or worked out now and remembered."""
    known, keys = memory.recall(kind, rows)
    if known.all():
        return keys
    missing = np.flatnonzero(~known)
    if kind.key == 32:  # noqa: PLR2004 - the digest of a text
        fresh = np.frombuffer(recipe.keys(rows[missing].tobytes()), np.uint8).reshape(-1, 32)
    else:
        fresh = _picture_keys(recipe, rows[missing])
    keys = keys.copy()
    keys[missing] = fresh
    memory.remember(kind, rows[missing], fresh)
    return keys


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
