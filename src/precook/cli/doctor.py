"""`precook doctor`: what is good and bad about the disk, the libraries and the store's directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from precook.cli import output
from precook.cli.options import ConfigOption, JsonOption, StoreOption, find_or_new_store
from precook.cli.output import Line, Span, TableColumn
from precook.errors import FAILED

if TYPE_CHECKING:
    from precook.maintain.doctor import Finding

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
_MOST_PATHS = 20


def command(*, config: ConfigOption = None, store: StoreOption = None, as_json: JsonOption = False) -> int:
    """Examine the disk or the bucket, the libraries and the store."""
    from precook.maintain.doctor import examine, examine_bucket

    path = find_or_new_store(config, store)  # the doctor may be asked before there is one
    findings = examine(path) if isinstance(path, Path) else examine_bucket(path)
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        documents = [
            {
                "level": finding.level,
                "topic": finding.topic,
                "message": finding.message,
                "hint": finding.hint or None,
                "paths": [str(path) for path in finding.paths],
            }
            for finding in findings
        ]
        output.document(
            {
                "path": str(path.resolve() if isinstance(path, Path) else path),
                "healthy": not problems,
                "findings": documents,
            }
        )
    else:
        _show(findings, path if isinstance(path, Path) else Path())
    return FAILED if problems else 0


def _show(findings: list[Finding], root: Path) -> None:
    rows: list[list[Line]] = []
    for finding in findings:
        rows.append([Span(finding.level, _STYLES[finding.level]), finding.topic, finding.message])
        names = [path.relative_to(root) if path.is_relative_to(root) else path for path in finding.paths[:_MOST_PATHS]]
        rows += [["", "", Span(f"  {name}", "dim")] for name in names]
        if len(finding.paths) > _MOST_PATHS:
            more = f"  … {len(finding.paths) - _MOST_PATHS:,} more (--json shows all)"
            rows.append(["", "", Span(more, "dim")])
    output.table([TableColumn(), TableColumn(), TableColumn(wrap=True)], rows)
    for finding in findings:
        if finding.hint and finding.level == "problem":
            output.hint(f"{finding.topic}: {finding.hint}")
