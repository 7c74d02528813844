"""The files behind the samples of an mgds pipeline, as columns: where they lie, and the digests of their content."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3

from precook.errors import SourceChangedError, SourceError
from precook.fs.stamps import Stamps, stamp_of
from precook.fs.system import calls
from precook.fs.trust import FileSystem
from precook.integrations.mgds.groups import GetPrevious
from precook.integrations.mgds.upstream import PathUse
from precook.memo.columns import Kind
from precook.memo.memo import Memory
from precook.report import Reporter
from precook.sources.facts import collect_facts
from precook.sources.walk import list_names
from precook.values import Bytes

_ABSENT = bytes(32)
"""Stands for the digest of a file that is not there: a caption or a mask may be missing, and that is a fact."""


class _ContentLesson:
    """Nothing is to be known about the content of these files but its digest."""

    task = "reading sources"
    kind = Kind("mgds content/1", key=32, value=1)
    refusals = "refused mgds content/1"

    def read(self, digest: bytes, content: bytes) -> bytes:  # noqa: ARG002
        return b"\0"

    def remember_rest(self, memory: Memory) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of all samples: a column for each name of a path."""

    paths: dict[str, list[str]]
    """By name, a path for each sample; empty where there is none."""
    digests: dict[str, Bytes]
    stamps: dict[str, Stamps]
    """Zeros where a file is not there."""

    def identity(self, index: int, uses: Mapping[str, PathUse]) -> bytes:
        """What a sample is made of, as a digest: the content of its files, and of their paths what is used."""
        parts = []
        for name, use in uses.items():
            path = self.paths[name][index]
            parts.append(self.digests[name][index].tobytes() if PathUse.CONTENT in use else _ABSENT)
            parts.append(_used_text(path, use).encode("utf-8", "surrogatepass"))
        return blake3(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()

    def check_unchanged(self, index: int) -> None:
        """Refuse a sample whose files are no longer those whose digests are known."""
        for name, stamps in self.stamps.items():
            path = self.paths[name][index]
            try:
                now = stamp_of(calls.stat(path)) if path else None
            except (FileNotFoundError, NotADirectoryError):
                now = None
            known = tuple(stamps[index].tolist())
            if (now or (0,) * len(known)) != known:
                raise SourceChangedError(Path(path))


def _used_text(path: str, use: PathUse) -> str:
    """What of a path itself, as text, decides a result."""
    if PathUse.WHOLE in use:
        return path
    if PathUse.NAME in use:
        return os.path.basename(path)  # noqa: PTH119
    return os.path.splitext(path)[1].lower() if PathUse.SUFFIX in use else ""  # noqa: PTH122


def list_paths(get_previous: GetPrevious, names: Sequence[str], length: int) -> dict[str, list[str]]:
    """The paths of all samples, by name."""
    # Asked at variation 0: where a file lies is not drawn.
    return {name: [_path(get_previous(0, name, index), name) for index in range(length)] for name in names}


def _path(value: object, name: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, (str, os.PathLike)):
        message = f"{name} gave a {type(value).__name__}, and a path was expected"
        raise SourceError(Path(name), message, hint="give the name of a path")
    return os.fspath(value)


def learn_sources(
    paths: dict[str, list[str]],
    uses: Mapping[str, PathUse],
    memory: Memory,
    *,
    save: Callable[[], None],
    report: Reporter,
) -> Sources:
    """Know the content of every file; those whose stamp is remembered are not opened."""
    digests: dict[str, Bytes] = {}
    stamps: dict[str, Stamps] = {}
    for name, use in uses.items():
        if PathUse.CONTENT in use:
            digests[name], stamps[name] = _learn_column(paths[name], memory, save, report)
    return Sources(paths, digests, stamps)


def _learn_column(paths: list[str], memory: Memory, save: Callable[[], None], report: Reporter) -> tuple[Bytes, Stamps]:
    """Digest and stamp of each file of a column, a row each; zeros where there is no file."""
    digests = np.zeros((len(paths), 32), np.uint8)
    stamps = np.zeros((len(paths), 5), np.int64)
    named = [row for row, path in enumerate(paths) if path]
    if not named:
        return digests, stamps
    listing = list_names(Path(), [paths[row] for row in named], bytearray(len(named)))
    absent, regular = listing.absent(), listing.regular()
    for row in np.flatnonzero(~absent & ~regular).tolist():
        raise SourceError(Path(listing.names[row]), listing.problem(row))
    there = np.flatnonzero(regular)
    if not len(there):
        return digests, stamps
    folder = Path(os.path.realpath(listing.names[int(there[0])])).parent
    known = collect_facts(
        listing.stamps[there],
        lambda row: listing.names[int(there[row])],
        _ContentLesson(),
        memory,
        file_system=FileSystem.of(folder),
        save=save,
        report=report,
    )
    for row, reason in known.problems.items():
        raise SourceError(Path(listing.names[int(there[row])]), reason)
    rows = np.array(named, np.int64)[there]
    digests[rows] = known.digests
    stamps[rows] = listing.stamps[there]
    return digests, stamps
