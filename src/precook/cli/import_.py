"""`precook import`: a dataset from an archive, every byte of it checked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from precook.cli import output
from precook.cli.stores import find_store
from precook.errors import NoStoreError
from precook.maintain.importing import import_bundle
from precook.store.store import open_store
from precook.units import format_count, format_size

PIPE = "-"
_NEW = Path("cache")
"""Where a store is made when none is named and none is found."""


def run(store: Path | None, archive: str, *, dataset: str | None, as_json: bool) -> None:
    """Import the archive and say what it brought."""
    try:
        place = find_store(store)
    except NoStoreError:
        place = _NEW
    with _opened(archive) as stream, open_store(place) as opened:
        name = "stdin" if archive == PIPE else archive
        done = import_bundle(opened, stream, name=name, dataset=dataset, report=output.reporter())
    if as_json:
        output.document(
            {
                "store": str(place),
                "dataset": done.dataset,
                "snapshot": done.snapshot,
                "samples": done.samples,
                "entries": done.entries,
                "new": done.new,
                "reused": done.reused,
                "bytes": done.nbytes,
                "resumed": done.resumed,
            }
        )
        return
    reused = f", {done.reused:,} of them here before" if done.reused else ""
    counts = f"{format_count(done.samples, 'sample')}, {format_count(done.entries, 'entry')}{reused}"
    output.line(f"imported {done.dataset} into {place}: {counts}, {format_size(done.nbytes)}")
    if done.resumed:
        output.tell(f"went on after {format_count(done.resumed, 'pack')} that an interrupted import had checked")


@contextlib.contextmanager
def _opened(archive: str) -> Iterator[BinaryIO]:
    if archive == PIPE:
        yield sys.stdin.buffer
        return
    with Path(archive).open("rb") as stream:
        yield stream
