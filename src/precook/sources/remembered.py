"""Digests of files by stamp: a model's weights are read once, not at every start."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from precook.errors import SourceError
from precook.identity.digests import digest_files
from precook.report import Reporter
from precook.sources.filesystems import clock, trusted
from precook.sources.memory import Memory
from precook.sources.stamps import FILES, look, settled, stamp_keys
from precook.values import Digest


def remembered_digests(paths: Iterable[Path], memory: Memory, *, trust: bool, report: Reporter) -> list[Digest]:
    """The digest of each file, in order; those whose stamp is remembered are not opened."""
    paths = list(paths)
    try:
        # The clock first: what is edited after this is young, and not remembered.
        grounds = {folder: (clock(folder), trust or trusted(folder)) for folder in {path.parent for path in paths}}
        stamps = look(paths)
    except OSError as error:
        raise SourceError(Path(error.filename), error.strerror or str(error)) from error
    known, digests = memory.recall(FILES, stamp_keys(stamps))
    unknown = np.flatnonzero(~known).tolist()
    if not unknown:
        return [Digest(row.tobytes()) for row in digests]
    digests = digests.copy()
    with report.task("reading models", total=int(stamps[unknown, 2].sum()), unit="bytes") as task:
        for at in unknown:
            (found,) = digest_files([paths[at]])
            digests[at] = np.frombuffer(found.bytes, np.uint8)
            task.advance(int(stamps[at, 2]))
    # Looked at again: a file that changed meanwhile keeps neither stamp.
    after = look(paths)
    for at in unknown:
        now, firm = grounds[paths[at].parent]
        lasting = firm and (after[at] == stamps[at]).all() and settled(stamps[[at]], now)[0]
        if lasting:
            memory.remember(FILES, stamp_keys(stamps[[at]]), digests[[at]])
    return [Digest(row.tobytes()) for row in digests]
