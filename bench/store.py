"""The store benchmark: precook beside its peers, in one run on one machine.

`python bench/store.py` runs everything, `--quick` is a smoke run, `--only read,batch` runs some sections.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if not __package__:
    import script  # noqa: F401 - finds the rest

import torch

from bench import batch, chart, cold, imports, index10m, peers, reads, writes
from bench.samples import KINDS, Kind
from bench.script import ROOT, facts, fill, folder, parser, some_of, tell
from bench.table import Section
from bench.work import Run

SECTIONS = ("import", "write", "build", "read", "sequential", "cold", "batch", "index")
_BY_KIND: dict[str, Callable[[Run, Kind], Section]] = {
    "write": writes.write,
    "build": writes.build,
    "read": reads.read,
    "sequential": reads.sequential,
    "cold": cold.cold,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the sections asked for."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    present, missing = peers.usable()
    gc.freeze()  # what they imported is not looked at again by each collection between two measurements
    head = facts(**peers.told(missing))
    tell(head)
    with folder(options.dir) as made:
        run = Run.asked(made, options, present)
        sections = []
        for section in _sections(run, options):
            print(section, flush=True)
            sections.append(section)
    if options.json:
        data = {"facts": head, "sections": [section.plain() for section in sections]}
        options.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    if options.png and chart.draw(sections, head, options.png):
        print(f"chart: {options.png}")
    return 0


def _sections(run: Run, options: argparse.Namespace) -> Iterator[Section]:
    if "import" in options.only:
        yield imports.imports(5 if options.quick else 20)
    for kind in KINDS:
        for name, measured in _BY_KIND.items():
            if name in options.only:
                yield measured(run, kind)
        if kind == "large" and "batch" in options.only:
            yield batch.batch(run)
        run.clear(kind)
    if "index" in options.only:
        yield index10m.index10m(run, options.entries)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    asked = parser(__doc__)
    asked.add_argument("--only", **some_of(SECTIONS))
    asked.add_argument("--samples", type=int, help="large samples of 393 kB (default: 2000)")
    asked.add_argument("--small-samples", type=int, help="small samples of 3 kB (default: 20000)")
    asked.add_argument("--entries", type=int, help="entries of the large index (default: 10000000)")
    asked.add_argument("--repeats", type=int, help="of which medians are taken (default: 3)")
    asked.add_argument("--json", type=Path, help="write everything there, too")
    asked.add_argument("--png", type=Path, default=ROOT / "bench/out/store.png", help="write a chart there")
    return fill(
        asked.parse_args(arguments),
        full={"samples": 2_000, "small_samples": 20_000, "entries": 10_000_000, "repeats": 3},
        quick={"samples": 64, "small_samples": 500, "entries": 50_000, "repeats": 1},
    )


if __name__ == "__main__":
    sys.exit(main())
