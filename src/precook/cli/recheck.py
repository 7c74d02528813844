"""`precook verify --sources` and `--recompute`: sources read again, entries made again, and what differs."""

from __future__ import annotations

from pathlib import Path

from precook.cli import bars, output
from precook.cli.codes import DAMAGED
from precook.cli.output import Span, TableColumn
from precook.cli.projects import open_project
from precook.units import format_count


def run_sources(config: Path | None, store: Path | None, *, as_json: bool) -> int:
    """Read every source again; the exit code."""
    with open_project(config, store) as project:
        found = project.verify_sources(report=bars.reporter())
    if as_json:
        output.document(
            {
                "clean": found.clean,
                "files": found.files,
                "changed": list(found.changed),
                "encoders": list(found.encoders),
            }
        )
    else:
        for path in found.changed:
            output.line(path, whole=True)
        for name in found.encoders:
            output.line(f"the model of {name}")
        number = len(found.changed) + len(found.encoders)
        verdict = (
            Span("as remembered", "bold green") if found.clean else Span(f"{number:,} not as remembered", "bold red")
        )
        output.line([f"read {format_count(found.files, 'file')} again: ", verdict])
        if not found.clean:
            output.hint("what was remembered wrongly is forgotten; `precook plan` shows what is to be made")
    return 0 if found.clean else DAMAGED


def run_recompute(config: Path | None, store: Path | None, share: float, *, seed: int, as_json: bool) -> None:
    """Encode a part of what is ready once more."""
    with open_project(config, store) as project:
        found = project.recompute(share, seed=seed, report=bars.reporter())
    if as_json:
        output.document(
            {
                "share": share,
                "seed": seed,
                "encoders": [
                    {
                        "encoder": one.encoder,
                        "checked": one.checked,
                        "equal": one.equal,
                        "max_abs": one.max_abs,
                        "max_rel": one.max_rel,
                        "unlike": one.unlike,
                        "failed": one.failed,
                    }
                    for one in found
                ],
            }
        )
        return
    columns = ("checked", "equal", "max abs", "max rel", "unlike", "failed")
    rows = [
        (
            one.encoder,
            f"{one.checked:,}",
            f"{one.equal:,}",
            f"{one.max_abs:.3g}",
            f"{one.max_rel:.3g}",
            f"{one.unlike:,}" if one.unlike else "",
            f"{one.failed:,}" if one.failed else "",
        )
        for one in found
    ]
    output.table([TableColumn("encoder", wrap=True), *(TableColumn(name, right=True) for name in columns)], rows)
