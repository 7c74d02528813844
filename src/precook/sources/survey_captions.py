"""The survey's look at captions: in which files they lie, how these read, and what the names of folders say.

It is a guess for `precook init`, which writes it into the config with its reason; nothing else relies on it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precook.errors import SourceError, printable
from precook.fs.read import read_small
from precook.sources.captions import MAX_BYTES, CaptionError, decode_caption, split_lines
from precook.sources.table_formats import JSON
from precook.sources.tables import read_columns
from precook.units import format_count

METADATA = ("metadata.jsonl", "metadata.csv")
"""Tables that datasets of the hub have beside their pictures."""
EXTENSIONS = (".txt", ".caption", ".json")
"""Endings of caption files that are looked for, the usual one first."""

_FIELDS = ("text", "caption", "captions", "prompt", "tags", "description")
"""What the column or field of captions is called, the likeliest first."""
_LOOKED_AT = 100
_REPEATS = re.compile(r"([1-9][0-9]{0,2})_(.+)")
_FEW_TAGS = 4
_LONG_TAG = 4


@dataclass(frozen=True, slots=True)
class FoundCaptions:
    """Where the captions of a concept are, as far as that is not what is usual, and what its owner should know."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of the concept."""
    remarks: tuple[str, ...] = ()
    captioned: int = 0
    """Pictures with a caption."""


def repeats_in(folder: str) -> tuple[int, str] | None:
    """Repeats and name that a folder's name says, as kohya's trainers read it; None where it says none.

    >>> repeats_in("10_my cat"), repeats_in("2024_holidays"), repeats_in("01_first"), repeats_in("cats")
    ((10, 'my cat'), None, None, None)
    """
    match = _REPEATS.fullmatch(folder)
    return None if match is None else (int(match[1]), match[2])


def find_metadata(folder: Path, pictures: int) -> tuple[str, FoundCaptions] | None:
    """The table of a dataset of the hub in a folder, and how it is read; None where there is none."""
    for name in METADATA:
        try:
            columns = read_columns(folder / name)
        except SourceError:
            continue  # absent, or no such table
        if "file_name" not in columns:
            continue
        settings: dict[str, Any] = {"image_column": "file_name"}
        caption = next((known for known in _FIELDS if known in columns), None)
        if caption is None:
            others = ", ".join(printable(column) for column in columns if column != "file_name") or "none"
            settings["captions"] = {"text": ""}
            remark = f"{name} names the pictures; none of its other columns reads like captions: {others}"
            return name, FoundCaptions(settings, (remark,))
        settings["captions"] = {"column": caption}
        remark = f"{name} names the pictures, and its column {caption} has the captions"
        return name, FoundCaptions(settings, (remark,), pictures)
    return None


def find_captions(folder: Path, pictures: Sequence[str], files: set[str]) -> FoundCaptions:
    """The caption files beside pictures, which are named relative to a folder."""
    stems = [path.rpartition(".")[0] for path in pictures]
    counts = {ending: sum(f"{stem}{ending}" in files for stem in stems) for ending in EXTENSIONS}
    ending = max(counts, key=lambda each: counts[each])
    if not counts[ending]:
        return FoundCaptions()
    paths = [f"{stem}{ending}" for stem in stems if f"{stem}{ending}" in files]
    texts = [text for path in paths[:: len(paths) // _LOOKED_AT + 1] if (text := _read(folder / path)) is not None]
    if ending == ".json":
        name = next((known for text in texts for known in _FIELDS if known in _json_fields(text)), None)
        if name is None:
            return FoundCaptions()
        remark = f"captions are in the field {name} of JSON files beside the pictures"
        return FoundCaptions({"captions": {"json": name}}, (remark,), counts[ending])
    settings = {} if ending == ".txt" else {"caption_extension": ending}
    return FoundCaptions(settings, tuple(_reading(texts)), counts[ending])


def _reading(texts: list[str]) -> list[str]:
    """What their owner should know of how these files are read."""
    several = sum(len(split_lines(text)) > 1 for text in texts)
    remarks = []
    if several:
        files = f"{several:,} of {format_count(len(texts), 'caption file')}"
        remarks.append(
            f"{files} looked at have several lines: each line is taken as a caption of its own, and an epoch shows "
            "one of them; captions: {whole: sidecar} makes each file one caption"
        )
    if 2 * sum(map(_like_tags, texts)) > len(texts):
        remarks.append("captions read like tags: tags: {keep_first: 1} shuffles them, in several variations")
    return remarks


def _like_tags(text: str) -> bool:
    tags = text.strip().split(",")
    return len(tags) > _FEW_TAGS and all(len(tag.split()) < _LONG_TAG for tag in tags)


def _read(path: Path) -> str | None:
    try:
        return decode_caption(read_small(path, MAX_BYTES))
    except (OSError, CaptionError):
        return None  # `plan` names it


def _json_fields(text: str) -> list[str]:
    try:
        value = JSON.decode(text)
    except (ValueError, RecursionError):
        return []
    return list(value) if isinstance(value, dict) else []
