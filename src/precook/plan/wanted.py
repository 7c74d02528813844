"""Wanted entries: which entries an encoder shall have for some samples, and what each of their keys is made of."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from precook.config.further_pictures import OWN, VIDEO
from precook.config.sections import TextSettings
from precook.identity.recipe import Recipe
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.plan.targets import Samples, Targets
from precook.sources.clips import VERSION as CLIPS
from precook.sources.draws import Purpose, draw
from precook.sources.frame_choice import FrameChoice
from precook.sources.geometry import COLUMNS, Geometry, GeometryRows
from precook.sources.samples import EMPTY
from precook.values import Bytes, Digest, Flags, Numbers

Input = Literal["image", "text", "mask", "video"]
TEXT: Input = "text"
MASK: Input = "mask"
NOBODY = -1
"""The owner of the empty prompt."""
NOTHING = -1
"""Stands for the target of what is no picture, and for the line of what has no text, or the empty prompt."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder as a plan sees it."""

    name: str
    """Its name in the config and in the batch; no part of any key."""
    inputs: tuple[str, ...]
    """What it takes of a sample: image, text, mask, or names of further pictures."""
    recipe: Recipe
    versions: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What it would make entries with today: libraries, and the source files of an encoder of one's own."""
    advice: str = field(default="", compare=False)
    """What to do where entries were made with others."""
    documents: bool = False
    """Whether it takes texts in parts, too: conversations, and prompts with completions."""
    of: str = field(default=OWN, compare=False)
    """Which of its inputs the encoder gets as its image: the sample's own picture, or a further one."""

    @property
    def input(self) -> str:
        """All that it takes, as one word."""
        return "+".join(self.inputs)

    @property
    def per(self) -> Literal["line", "cut", "pair"]:
        """What it has an entry for: each caption, each cut of the pictures, or each pair of these."""
        if TEXT not in self.inputs:
            return "cut"
        return "line" if len(self.inputs) == 1 else "pair"


@dataclass(frozen=True, slots=True)
class WantedEntries:
    """The entries that one encoder shall have, a row each; several rows may want the same entry."""

    encoding: Encoding
    kind: Kind
    rows: Bytes
    """What each key is made of, as memory has it."""
    samples: Numbers
    """Whose entry it is."""
    targets: Numbers
    """Which target of the sample; `NOTHING` for texts alone."""
    lines: Numbers
    """Which of the sample's captions; `NOTHING` for what has no text, and for the empty prompt beside a picture."""
    keys: Bytes
    first: Flags
    """The first row with its key; the others share its entry."""


def want(encoding: Encoding, samples: Samples, targets: Targets, text: TextSettings, memory: Memory) -> WantedEntries:
    """What an encoder needs for these samples."""
    layout = layout_of(encoding.inputs, clips=bool(targets.choices))
    if encoding.per == "line":
        rows, owners, lines = text_rows(samples, targets, text)
        numbers = np.full(len(rows), NOTHING)
    elif len(encoding.inputs) == 1:
        rows, owners, numbers = _picture_rows(encoding.inputs[0], samples, targets)
        lines = np.full(len(rows), NOTHING)
    else:
        rows, owners, numbers, lines = _combined_rows(encoding.inputs, samples, targets, text)
    keys = _find_keys(rows, encoding, layout, memory)
    kind = key_kind(encoding.recipe.digest.bytes, layout)
    return WantedEntries(encoding, kind, rows, owners, numbers, lines, keys, first_of_each(keys))


def text_rows(samples: Samples, targets: Targets, settings: TextSettings) -> tuple[Bytes, Numbers, Numbers]:
    """The texts that are kept, with whose each is and which of its captions; the empty prompt comes last."""
    owners = np.repeat(np.arange(samples.count), samples.line_counts)
    starts = np.cumsum(samples.line_counts) - samples.line_counts
    parts = np.arange(len(owners)) - starts[owners]
    keep = _kept_lines(samples)
    keep &= targets.kept[owners]
    rows, owners, parts = (
        (samples.lines, owners, parts) if keep.all() else (samples.lines[keep], owners[keep], parts[keep])
    )
    # It stands in for captions: a dataset of texts alone has none.
    pictures = any(concept.passages is None for concept in samples.by_concept)
    if settings.empty_prompt and (samples.pictured.any() or (pictures and not samples.count)):
        rows = np.concatenate([rows, np.frombuffer(EMPTY, np.uint8).reshape(1, 32)])
        owners, parts = np.append(owners, NOBODY), np.append(parts, 0)
    return rows, owners, parts


def _kept_lines(samples: Samples) -> Flags:
    """Which of the samples' captions are kept: all, or so many of each, chosen by their text and never by position."""
    limits = [concept.text.variations for concept in samples.by_concept]
    if set(limits) == {"all"}:
        return np.ones(len(samples.lines), bool)
    owners = np.repeat(np.arange(samples.count), samples.line_counts)
    bits = draw(samples.lines, Purpose.LINES, number=0, seed=0)
    order = np.lexsort((bits, owners))
    starts = np.cumsum(samples.line_counts) - samples.line_counts
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order)) - starts[owners[order]]
    most = np.array([len(order) if limit == "all" else min(limit, len(order)) for limit in limits], np.int64)
    return np.asarray(ranks < most[samples.concepts[owners]])


def _picture_rows(part: str, samples: Samples, targets: Targets) -> tuple[Bytes, Numbers, Numbers]:
    """The cuts of one picture or mask of each sample that has it, with whose each is and for which target."""
    rows, owners, numbers = [], [], []
    there: Flags | None = None
    if part not in _FILES:
        there = samples.masked if part == MASK else samples.further[part].present
    for number, usable in enumerate(targets.usable):
        chosen = usable if there is None else usable & there
        made = _part_rows(part, samples, targets, number, None if chosen.all() else np.flatnonzero(chosen))
        rows.append(made)
        owners.append(np.flatnonzero(chosen))
        numbers.append(np.full(len(made), number))
    if len(rows) == 1:
        return rows[0], owners[0], numbers[0]
    return np.concatenate(rows), np.concatenate(owners), np.concatenate(numbers)


def _part_rows(part: str, samples: Samples, targets: Targets, target: int, chosen: Numbers | None) -> Bytes:
    """What keys of one picture or mask of some samples, or all, are made of for a target."""
    some: Any = slice(None) if chosen is None else chosen
    if part == MASK:
        return picture_rows(samples.masks[some], targets.cuts[target][some], white=~samples.has_mask[some])
    cuts, backgrounds = targets.cuts_of(part)[target][some], samples.backgrounds[some]
    if part in _FILES:
        rows = picture_rows(samples.images[some], cuts, alphas=samples.alphas[some], backgrounds=backgrounds)
        return clip_rows(rows, _taken(part, samples, targets.choices[target])[some]) if targets.choices else rows
    columns = samples.further[part]
    rows = picture_rows(columns.images[some], cuts, alphas=columns.alphas[some], backgrounds=backgrounds)
    rows[~columns.present[some], -1] = _ABSENT
    return rows


def _combined_rows(
    inputs: Sequence[str], samples: Samples, targets: Targets, text: TextSettings
) -> tuple[Bytes, Numbers, Numbers, Numbers]:
    """Every combination of several inputs, with whose it is, for which target, and with which caption."""
    owners_of_lines = np.repeat(np.arange(samples.count), samples.line_counts)
    starts = np.cumsum(samples.line_counts) - samples.line_counts
    kept = _kept_lines(samples)
    empty = np.frombuffer(EMPTY, np.uint8)
    rows, owners, numbers, lines = [], [], [], []
    for number, usable in enumerate(targets.usable):
        chosen = np.flatnonzero(usable)
        line = np.full(len(chosen), NOTHING)
        texts = np.broadcast_to(empty, (len(chosen), 32))
        if TEXT in inputs:
            # A prompt depends on the picture beside it, and so does the empty one.
            places = np.flatnonzero(kept & usable[owners_of_lines])
            bare = chosen if text.empty_prompt else chosen[:0]
            chosen = np.concatenate([owners_of_lines[places], bare])
            line = np.concatenate([places - starts[owners_of_lines[places]], np.full(len(bare), NOTHING)])
            texts = np.concatenate([samples.lines[places], np.broadcast_to(empty, (len(bare), 32))])
        blocks = [texts if part == TEXT else _part_rows(part, samples, targets, number, chosen) for part in inputs]
        rows.append(np.concatenate(blocks, axis=1))
        owners.append(chosen)
        numbers.append(np.full(len(chosen), number))
        lines.append(line)
    return np.concatenate(rows), np.concatenate(owners), np.concatenate(numbers), np.concatenate(lines)


def _taken(part: str, samples: Samples, choices: Numbers) -> Numbers:
    """The frames that an encoder takes of each clip: of one that takes pictures, the first that is chosen.

    A still picture is none of its frames but itself, so that its entry is that of any other dataset.
    """
    if part == VIDEO:
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
_FILES = (OWN, VIDEO)
"""What is made of a sample's own file."""
PICTURE_ROW = _BACKGROUND.stop
"""Bytes of a row of `picture_rows`."""
_DIGEST = 32
_WHITE = 255
"""In the last byte: no mask file, a white mask."""
_ABSENT = 254
"""In the last byte: no such picture, beside others that are there."""


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
    absent: bool = False
    """Whether the sample has no such picture."""

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


_WIDTHS = {"t": _DIGEST, "i": PICTURE_ROW, "m": PICTURE_ROW, "c": _CHOICE.stop}
"""Bytes of an input in a row, by its letter in a layout: text, picture, mask, clip."""
_FAMILIES = {"t": "text", "i": "picture", "m": "picture", "c": "clip"}
_LAYOUTS = "combined"
"""The kind of notes that tell the layouts of combined keys, by recipe."""


def layout_of(inputs: Sequence[str], *, clips: bool) -> str:
    """What a row of these inputs is made of, a letter for each; with `clips`, samples have frames to choose from."""
    letters: dict[str, str] = {TEXT: "t", MASK: "m", **dict.fromkeys(_FILES, "c" if clips else "i")}
    return "".join(letters.get(part, "i") for part in inputs)


def key_kind(recipe: bytes, layout: str) -> Kind:
    """Keys by what they are made of: the digest of a text, a picture with its cut, or several of these in a row."""
    width = sum(_WIDTHS[letter] for letter in layout)
    family = f"{_FAMILIES[layout]} keys/1" if len(layout) == 1 else f"combined keys/1/{layout}"
    return Kind(f"{family}/{recipe.hex()}", key=width, value=32)


def kind_like(kind: Kind, recipe: bytes) -> Kind:
    """Keys of the same sort that another recipe made."""
    family, _, _ = kind.name.rpartition("/")
    return replace(kind, name=f"{family}/{recipe.hex()}")


def remembered_inputs(memory: Memory, recipe: bytes, key: bytes) -> set[bytes]:
    """The digests of all that an entry was made of, as far as that is remembered."""
    inputs: set[bytes] = set()
    for layout in ("t", "i", "c", *json.loads(memory.note(_LAYOUTS, recipe) or "[]")):
        rows, keys = memory.rows(key_kind(recipe, layout))
        starts = _starts(layout)
        inputs |= {rows[row, at : at + 32].tobytes() for row in rows_with(keys, {key}).tolist() for at in starts}
    return {digest for digest in inputs if any(digest)}  # a white mask is made of nothing


def _starts(layout: str) -> list[int]:
    """Where in a row each input begins."""
    widths = [_WIDTHS[letter] for letter in layout]
    return [sum(widths[:number]) for number in range(len(widths))]


def picture_rows(
    digests: Bytes,
    cuts: GeometryRows,
    *,
    alphas: Flags | None = None,
    backgrounds: Bytes | None = None,
    white: Flags | None = None,
) -> Bytes:
    """What keys of pictures (with `alphas` and `backgrounds`) or masks (with `white`) are made of, a row each.

    The background is a part only of pictures that it shows through.
    """
    rows = np.zeros((len(digests), _BACKGROUND.stop), np.uint8)
    rows[:, :32] = digests
    rows[:, _GEOMETRY] = np.ascontiguousarray(cuts, "<i4").view(np.uint8)
    if alphas is not None and backgrounds is not None:
        rows[alphas, _BACKGROUND.start : _BACKGROUND.start + 3] = backgrounds[alphas]
        rows[alphas, _BACKGROUND.start + 3] = 1
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
    if len(row) == _DIGEST:
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
        white=bool(row[PICTURE_ROW - 1] == _WHITE),
        frames=frames,
        absent=bool(row[PICTURE_ROW - 1] == _ABSENT),
    )


def read_inputs(row: Bytes, inputs: Sequence[str]) -> tuple[KeyParts, ...]:
    """What a row stands for that an encoder of these inputs wants."""
    layout = layout_of(inputs, clips=False)
    if len(row) > sum(_WIDTHS[letter] for letter in layout):
        layout = layout_of(inputs, clips=True)
    return tuple(read_parts(part) for part in np.split(row, _starts(layout)[1:]))


def _find_keys(rows: Bytes, encoding: Encoding, layout: str, memory: Memory) -> Bytes:
    """The key for each row, from memory or worked out now and remembered."""
    recipe = encoding.recipe
    kind = key_kind(recipe.digest.bytes, layout)
    known, keys = memory.recall(kind, rows)
    if known.all():
        return keys
    missing = np.flatnonzero(~known)
    if len(layout) > 1:
        fresh = _combined_keys(rows[missing], encoding, layout)
        layouts = {layout, *json.loads(memory.note(_LAYOUTS, recipe.digest.bytes) or "[]")}
        memory.write_note(_LAYOUTS, recipe.digest.bytes, json.dumps(sorted(layouts)))
    elif layout == "t":
        fresh = np.frombuffer(recipe.keys(rows[missing].tobytes()), np.uint8).reshape(-1, 32)
    else:
        fresh = _picture_keys(recipe, rows[missing])
    keys = keys.copy()
    keys[missing] = fresh
    memory.remember(kind, rows[missing], fresh)
    return keys


def _picture_keys(recipe: Recipe, rows: Bytes) -> Bytes:
    """Keys of rows that differ in more than the digest: those with the same settings are worked out together."""
    keys = np.zeros((len(rows), 32), np.uint8)
    for group in _alike(rows[:, _DIGEST:]):
        parts = read_parts(rows[group[0]])
        if parts.white:
            keys[group] = np.frombuffer(recipe.key("white", **parts.settings).bytes, np.uint8)
        else:
            made = recipe.keys(rows[group, :32].tobytes(), **parts.settings)
            keys[group] = np.frombuffer(made, np.uint8).reshape(-1, 32)
    return keys


def _combined_keys(rows: Bytes, encoding: Encoding, layout: str) -> Bytes:
    """Keys of several inputs: each says what it is, its digest, and how it is cut."""
    inputs, starts = encoding.inputs, _starts(layout)
    digests = np.concatenate([rows[:, start : start + _DIGEST] for start in starts], axis=1)
    others = np.ones(rows.shape[1], bool)
    for start in starts:
        others[start : start + _DIGEST] = False
    keys = np.zeros((len(rows), 32), np.uint8)
    for group in _alike(rows[:, others]):
        parts = read_inputs(rows[group[0]], inputs)

        def form(gaps: Sequence[Digest], parts: tuple[KeyParts, ...] = parts) -> list[object]:
            return [_input_form(name, part, gap) for name, part, gap in zip(inputs, parts, gaps, strict=True)]

        made = encoding.recipe.combined_keys(digests[group].tobytes(), len(inputs), form)
        keys[group] = np.frombuffer(made, np.uint8).reshape(-1, 32)
    return keys


def _input_form(name: str, part: KeyParts, digest: Digest) -> list[object]:
    """One of several inputs as it stands in a key: pictures by what they are, never by their names."""
    if name == TEXT:
        return [TEXT, digest]
    content = None if part.absent else "white" if part.white else digest
    return [name if name in (MASK, VIDEO) else OWN, content, {} if part.absent else part.settings]


def _alike(settings: Bytes) -> Iterator[Numbers]:
    """The numbers of rows with equal settings, group by group."""
    words = np.ascontiguousarray(settings).view(np.dtype((np.void, settings.shape[1]))).ravel()
    order = np.argsort(words, kind="stable")
    ordered = words[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(words)], strict=True):
        yield order[start:stop]
