"""`precook export`: a dataset as one archive, or as plain safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from precook.cli import output
from precook.cli.stores import open_to_use
from precook.maintain.bundle import KEEPS, Exported, export_bundle
from precook.units import format_count, format_size

if TYPE_CHECKING:
    from precook.maintain.shards import Sharded


def run(
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
    with open_to_use(store) as opened:
        done = export_bundle(
            opened, dataset, target, snapshot=snapshot, keep=keep, force=force, report=output.reporter()
        )
    if as_json:
        output.document(_document(done) | {"packs": done.packs, "resumed": done.resumed, "keep": sorted(keep)})
        return
    output.line(f"wrote {done.path}: {_counts(done)}, {format_size(done.nbytes)}")
    if done.resumed:
        output.tell(f"went on after {format_count(done.resumed, 'member')} that an interrupted export had finished")
    left_out = [name for name in KEEPS if name not in keep]
    if left_out:
        output.tell(f"without {' and '.join(left_out)}")


def run_shards(
    store: Path | None, dataset: str, target: Path, *, snapshot: str | None, force: bool, as_json: bool
) -> None:
    """Write the shards and say what is in them."""
    from precook.maintain.shards import export_shards  # noqa: PLC0415 - only where they are asked for

    with open_to_use(store) as opened:
        done = export_shards(opened, dataset, target, snapshot=snapshot, force=force, report=output.reporter())
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
