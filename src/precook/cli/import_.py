"""`precook import`: a dataset from an archive, every byte of it checked."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from precook.cli import output, progress
from precook.cli.options import ConfigOption, JsonOption, StoreOption, find_or_new_store
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

    place = find_or_new_store(config, store)
    with contextlib.ExitStack() as stack:
        # stdin is not ours to close.
        stream = sys.stdin.buffer if archive == PIPE else stack.enter_context(Path(archive).open("rb"))
        opened = stack.enter_context(open_store(place))
        name = "stdin" if archive == PIPE else archive
        imported = import_bundle(opened, stream, name=name, dataset=dataset, report=progress.reporter())
    if as_json:
        output.document(
            {
                "store": str(place),
                "dataset": imported.dataset,
                "snapshot": imported.snapshot,
                "samples": imported.samples,
                "entries": imported.entries,
                "new": imported.new,
                "reused": imported.reused,
                "bytes": imported.nbytes,
                "resumed": imported.resumed,
            }
        )
        return
    reused = f", {imported.reused:,} of them here before" if imported.reused else ""
    counts = f"{format_count(imported.samples, 'sample')}, {format_count(imported.entries, 'entry')}{reused}"
    output.line(f"imported {imported.dataset} into {place}: {counts}, {format_size(imported.nbytes)}")
    if imported.resumed:
        output.tell(f"went on after {format_count(imported.resumed, 'pack')} that an interrupted import had checked")
