"""Folders: where the files of an encoder's model lie, in a folder of the user's or in the hub's cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from precook.config.encoders import ModelEncoder, TransformersText
from precook.encode.hub import find_snapshot, planned_snapshot
from precook.report import SILENT, Reporter


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders that an encoder is loaded from."""

    model: Path
    tokenizer: Path
    """The model's own, where the settings name no other."""


def find_folders(section: ModelEncoder, base: Path, report: Reporter) -> Folders:
    """Where a model lies now; one of the hub is downloaded if it is not here."""
    return _folders(section, base, lambda name, revision, folders: find_snapshot(name, revision, folders, report))


def planned_folders(section: ModelEncoder, base: Path) -> Folders:
    """Where the last plan found it; without a plan, where it lies now."""
    return _folders(
        section,
        base,
        lambda name, revision, folders: (
            planned_snapshot(name, revision) or find_snapshot(name, revision, folders, SILENT)
        ),
    )


def _folders(section: ModelEncoder, base: Path, snapshot: Callable[[str, str, Sequence[str]], Path]) -> Folders:
    root = base / section.model
    inside = section.subfolder or ""
    named = section.tokenizer if isinstance(section, TransformersText) else None
    tokenizer = None if named is None else base / named
    # A folder of that name wins: nobody's own files are passed over for the hub's.
    if section.revision is not None and not root.exists():
        elsewhere = [named] if named is not None and not (base / named).exists() else []
        # Without a subfolder the model is everything, the tokenizer's folder included.
        root = snapshot(section.model, section.revision, [inside, *elsewhere] if inside else [])
        if elsewhere:
            tokenizer = root / elsewhere[0]
    return Folders(root / inside, tokenizer or root / inside)
