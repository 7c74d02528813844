"""`precook export`: a dataset as one archive, or as plain safetensors files."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output, progress
from precook.cli.options import ConfigOption, JsonOption, StoreOption, open_to_use
from precook.units import format_count, format_size

if TYPE_CHECKING:
    from precook.maintain.bundle import Exported
    from precook.maintain.shards import Sharded


class Form(str, Enum):
    """How a dataset is written for somebody else."""

    BUNDLE = "bundle"
    SAFETENSORS = "safetensors"


def command(  # noqa: PLR0913 - each parameter is an option of the command
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
    from precook.maintain.bundle import export_bundle
    from precook.maintain.shards import export_shards

    report = progress.reporter()
    if form is Form.SAFETENSORS:
        if keep:
            raise typer.BadParameter("safetensors files hold neither captions nor paths", param_hint="--with")
        with open_to_use(config, store) as opened:
            sharded = export_shards(opened, dataset, target, snapshot=snapshot, force=force, report=report)
        if as_json:
            output.document(_document(sharded) | {"files": list(sharded.files)})
        else:
            shards = format_count(len(sharded.files), "shard")
            output.line(f"wrote {sharded.path}: {_counts(sharded)} in {shards}, {format_size(sharded.nbytes)}")
        return
    keep = keep or []
    with open_to_use(config, store) as opened:
        exported = export_bundle(opened, dataset, target, snapshot=snapshot, keep=keep, force=force, report=report)
    if as_json:
        resumed = {"packs": exported.packs, "resumed": exported.resumed, "keep": sorted(keep)}
        output.document(_document(exported) | resumed)
    else:
        _show_bundle(exported, keep)


def _show_bundle(exported: Exported, keep: list[str]) -> None:
    from precook.maintain.bundle import KEEPS

    output.line(f"wrote {exported.path}: {_counts(exported)}, {format_size(exported.nbytes)}")
    if exported.resumed:
        members = format_count(exported.resumed, "member")
        output.tell(f"went on after {members} that an interrupted export had finished")
    left_out = [name for name in KEEPS if name not in keep]
    if left_out:
        output.tell(f"without {' and '.join(left_out)}")


def _document(exported: Exported | Sharded) -> dict[str, Any]:
    return {
        "path": str(exported.path),
        "dataset": exported.dataset,
        "snapshot": exported.snapshot,
        "samples": exported.samples,
        "entries": exported.entries,
        "bytes": exported.nbytes,
    }


def _counts(exported: Exported | Sharded) -> str:
    return f"{format_count(exported.samples, 'sample')}, {format_count(exported.entries, 'entry')}"
