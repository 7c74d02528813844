"""`precook doctor`: what the doctor found, for people and for programs."""

from __future__ import annotations

from pathlib import Path

from precook.cli import output
from precook.cli.output import Column, Line, Span
from precook.cli.stores import find_store
from precook.errors import NoStoreError
from precook.maintain.doctor import examine
from precook.maintain.probes import Finding

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
_NEW_STORE = Path("cache")
_FEW = 20


def run(store: Path | None, *, as_json: bool) -> int:
    """Examine a store, or the place for one; the exit code."""
    try:
        path = find_store(store)
    except NoStoreError:
        path = _NEW_STORE  # the doctor may be asked before there is one
    findings = examine(path)
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        documents = [_document(finding) for finding in findings]
        output.document({"path": str(path.resolve()), "healthy": not problems, "findings": documents})
    else:
        output.table([Column(), Column(), Column(wrap=True)], [row for each in findings for row in _rows(each, path)])
        for finding in findings:
            if finding.hint and finding.level == "problem":
                output.hint(f"{finding.topic}: {finding.hint}")
    return 1 if problems else 0


def _document(finding: Finding) -> dict[str, object]:
    return {
        "level": finding.level,
        "topic": finding.topic,
        "message": finding.message,
        "hint": finding.hint or None,
        "paths": [str(path) for path in finding.paths],
    }


def _rows(finding: Finding, root: Path) -> list[list[Line]]:
    rows: list[list[Line]] = [[Span(finding.level, _STYLES[finding.level]), finding.topic, finding.message]]
    shown = [str(path.relative_to(root) if path.is_relative_to(root) else path) for path in finding.paths[:_FEW]]
    if len(finding.paths) > _FEW:
        shown.append(f"… {len(finding.paths) - _FEW:,} more (--json shows all)")
    rows += [["", "", Span(f"  {name}", "dim")] for name in shown]
    return rows
