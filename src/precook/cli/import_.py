"""`precook import`: a dataset from an archive, every byte of it checked."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from precook.cli import bars, output
from precook.cli.options import ConfigOption, JsonOption, StoreOption
from precook.cli.projects import place_of_store
from precook.cli.stores import find_or_new
from precook.units import format_count, format_size

PIPE = "-"


def command(
    archive: Annotated[str, typer.Argument(metavar="FILE", help="The archive; - reads it from stdin.")],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    dataset: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Another name for the dataset.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a dataset from an archive into the store.

    Every byte is checked before anything of it is used, and entries that the store has are not written again. An import
    that was interrupted goes on where it stopped.
    """
    from precook.maintain.bundle import import_bundle
    from precook.open_store import open_store

    place = find_or_new(place_of_store(config, store))
    with _opened(archive) as stream, open_store(place) as opened:
        name = "stdin" if archive == PIPE else archive
        done = import_bundle(opened, stream, name=name, dataset=dataset, report=bars.reporter())
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
