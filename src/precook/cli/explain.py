"""`precook explain`: why the entries of one sample are there or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from precook.cli import output
from precook.cli.plan import why_document
from precook.cli.projects import find_config
from precook.plan.explain import EntryState, Explanation
from precook.project import load


def run(config: Path | None, path: Path, *, as_json: bool) -> None:
    """Explain a path."""
    with load(find_config(config)) as project:
        explanation = project.plan(report=output.reporter()).explain(path)
    if as_json:
        output.document(_document(explanation))
    else:
        output.lines(str(explanation).splitlines())


def _document(explanation: Explanation) -> dict[str, Any]:
    return {
        "path": explanation.path,
        "problems": list(explanation.problems),
        "samples": [
            {
                "path": sample.path,
                "concept": sample.concept,
                "sample": sample.sample,
                "image": sample.image,
                "entries": [_entry(entry) for entry in sample.entries],
            }
            for sample in explanation.samples
        ],
    }


def _entry(entry: EntryState) -> dict[str, Any]:
    why = {} if entry.why is None else why_document(entry.why)
    return {
        "encoder": entry.encoder,
        "what": entry.what,
        "key": entry.key.hex,
        "state": entry.state,
        "failure": entry.reason,
        **why,
    }
