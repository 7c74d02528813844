"""The survey's look at further pictures: folders of targets and of the control pictures that they were made from.

It is a guess for `precook init`, by what trainers of models that edit pictures have people call their folders; nothing
else relies on it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from precook.fs.read import read_small
from precook.sources.facts import LARGEST
from precook.sources.pictures import RefusedError, read_facts
from precook.sources.sample_files import mask_path
from precook.units import format_count

CONTROL = "control"
"""What a further picture is called in the config."""

_CONTROLS = frozenset(
    {"control", "conditioning", "condition", "source", "src", "input", "before", "original", "reference", "ref"}
)
"""What folders of control pictures are called; several are numbered, as in control_1."""
_PLAINLY = frozenset({"control", "conditioning", "condition"})
"""Those that say it whatever the other folder is called."""
_TARGETS = frozenset({"target", "training", "train", "image", "output", "after", "edited", "result"})
_BESIDE = "{stem}-condlabel.png"
"""Where trainers that have all in one folder look for it."""
_COMPARED = 20
_SKEW = 0.01
"""So much an aspect ratio may differ; a plan reports what differs more, unless each is cut by its own shape."""


def find_targets(folders: Collection[str]) -> tuple[str, list[str]] | None:
    """Of some folders the one of targets, and those of their control pictures in order; None where no names say so."""
    controls = sorted((name for name in folders if _plain(name) in _CONTROLS), key=_number)
    others = [name for name in folders if name not in controls]
    targets = [name for name in others if _plain(name) in _TARGETS]
    if not targets and _PLAINLY.issuperset(map(_plain, controls)):
        targets = others
    return (targets[0], controls) if controls and len(targets) == 1 else None


def _plain(folder: str) -> str:
    """The name of a folder without its case, its number and what all are: pictures.

    >>> _plain("Control Images-2"), _plain("control_1"), _plain("targets"), _plain("images")
    ('control', 'control', 'target', 'image')
    """
    words = re.sub(r"_?[0-9]{1,2}$", "", re.sub(r"[ -]", "_", folder.casefold()))
    return re.sub(r"_(?:image|img|picture)s?$", "", words).removesuffix("s")


def _number(folder: str) -> tuple[int, str]:
    digits = re.search(r"[0-9]{1,2}$", folder)
    return (int(digits[0]) if digits else 0, folder)


def control_patterns(targets: Sequence[str], controls: Sequence[str], files: Collection[str]) -> list[str] | None:
    """The patterns that lead from targets to their control pictures; None where most have none."""
    patterns = []
    for folder in controls:
        endings = sorted({file.rpartition(".")[2] for file in files if file.startswith(f"{folder}/")})
        found = _best(targets, [f"../{folder}/{{name}}", *(f"../{folder}/{{stem}}.{one}" for one in endings)], files)
        if found is None:
            return None
        patterns.append(found)
    return patterns


def control_beside(pictures: Sequence[str], files: Collection[str]) -> list[str]:
    """The pattern that leads from pictures to control pictures in the same folder; nothing where there are none."""
    found = _best(pictures, [_BESIDE], files)
    return [] if found is None else [found]


def _best(pictures: Sequence[str], patterns: Sequence[str], files: Collection[str]) -> str | None:
    """The pattern that finds most, if it finds one for more than half of the pictures."""
    counts = {pattern: sum(mask_path(path, pattern) in files for path in pictures) for pattern in patterns}
    best = max(counts, key=lambda pattern: counts[pattern])
    return best if 2 * counts[best] > len(pictures) else None


def describe_controls(
    folder: Path, pictures: Sequence[str], patterns: Sequence[str], files: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """`images` of a concept whose pictures, relative to a folder, have these controls; and what to know of them."""
    given: list[Any] = []
    remarks = []
    for pattern in patterns:
        paired = [path for path in pictures if mask_path(path, pattern) in files and path in files]
        some = paired[:: len(paired) // _COMPARED + 1]
        apart = any(_differ(folder / path, folder / mask_path(path, pattern)) for path in some)
        given.append({"path": pattern, "fit": "own"} if apart else pattern)
        remark = f"control pictures: {pattern}"
        if apart:
            remark += "; some have another shape than their target, so each is cut by its own (fit: own)"
        if alone := len(pictures) - sum(mask_path(path, pattern) in files for path in pictures):
            without = format_count(alone, "target")
            remark += f"; {without} without one, left out unless it is {{path: …, optional: true}}"
        remarks.append(remark)
    return {CONTROL: given[0] if len(given) == 1 else given}, remarks


def _differ(one: Path, other: Path) -> bool:
    """Whether two pictures have other shapes."""
    try:
        first, second = (read_facts(read_small(path, LARGEST)) for path in (one, other))
    except (OSError, RefusedError):
        return False  # `plan` names it
    across, along = first.width * second.height, second.width * first.height
    return abs(across - along) > _SKEW * along
