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
_DIGEST_LENGTH = len(_ABSENT).to_bytes(8, "little")


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

    def identities(self, indices: Sequence[int], uses: Mapping[str, PathUse]) -> list[bytes]:
        """What samples are made of, as digests: the content of their files, and of their paths what is used."""
        columns = [[b""] * len(indices)]
        for name, use in uses.items():
            paths, texts = self.paths[name], _UsedTexts(use)
            if PathUse.CONTENT in use:
                content = self.digests[name].tobytes()
                rows = [_DIGEST_LENGTH + content[32 * at : 32 * at + 32] + texts[paths[at]] for at in indices]
            else:
                rows = [_DIGEST_LENGTH + _ABSENT + texts[paths[at]] for at in indices]
            columns.append(rows)
        return [blake3(b"".join(parts)).digest() for parts in zip(*columns, strict=True)]

    def content(self, name: str | None, index: int) -> bytes | None:
        """The digest of what a sample's file holds; None where nobody asked for the content of these."""
        column = self.digests.get(name) if name is not None else None
        return column[index].tobytes() if column is not None else None

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


class _UsedTexts:
    """What of paths themselves, as text, decides a result: behind its length, in bytes."""

    def __init__(self, use: PathUse) -> None:
        self._whole, self._name, self._suffix = (part in use for part in (PathUse.WHOLE, PathUse.NAME, PathUse.SUFFIX))
        self._endings: dict[str, bytes] = {}
        """By the last characters of paths, the bytes of their suffix: there are few of them."""

    def __getitem__(self, path: str) -> bytes:
        if self._whole:
            return _with_length(path)
        if self._name:
            return _with_length(os.path.basename(path))  # noqa: PTH119
        if not self._suffix:
            return _with_length("")
        dot = path.rfind(".")
        # A letter or a digit before the dot, and none of what parts a path behind it: it begins a suffix.
        ending = path[dot:] if dot > 0 and path[dot - 1].isalnum() else ""
        if ending not in self._endings:
            suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122
            if not ending or os.path.basename(ending) != ending:  # noqa: PTH119
                return _with_length(suffix)
            self._endings[ending] = _with_length(suffix)
        return self._endings[ending]


def _with_length(text: str) -> bytes:
    form = text.encode("utf-8", "surrogatepass")
    return len(form).to_bytes(8, "little") + form


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
