"""`precook explain`: why the entries of one sample are there or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, NoCodeOption, NoWriteOption, StoreOption, open_project
from precook.cli.plan import changes_document, make_plan, not_loaded_document, why_document

if TYPE_CHECKING:
    from precook.plan.explain import EntryState, Explanation


def command(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A picture, caption or mask; or a key or a sample by its first digits."),
    ],
    *,
    config: ConfigOption = None,
    store: StoreOption = None,
    no_write: NoWriteOption = False,
    no_code: NoCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Explain why the entries of a file are there or missing.

    A missing one is compared with the stored entry that differs least. A key or a sample leads back to its file.
    """
    with open_project(config, store, code=not no_code) as project:
        plan = make_plan(project, write=not no_write)
        explanation = plan.explain(path)
    if as_json:
        output.document(_document(explanation))
    else:
        output.text(str(explanation))


def _document(explanation: Explanation) -> dict[str, Any]:
    return {
        "path": explanation.path,
        "note": explanation.note or None,
        "problems": list(explanation.problems),
        "not_loaded": not_loaded_document(explanation.not_loaded),
        "samples": [
            {
                "path": sample.path,
                "concept": sample.concept,
                "sample": sample.sample,
                "image": sample.image,
                "entries": [_entry_document(entry) for entry in sample.entries],
            }
            for sample in explanation.samples
        ],
    }


def _entry_document(entry: EntryState) -> dict[str, Any]:
    """An entry and, where it is missing, why."""
    why = {"reason": None, "nearest": None, "differences": []} if entry.why is None else why_document(entry.why)
    return {
        "encoder": entry.encoder,
        "what": entry.what,
        "key": entry.key.hex,
        "state": entry.state,
        "failure": entry.reason,
        "made_with": entry.made or None,
        "changes": changes_document(entry.changes),
        **why,
    }
