"""Searching for old caches: pictures, the files that other tools left for them, and whether they fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from xxhash import xxh64

from precook.errors import SourceError
from precook.fs.old_caches import LATENT_FOLDER, TEXT_FOLDER, OldName, recognise
from precook.fs.read import NotAFileError, TooLargeError, read_small
from precook.identity.digest import digest
from precook.integrations.adopt.formats import CachedPicture, OldPart, UnusableError, inspect
from precook.integrations.adopt.mgds import INDEX, VARIATION, find_disk_cache, find_smart_disk_cache
from precook.report import Reporter
from precook.sources.captions import MAX_BYTES, CaptionError, decode_caption
from precook.sources.facts import LARGEST
from precook.sources.pictures import RefusedError, read_facts
from precook.sources.sample_files import picture_suffixes
from precook.store.store import Store
from precook.values import Digest

_CAPTIONS = (".txt", ".caption")
_TURNED = 5
"""From this EXIF orientation on, width and height are exchanged."""
_SHOWN = 60
"""Characters of a caption that are shown."""

PictureName = tuple[Path, str]
"""A picture's folder, and its name without the suffix."""


@dataclass(frozen=True, slots=True)
class OldCache:
    """A part of a cache file that fits its picture."""

    tool: str
    path: Path
    part: OldPart


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not adopted, and why."""

    path: Path | str
    reason: str


@dataclass(frozen=True, slots=True)
class FrontAdoption:
    """What was adopted as entries of a front."""

    entries: int
    failed: tuple[LeftOut, ...]


class FrontAdoptionPlan(Protocol):
    """What would be adopted of a folder as entries of a front; nothing is stored before `execute`."""

    @property
    def tool(self) -> str: ...
    @property
    def part(self) -> str:
        """What one entry is of: a sample, a section."""
        ...

    @property
    def doubt(self) -> str:
        """What nobody can say of them, behind a semicolon."""
        ...

    @property
    def next_step(self) -> str:
        """What to do when they are stored, likewise."""
        ...

    @property
    def entries(self) -> Sequence[object]: ...
    @property
    def left_out(self) -> tuple[LeftOut, ...]: ...
    @property
    def nbytes(self) -> int:
        """Of the files."""
        ...

    def execute(self, store: Store, *, report: Reporter = ...) -> FrontAdoption: ...


@dataclass(frozen=True, slots=True)
class UsableCaches:
    """What fits of the caches in a folder, by the paths of their pictures."""

    contents: dict[Path, Digest] = field(default_factory=dict)
    """Digests of the pictures."""
    captions: dict[Path, str] = field(default_factory=dict)
    latents: dict[Path, list[OldCache]] = field(default_factory=dict)
    prompts: dict[Path, list[OldCache]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)


def find_usable(
    pictures: Mapping[PictureName, list[Path]],
    caches: Mapping[PictureName, list[tuple[Path, OldName]]],
    *,
    ignore_times: bool,
    report: Reporter,
) -> UsableCaches:
    """Open the caches of all pictures, and keep what fits its picture and caption."""
    usable = UsableCaches()
    with report.task("looking", total=len(caches), unit="samples") as task:
        for picture, files in sorted(caches.items()):
            task.advance()
            same_name = pictures[picture]
            if len(same_name) > 1:
                names = " and ".join(path.name for path in same_name)
                usable.left_out.append(LeftOut(same_name[0], f"{names} share the names of their caches"))
                continue
            try:
                _check(same_name[0], files, usable, ignore_times=ignore_times)
            except (NotAFileError, TooLargeError) as error:
                usable.left_out.append(LeftOut(same_name[0], error.reason))
            except (OSError, RefusedError, CaptionError) as error:
                usable.left_out.append(LeftOut(same_name[0], str(error)))
    return usable


def find_pictures(folder: Path) -> dict[PictureName, list[Path]]:
    """Pictures by their folder and stem."""
    pictures: dict[PictureName, list[Path]] = {}
    suffixes = picture_suffixes()
    for root, files in _walk(folder):
        for name in files:
            stem, _, suffix = name.rpartition(".")
            if stem and suffix.lower() in suffixes:
                pictures.setdefault((root, stem), []).append(root / name)
    return pictures


@dataclass(slots=True)
class FoundCaches:
    """The cache files below a folder."""

    of_pictures: dict[PictureName, list[tuple[Path, OldName]]] = field(default_factory=dict)
    without_picture: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    """Folders of which nobody can tell what their files were made of."""


def find_caches(folder: Path, pictures: Mapping[PictureName, list[Path]], *, beside: bool) -> FoundCaches:
    """The cache files below a folder by their pictures.

    The picture lies `beside` its caches; or elsewhere, and then its name must be the only one of its kind. Where an
    index says where it lay, that counts.
    """
    by_stem: dict[str, list[PictureName]] = {}
    by_path: dict[str, PictureName] = {}
    for place, paths in pictures.items():
        by_stem.setdefault(place[1], []).append(place)
        by_path.update({os.path.realpath(path): place for path in paths})
    found = FoundCaches()
    caches = found.of_pictures
    for root, files in _walk(folder):
        finder = (
            find_disk_cache if VARIATION.fullmatch(root.name) else find_smart_disk_cache if INDEX in files else None
        )
        try:
            for path, source, noted in finder(root, files) if finder is not None else ():
                # A picture that is where it was is that one; of one that was moved, the name must be the only one.
                indexed = by_path.get(os.path.realpath(source)) if _is_path(source) else None
                moved = [] if os.path.exists(source) else by_stem.get(noted.stem, [])  # noqa: PTH110
                if indexed is None and len(moved) == 1:
                    indexed = moved[0]
                if indexed is not None:
                    caches.setdefault(indexed, []).append((path, noted))
                else:
                    found.without_picture += 1
        except UnusableError as error:
            found.left_out.append(LeftOut(root, str(error)))
        for name in files:
            known = recognise(name, root.name)
            if known is None:
                continue
            home = root.parent if root.name in (LATENT_FOLDER, TEXT_FOLDER) else root
            places = [(home, known.stem)] if beside else by_stem.get(known.stem, [])
            if len(places) == 1 and places[0] in pictures:
                caches.setdefault(places[0], []).append((root / name, known))
            else:
                found.without_picture += 1
    return found


def _is_path(text: str) -> bool:
    """Whether a file can have this path: no file has a NUL in it, or characters that no bytes stand for."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


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


def _check(path: Path, files: list[tuple[Path, OldName]], usable: UsableCaches, *, ignore_times: bool) -> None:
    """Take in those files that were made of this picture and of its caption as they are now."""
    content = read_small(path, LARGEST)
    facts = read_facts(content)
    size = (facts.width, facts.height)
    picture = CachedPicture(path.name, size, size[::-1] if facts.orientation >= _TURNED else size)
    caption, caption_time = _caption(path)
    usable.contents[path], usable.captions[path] = digest(content), caption
    picture_time = path.stat().st_mtime_ns
    for file, name in files:
        source, time = ("picture", picture_time) if name.part == "latent" else ("caption", caption_time)
        try:
            if name.content is not None and xxh64(content).hexdigest() != name.content:
                raise UnusableError("it was made of another picture, or of this one before it was changed")  # noqa: TRY301
            parts = inspect(file, name, picture)
            noted = next((part.caption for part in parts if part.caption is not None), None)
            if noted is not None and caption_time and noted.strip() != caption:
                shown = ascii(noted.strip())
                shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}…"
                raise UnusableError(f"it was made of another caption: {shown}")  # noqa: TRY301
            proven = noted is not None or name.content is not None
            if not proven and time > file.stat().st_mtime_ns and not ignore_times:
                raise UnusableError(f"it is older than its {source}")  # noqa: TRY301
        except UnusableError as error:
            usable.left_out.append(LeftOut(file, str(error)))
            continue
        column = usable.latents if name.part == "latent" else usable.prompts
        column.setdefault(path, []).extend(OldCache(name.tool, file, part) for part in parts)


def _caption(picture: Path) -> tuple[str, int]:
    """The caption beside a picture and when it was written; the empty prompt and 0 where there is none."""
    for suffix in _CAPTIONS:
        path = picture.with_suffix(suffix)
        if path.is_file():
            return decode_caption(read_small(path, MAX_BYTES)).strip(), path.stat().st_mtime_ns
    return "", 0
