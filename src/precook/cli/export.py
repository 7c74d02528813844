"""`precook export`: a dataset as one archive, or as plain safetensors files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import bars, output
from precook.cli.options import ConfigOption, JsonOption, StoreOption
from precook.cli.projects import place_of_store
from precook.cli.stores import open_to_use
from precook.units import format_count, format_size

if TYPE_CHECKING:
    from precook.maintain.bundle import Exported
    from precook.maintain.shards import Sharded


class Form(str, Enum):
    """How a dataset is written for somebody else."""

    BUNDLE = "bundle"
    SAFETENSORS = "safetensors"


def command(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset's name.")],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The archive; with --as safetensors, a folder.")],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="ID", help="An older snapshot: its number, or the first digits of its id."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="WHAT", help="Also captions or paths, if the snapshot has them; repeatable."),
    ] = None,
    form: Annotated[
        Form, typer.Option("--as", help="An archive for `precook import`, or plain safetensors files for anyone.")
    ] = Form.BUNDLE,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a dataset to an archive, with all that it needs.

    Neither paths nor captions leave unless you ask for them. An export that was interrupted goes on where it stopped.
    """
    place = place_of_store(config, store)
    if form is Form.SAFETENSORS:
        if keep:
            raise typer.BadParameter("safetensors files hold neither captions nor paths", param_hint="--with")
        _export_shards(place, dataset, target, snapshot=snapshot, force=force, as_json=as_json)
    else:
        _export_bundle(place, dataset, target, snapshot=snapshot, keep=keep or [], force=force, as_json=as_json)


def _export_bundle(
    store: Path | None,
    dataset: str,
    target: Path,
    *,
    snapshot: str | None,
    keep: list[str],
    force: bool,
    as_json: bool,
) -> None:
    """Write the archive and say what is in it."""
    from precook.maintain.bundle import KEEPS, export_bundle

    with open_to_use(store) as opened:
        done = export_bundle(opened, dataset, target, snapshot=snapshot, keep=keep, force=force, report=bars.reporter())
    if as_json:
        output.document(_document(done) | {"packs": done.packs, "resumed": done.resumed, "keep": sorted(keep)})
        return
    output.line(f"wrote {done.path}: {_counts(done)}, {format_size(done.nbytes)}")
    if done.resumed:
        output.tell(f"went on after {format_count(done.resumed, 'member')} that an interrupted export had finished")
    left_out = [name for name in KEEPS if name not in keep]
    if left_out:
        output.tell(f"without {' and '.join(left_out)}")


def _export_shards(
    store: Path | None, dataset: str, target: Path, *, snapshot: str | None, force: bool, as_json: bool
) -> None:
    """Write the shards and say what is in them."""
    from precook.maintain.shards import export_shards

    with open_to_use(store) as opened:
        done = export_shards(opened, dataset, target, snapshot=snapshot, force=force, report=bars.reporter())
    if as_json:
        output.document(_document(done) | {"files": list(done.files)})
        return
    shards = format_count(len(done.files), "shard")
    output.line(f"wrote {done.path}: {_counts(done)} in {shards}, {format_size(done.nbytes)}")


def _document(done: Exported | Sharded) -> dict[str, Any]:
    return {
        "path": str(done.path),
        "dataset": done.dataset,
        "snapshot": done.snapshot,
        "samples": done.samples,
        "entries": done.entries,
        "bytes": done.nbytes,
    }


def _counts(done: Exported | Sharded) -> str:
    return f"{format_count(done.samples, 'sample')}, {format_count(done.entries, 'entry')}"
