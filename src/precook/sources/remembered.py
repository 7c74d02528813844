"""Digests of files by stamp: a model's weights are read once, not at every start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from precook.errors import SourceError
from precook.identity.digests import digest_files
from precook.report import Reporter
from precook.sources.filesystems import clock, trusted
from precook.sources.memory import Memory
from precook.sources.stamps import FILES, SIZE, look, settled, stamp_keys
from precook.values import Digest


def remembered_digests(paths: Iterable[Path], memory: Memory, *, trust: bool, report: Reporter) -> list[Digest]:
    """The digest of each file, in order; those whose stamp is remembered are not opened.

    `trust` believes stamps on every file system.
    """
    paths = list(paths)
    # Where the files themselves lie: models are often links into a cache or onto another drive.
    folders = [Path(os.path.realpath(path)).parent for path in paths]
    # The clock first: what is edited after this is young, and not remembered.
    clocks = {folder: clock(folder) for folder in set(folders)}
    firm = {folder: trust or trusted(folder) for folder in set(folders)}
    with _named():
        stamps = look(paths)
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    known &= np.array([firm[folder] for folder in folders], bool)
    unknown = np.flatnonzero(~known).tolist()
    if unknown:
        with report.task("reading models", total=int(stamps[unknown, SIZE].sum()), unit="bytes") as task:
            for at in unknown:
                (found,) = digest_files([paths[at]])
                digests[at] = np.frombuffer(found.bytes, np.uint8)
                task.advance(int(stamps[at, SIZE]))
                # Looked at again: a file that changed meanwhile keeps neither stamp.
                with _named():
                    same = (look([paths[at]]) == stamps[[at]]).all()
                if firm[folders[at]] and same and settled(stamps[[at]], clocks[folders[at]])[0]:
                    memory.remember(FILES, stamp_keys(stamps[[at]]), digests[[at]])
    return [Digest(row.tobytes()) for row in digests]


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(Path(error.filename), error.strerror or str(error)) from error
