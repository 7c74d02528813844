"""Searching for old caches: pictures, the files that other tools left for them, and whether they fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precook.errors import SourceError
from precook.fs.read import read_source
from precook.identity.digest import digest
from precook.integrations.old_files import OldPart, Picture, UnusableError, inspect
from precook.integrations.old_names import LATENT_FOLDER, TEXT_FOLDER, OldName, recognise
from precook.report import Reporter
from precook.sources.captions import CaptionError, decode_caption
from precook.sources.image import RefusedError, read_facts
from precook.sources.sample_files import SUFFIXES
from precook.values import Digest

_CAPTIONS = (".txt", ".caption")
_TURNED = 5
"""From this EXIF orientation on, width and height are exchanged."""


@dataclass(frozen=True, slots=True)
class OldCache:
    """A part of a cache file that fits its picture."""

    path: Path
    part: OldPart


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not adopted, and why."""

    path: Path | str
    reason: str


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found of every picture."""

    contents: dict[Path, Digest]
    captions: dict[Path, str]
    latents: dict[Path, list[tuple[str, OldCache]]]
    """With the tool that wrote them, like `prompts`."""
    prompts: dict[Path, list[tuple[str, OldCache]]]
    left_out: list[LeftOut]


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder below with its files, in order; links are not followed, and stores are left out."""
    for root, folders, files in os.walk(folder, onerror=_refuse):
        if "store.toml" in files:
            folders.clear()
            continue
        folders.sort()
        yield Path(root), sorted(files)


def _refuse(error: OSError) -> None:
    # A folder that cannot be listed would look like an empty one.
    raise SourceError(Path(error.filename), error.strerror or str(error)) from error


def find_pictures(folder: Path) -> dict[tuple[Path, str], list[Path]]:
    """Pictures by their folder and stem."""
    found: dict[tuple[Path, str], list[Path]] = {}
    for root, files in _walk(folder):
        for name in files:
            stem, _, suffix = name.rpartition(".")
            if stem and suffix.lower() in SUFFIXES:
                found.setdefault((root, stem), []).append(root / name)
    return found


def find_caches(folder: Path) -> Iterator[tuple[Path, OldName]]:
    """Every file below that a known tool would have named so."""
    for root, files in _walk(folder):
        for name in files:
            found = recognise(name, root.name)
            if found is not None:
                yield root / name, found


def match(
    pictures: Mapping[tuple[Path, str], list[Path]], caches: Sequence[tuple[Path, OldName]], *, beside: bool
) -> tuple[dict[tuple[Path, str], list[tuple[Path, OldName]]], int]:
    """The caches of each picture, and how many have none: beside it, or elsewhere where its name is the only one."""
    homes: dict[str, list[tuple[Path, str]]] = {}
    for place in pictures:
        homes.setdefault(place[1], []).append(place)
    found: dict[tuple[Path, str], list[tuple[Path, OldName]]] = {}
    strangers = 0
    for path, name in caches:
        folder = path.parent.parent if path.parent.name in (LATENT_FOLDER, TEXT_FOLDER) else path.parent
        places = [(folder, name.stem)] if beside else homes.get(name.stem, [])
        if len(places) == 1 and places[0] in pictures:
            found.setdefault(places[0], []).append((path, name))
        else:
            strangers += 1
    return found, strangers


def look(
    pictures: Mapping[tuple[Path, str], list[Path]],
    found: Mapping[tuple[Path, str], list[tuple[Path, OldName]]],
    *,
    ignore_times: bool,
    report: Reporter,
) -> Looked:
    """Open what was found and keep what fits its picture and caption."""
    looked = Looked({}, {}, {}, {}, [])
    with report.task("looking", total=len(found), unit="samples") as task:
        for place, caches in sorted(found.items()):
            task.advance()
            same = pictures[place]
            if len(same) > 1:
                names = " and ".join(path.name for path in same)
                looked.left_out.append(LeftOut(same[0], f"{names} share the names of their caches"))
                continue
            try:
                _look_at(same[0], caches, looked, ignore_times=ignore_times)
            except (OSError, RefusedError, CaptionError) as error:
                looked.left_out.append(LeftOut(same[0], str(error)))
    return looked


def _look_at(path: Path, caches: list[tuple[Path, OldName]], looked: Looked, *, ignore_times: bool) -> None:
    content = read_source(path)
    facts = read_facts(content)
    size = (facts.width, facts.height)
    picture = Picture(path.name, size, size[::-1] if facts.orientation >= _TURNED else size)
    caption, caption_time = _caption(path)
    looked.contents[path], looked.captions[path] = digest(content), caption
    picture_time = path.stat().st_mtime_ns
    for cache, name in caches:
        source, time = ("picture", picture_time) if name.part == "latent" else ("caption", caption_time)
        try:
            parts = inspect(cache, name, picture)
            noted = next((part.caption for part in parts if part.caption is not None), None)
            if noted is not None and caption_time and noted.strip() != caption:
                raise UnusableError(f"it was made of another caption: {_short(noted)}")  # noqa: TRY301
            if noted is None and time > cache.stat().st_mtime_ns and not ignore_times:
                raise UnusableError(f"it is older than its {source}")  # noqa: TRY301
        except UnusableError as error:
            looked.left_out.append(LeftOut(cache, str(error)))
            continue
        column = looked.latents if name.part == "latent" else looked.prompts
        column.setdefault(path, []).extend((name.tool, OldCache(cache, part)) for part in parts)


def _caption(picture: Path) -> tuple[str, int]:
    """The caption beside a picture and when it was written; the empty prompt and 0 where there is none."""
    for suffix in _CAPTIONS:
        path = picture.with_suffix(suffix)
        if path.is_file():
            return decode_caption(read_source(path)).strip(), path.stat().st_mtime_ns
    return "", 0


def _short(text: str) -> str:
    shown = ascii(text.strip())
    return shown if len(shown) <= 60 else f"{shown[:57]}…"  # noqa: PLR2004
