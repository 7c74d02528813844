"""`precook snapshots`: list them, pin and unpin them, remove them."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, StoreOption, open_to_read, open_to_write
from precook.cli.output import Span, TableColumn
from precook.errors import (
    DamagedPackError,
    NewerFormatError,
    NoSnapshotError,
    PrecookError,
    StoreReadError,
    printable,
)
from precook.units import format_age, format_count, format_size, utc_time

if TYPE_CHECKING:
    from precook.store.snapshot import SnapshotFile
    from precook.store.store import Store

_SHORT_ID = 8


class Action(str, Enum):
    """What to do with snapshots."""

    LIST = "list"
    PIN = "pin"
    UNPIN = "unpin"
    RM = "rm"


def command(
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="list, pin, unpin or rm.", show_default="list")
    ] = Action.LIST,
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="The dataset's name.", show_default=False)
    ] = None,
    snapshot: Annotated[
        str | None, typer.Argument(metavar="ID", help="Its number, or the first digits of its id.", show_default=False)
    ] = None,
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only show what would be removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List snapshots, pin or unpin one, or remove one.

    `precook gc` keeps what the latest snapshot of each dataset names, and what pinned ones name.
    """
    if action is Action.LIST:
        _list(config, store, dataset, as_json=as_json)
    elif dataset is None or snapshot is None:
        raise typer.BadParameter("name the dataset and the snapshot", param_hint="DATASET ID")
    else:
        _act(config, store, action, dataset, snapshot, yes=yes, as_json=as_json)


def _list(config: Path | None, store: Path | None, dataset: str | None, *, as_json: bool) -> None:
    """Show every snapshot, the latest of each dataset last."""
    from precook.store.layout import Layout
    from precook.store.snapshot import with_snapshots

    with open_to_read(config, store) as opened:
        documents = with_snapshots(Layout(opened.path), lambda listed: _documents(listed, dataset))
        if dataset is not None and not documents:
            raise NoSnapshotError(opened.location, dataset)
    if as_json:
        output.document({"snapshots": documents})
    elif not documents:
        output.tell("no snapshots")
    else:
        _show(documents)


def _act(
    config: Path | None, store: Path | None, action: Action, dataset: str, wanted: str, *, yes: bool, as_json: bool
) -> None:
    """Pin, unpin or remove one snapshot; removing is a preview without `yes`."""
    removing = action is Action.RM
    opening = open_to_read if removing and not yes else open_to_write
    with opening(config, store) as opened:
        file, others = _find(opened, dataset, wanted)
        if action is Action.PIN:
            opened.pin(file)
        elif action is Action.UNPIN:
            opened.unpin(file)
        elif yes:
            opened.remove_snapshot(file)
    done = yes or not removing
    if as_json:
        output.document(
            {"action": action.value, "dataset": dataset, "number": file.number, "id": file.id, "done": done}
        )
        return
    name = f"snapshot {file.number} of {dataset}"
    if not removing:
        output.line(f"{'pinned' if action is Action.PIN else 'unpinned'} {name}")
        return
    output.line(f"{'removed' if yes else 'would remove'} {name}; its entries stay until `precook gc` collects them")
    if file.number > max((other.number for other in others), default=0):
        left = f"snapshot {others[-1].number} becomes the latest" if others else f"{dataset} then has none"
        output.tell(f"it is the latest one: {left}")
    if file.pinned and not yes:
        output.tell(f"it is pinned: `precook snapshots unpin {dataset} {file.number}` comes first")
    if not yes:
        output.hint("nothing was changed; --yes does it")


def _find(store: Store, dataset: str, wanted: str) -> tuple[SnapshotFile, list[SnapshotFile]]:
    """The snapshot that is meant, and the others of its dataset."""
    from precook.maintain.export import is_meant

    files = [file for file in store.snapshots() if file.dataset == dataset]
    if not files:
        raise NoSnapshotError(store.location, dataset)
    meant = [file for file in files if is_meant(file, wanted)]
    if len(meant) != 1:
        many = "more than one snapshot" if meant else "no snapshot"
        message = f"{many} of {printable(dataset)!r} is meant by {printable(wanted)!r}"
        raise PrecookError(message, hint="`precook snapshots` lists them; give the number or more digits of the id")
    return meant[0], [file for file in files if file is not meant[0]]


def _documents(listed: list[SnapshotFile], dataset: str | None) -> list[dict[str, Any]]:
    """The snapshots of a dataset or of all."""
    files = [file for file in listed if dataset in (None, file.dataset)]
    latest = {file.dataset: file.id for file in files}
    return [_document(file, latest=latest[file.dataset] == file.id) for file in files]


def _document(file: SnapshotFile, *, latest: bool) -> dict[str, Any]:
    from precook.store.snapshot import read_snapshot

    problem, samples = None, None
    try:
        samples = read_snapshot(file).samples
    except (DamagedPackError, StoreReadError, NewerFormatError) as error:
        problem = error.reason
    status = file.path.stat()
    return {
        "dataset": file.dataset,
        "number": file.number,
        "id": file.id,
        "latest": latest,
        "pinned": file.pinned,
        "samples": samples,
        "bytes": status.st_size,
        "created": utc_time(int(status.st_mtime)),
        "age": round(time.time() - status.st_mtime, 3),
        "problem": problem,
    }


def _show(documents: list[dict[str, Any]]) -> None:
    rows = []
    for snapshot in documents:
        kept = ", ".join(word for word in ("latest", "pinned") if snapshot[word])
        problem = snapshot["problem"]
        rows.append(
            (
                snapshot["dataset"],
                f"{snapshot['number']}",
                Span(snapshot["id"][:_SHORT_ID], "dim"),
                Span(problem, "red") if problem else format_count(snapshot["samples"], "sample"),
                format_size(snapshot["bytes"]),
                format_age(snapshot["age"]),
                kept,
            )
        )
    columns = [
        TableColumn("dataset", wrap=True),
        TableColumn("number", right=True),
        TableColumn("id"),
        TableColumn("holds", wrap=True),
    ]
    output.table(
        [*columns, TableColumn("size", right=True), TableColumn("made", right=True), TableColumn("kept as")], rows
    )
