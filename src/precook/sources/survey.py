"""The survey: what lies in a folder, so that `precook init` can write a config that fits it."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from precook.config.sections import VideoSettings
from precook.config.template import FoundConcept
from precook.errors import SourceError, printable
from precook.fs.read import read_small
from precook.report import SILENT, Reporter, Task
from precook.sources.clips import has_pyav, read_clip
from precook.sources.facts import LARGEST
from precook.sources.formats import VIDEO_SUFFIXES
from precook.sources.frame_choice import capacity
from precook.sources.pictures import RefusedError, read_facts
from precook.sources.sample_files import CAPTION, NOT_SAMPLES, OTHER, PICTURE, mask_path, picture_suffixes
from precook.sources.survey_captions import EXTENSIONS, find_captions, find_metadata, repeats_in
from precook.sources.survey_further import control_beside, control_patterns, describe_controls, find_targets
from precook.sources.table_survey import survey_tables
from precook.sources.text_survey import survey_files, survey_table
from precook.sources.walk import walk
from precook.units import format_count

_MEASURED = 100
"""Pictures whose size is read: enough to tell the usual one."""
_DECODED = 10
"""Clips that are decoded: nothing else tells how many frames they have."""
_LONGEST_NAME = 200
_MASKS = ("{stem}-masklabel.png", "{stem}-mask.png", "{stem}_mask.png")
_MASK_FOLDERS = ("masks/", "mask/", "../masks/", "../mask/")
_MASK_PATTERNS = (*_MASKS, *(f"{folder}{name}" for folder in _MASK_FOLDERS for name in ("{stem}.png", "{name}")))


@dataclass(frozen=True, slots=True)
class SurveyedConcept:
    """A concept as it was found, and how much of it there is."""

    concept: FoundConcept
    captioned: int = 0
    """Pictures with a caption beside them."""
    masked: int = 0
    """Pictures with a mask."""
    usual_side: int = 0
    """The side of a square as large as the usual picture; 0 where none could be read."""
    lengths: tuple[int, ...] = ()
    """Frames of some of its clips, at the usual rate."""


@dataclass(frozen=True, slots=True)
class _FileGroup:
    """Pictures and clips that may be a concept; paths are relative to the folder that is surveyed."""

    folder: str
    pictures: tuple[str, ...]
    controls: tuple[str, ...] = ()
    """Patterns that lead from its pictures to those that they were made from."""


def survey(folder: Path, base: Path, *, clips: bool | None = None, report: Reporter = SILENT) -> list[SurveyedConcept]:
    """The concepts in a folder: each of its folders that holds pictures, or the folder itself if pictures lie in it.

    Tables that hold pictures themselves, as datasets of the hub do, go before all else. With `clips` videos are samples
    beside pictures, as they are where a model takes them; where nobody says whether it does, they are if they are more
    than the pictures. Without pictures and videos, the texts of a folder or of a table are a concept. `base` is where
    the config file will lie; paths are relative to it. `SourceError` where there is nothing of all that.
    """
    if tables := _with_tables(folder, base):
        return tables
    if folder.is_file():
        return [SurveyedConcept(survey_table(folder, relative_path(folder, base)))]
    roles = dict.fromkeys((ending[1:] for ending in EXTENSIONS), CAPTION) | dict.fromkeys(VIDEO_SUFFIXES, OTHER)
    listing = walk(folder, {**dict.fromkeys(picture_suffixes(), PICTURE), **roles}, recursive=True)
    paths = [listing.path(row) for row in range(len(listing.names))]
    files = {path for path, regular in zip(paths, listing.regular().tolist(), strict=True) if regular}
    # A FIFO or a link to nothing counts as a picture, as it does in a plan, which says what is wrong with it.
    pictures = [path for path, role in zip(paths, listing.roles, strict=True) if role == PICTURE]
    samples = [path for path in pictures if not _stem(path).endswith(NOT_SAMPLES)]
    videos = [path for path, role in zip(paths, listing.roles, strict=True) if role == OTHER]
    if clips if clips is not None else len(videos) > len(samples):
        samples, videos = samples + videos, []
    # A table beside the folders names what lies in all of them.
    one = samples and find_metadata(folder, len(samples)) is not None
    groups = [_FileGroup("", tuple(sorted(samples)))] if one else _groups(samples)
    if not groups and not videos and (texts := survey_files(listing, folder_name(folder), relative_path(folder, base))):
        return [SurveyedConcept(texts)]
    if not groups:
        hint = f"pictures end in {', '.join('.' + suffix for suffix in picture_suffixes())}; hidden files do not count"
        if videos:
            hint = f"{format_count(len(videos), 'video')} in there, and the model that is named takes pictures alone"
        if listing.problems:
            path, reason = listing.problems[0]
            hint = f"{printable(path)}: {printable(reason)}"
        raise SourceError(folder, "no pictures in there", hint=hint)
    patterns = {group.folder: _mask_pattern(group, files) for group in groups}
    masks = {
        mask_path(picture, pattern)
        for group in groups
        if (pattern := patterns[group.folder])
        for picture in group.pictures
    }
    # Masks in a folder of their own look like a concept.
    groups = [group for group in groups if not masks.issuperset(group.pictures)] or groups
    groups = _with_controls(groups, files)
    with report.task("looking at pictures", total=None, unit="files") as task:
        found = [_surveyed(group, patterns[group.folder], masks, files, folder, base, task) for group in groups]
    if videos:
        why = "the model that is named takes pictures alone"
        if clips is None:
            why = "there are more pictures; --vae DIR or --for MODEL names a model that takes them"
        found[0] = _with_remarks(found[0], [f"{format_count(len(videos), 'video')} in there, left aside: {why}"])
    # Two folders may say other repeats of one name: then each goes by its whole name.
    names = Counter(each.concept.name for each in found)
    return [
        replace(each, concept=replace(each.concept, name=_concept_name(folder_name(folder / group.folder))))
        if names[each.concept.name] > 1
        else each
        for each, group in zip(found, groups, strict=True)
    ]


def _count_pictures(folder: Path) -> int:
    """How many files of pictures lie in a folder; a file has none beside it."""
    roles = dict.fromkeys(picture_suffixes(), PICTURE)
    return 0 if folder.is_file() else len(walk(folder, roles, recursive=True).names)


def _with_tables(folder: Path, base: Path) -> list[SurveyedConcept]:
    """The concepts whose pictures stand in tables; nothing where there are none."""
    try:
        tables = survey_tables(folder, lambda path: relative_path(path, base))
    except SourceError:
        # A table that cannot be read says nothing against the pictures beside it.
        if not _count_pictures(folder):
            raise
        return []
    if not tables:
        return []
    files = _count_pictures(folder)
    aside = f"left aside: {format_count(files, 'picture')} in files of their own; name their folder to take them"
    remarks = (aside,) if files else ()
    return [
        SurveyedConcept(
            replace(one.concept, remarks=(*one.concept.remarks, *remarks)), one.captioned, usual_side=one.usual_side
        )
        for one in tables
    ]


def _concept_name(folder: str) -> str:
    return printable(folder)[:_LONGEST_NAME] or "pictures"


def folder_name(folder: Path) -> str:
    """What a folder is called: `.` has a name, too, and a link its own."""
    return os.path.basename(os.path.abspath(folder))  # noqa: PTH100, PTH119


def relative_path(path: Path, base: Path) -> str:
    """A path as a config file in `base` writes it: relative, unless the two have nothing but the root in common."""
    absolute = os.path.abspath(path)  # noqa: PTH100 - a link to the data stays the link it is
    relative = os.path.relpath(absolute, os.path.abspath(base))  # noqa: PTH100
    if os.path.realpath(base / relative) != os.path.realpath(path):
        # A link on the way: `..` leads to where it points, not to where it stands.
        absolute = os.path.realpath(path)
        relative = os.path.relpath(absolute, os.path.realpath(base))
    apart = os.path.commonpath([absolute, os.path.realpath(base)]) == os.path.sep
    return (absolute if apart else relative).replace(os.sep, "/")


def _stem(path: str) -> str:
    return path.rpartition(".")[0]


def _groups(pictures: list[str]) -> list[_FileGroup]:
    """Pictures by the first folder of their path; all together where some lie in no folder, or there is just one."""
    direct = any("/" not in path for path in pictures)
    by_folder: dict[str, list[str]] = {}
    for path in sorted(pictures):
        by_folder.setdefault("" if direct else path.partition("/")[0], []).append(path)
    if len(by_folder) == 1 and (direct or repeats_in(next(iter(by_folder))) is None):
        return [_FileGroup("", tuple(*by_folder.values()))]
    return [_FileGroup(folder, tuple(paths)) for folder, paths in by_folder.items()]


def _with_controls(groups: list[_FileGroup], files: set[str]) -> list[_FileGroup]:
    """The groups with the control pictures of their targets, where these lie in folders of their own or beside them."""
    by_folder = {group.folder: group for group in groups}
    named = find_targets(by_folder)
    if named is not None:
        target, controls = named
        patterns = control_patterns(by_folder[target].pictures, controls, files)
        if patterns is not None and not any(map(_is_video, by_folder[target].pictures)):
            paired = replace(by_folder[target], controls=tuple(patterns))
            return [paired if group.folder == target else group for group in groups if group.folder not in controls]
    return [replace(group, controls=tuple(control_beside(group.pictures, files))) for group in groups]


def _mask_pattern(group: _FileGroup, files: set[str]) -> str | None:
    """The pattern that finds a mask for most pictures; None where none finds any."""
    counts = {
        # In a folder called masks some patterns lead from a picture to itself.
        pattern: sum((mask := mask_path(path, pattern)) in files and mask != path for path in group.pictures)
        for pattern in _MASK_PATTERNS
    }
    best = max(counts, key=lambda pattern: counts[pattern])
    return best if counts[best] else None


def _surveyed(
    group: _FileGroup, pattern: str | None, masks: set[str], files: set[str], folder: Path, base: Path, task: Task
) -> SurveyedConcept:
    samples = [path for path in group.pictures if path not in masks]
    root = folder / group.folder
    table = find_metadata(root, len(samples))
    name, captions = (None, find_captions(folder, samples, files)) if table is None else table
    settings, remarks = dict(captions.settings), list(captions.remarks)
    repeats = repeats_in(folder_name(root))
    if repeats is not None:
        settings["repeats"] = float(repeats[0])
        remarks.append(f"repeats {repeats[0]}, as the name of the folder says to kohya's trainers")
        if not captions.captioned and "captions" not in settings:
            settings["captions"] = {"text": repeats[1]}
            remarks.append("no captions were found: the name of the folder stands for them, as kohya's trainers do it")
    if group.controls and table is None:
        settings["images"], told = describe_controls(folder, samples, group.controls, files)
        remarks += told
    sides, lengths = _measured(folder, [path for path in samples if path in files], task)
    clips = sum(map(_is_video, samples))
    if clips and not has_pyav():
        remarks.append("PyAV is not installed, which decodes videos: pip install 'precook[video]'")
    kind: Literal["sidecar", "filename", "none"] = "sidecar" if captions.captioned else _captions_without_files(samples)
    concept = FoundConcept(
        name=_concept_name(folder_name(root) if repeats is None else repeats[1]),
        path=relative_path(root if name is None else root / name, base),
        images=len(samples),
        captions="none" if "captions" in settings else kind,
        masks=pattern,
        min_side=min(sides, default=0),
        max_side=max(sides, default=0),
        clips=clips,
        settings=settings,
        remarks=tuple(remarks),
    )
    masked = sum(mask_path(path, pattern) in files for path in samples) if pattern else 0
    usual = round(statistics.median(sides)) if sides else 0
    return SurveyedConcept(concept, captions.captioned, masked, usual, tuple(lengths))


def _with_remarks(found: SurveyedConcept, remarks: Iterable[str]) -> SurveyedConcept:
    return replace(found, concept=replace(found.concept, remarks=(*found.concept.remarks, *remarks)))


def _is_video(path: str) -> bool:
    return path.rpartition(".")[2].lower() in VIDEO_SUFFIXES


def _captions_without_files(samples: list[str]) -> Literal["filename", "none"]:
    """Whether file names read like captions: most of them have several words."""
    names = [_stem(os.path.basename(path)) for path in samples]  # noqa: PTH119
    telling = sum(len(name.split()) > 2 and any(char.isalpha() for char in name) for name in names)  # noqa: PLR2004
    return "filename" if 2 * telling > len(names) else "none"


def _measured(root: Path, paths: list[str], task: Task) -> tuple[list[int], list[int]]:
    """Of some pictures and clips, the side of a square of the same area; and of the clips the number of frames."""
    sides, lengths = [], []
    videos = [path for path in paths if _is_video(path)]
    pictures = [path for path in paths if not _is_video(path)]
    for path in [*pictures[:: len(pictures) // _MEASURED + 1], *videos[:: len(videos) // _DECODED + 1]]:
        task.advance()
        try:
            content = read_small(root / path, LARGEST)
            if _is_video(path):
                clip = read_clip(content)
                lengths.append(capacity(clip.times, VideoSettings().rate))
                width, height = clip.width, clip.height
            else:
                facts = read_facts(content)
                width, height = facts.width, facts.height
        except (OSError, RefusedError):
            continue  # `plan` names it
        sides.append(round((width * height) ** 0.5))
    return sides, lengths
