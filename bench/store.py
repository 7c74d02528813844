"""The store benchmark: precook beside its peers, in one run on one machine.

`python bench/store.py` runs everything, `--quick` is a smoke run, `--only read,batch` runs some sections.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import importlib.util
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

if not __package__:
    # Run as a script: this folder's parent holds the package, and precook's sources unless it is installed.
    _ROOT = Path(__file__).resolve().parents[1]
    sys.path[0] = str(_ROOT)
    if importlib.util.find_spec("precook") is None:
        sys.path.insert(1, str(_ROOT / "src"))

import torch

from bench import batch, chart, cold, imports, index10m, peers, reads, writes
from bench.samples import KINDS, Kind
from bench.table import Section
from bench.work import ROOT, Run

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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the files of a run that is ended go with it
    torch.set_num_threads(1)
    present, missing = peers.usable()
    gc.freeze()  # what they imported is not looked at again by each collection between two measurements
    facts = {
        "date": dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.system()} {_kernel()}, {_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {version}" for name, version in peers.versions().items()),
        "not installed": "; ".join(f"{name} ({reason})" for name, reason in missing.items()) or "none missing",
    }
    for name, fact in facts.items():
        print(f"{name}: {fact}")
    print(flush=True)
    with tempfile.TemporaryDirectory(prefix="precook-bench-", dir=options.dir) as folder:
        run = Run(
            folder=Path(folder),
            counts={"large": options.samples, "small": options.small_samples},
            repeats=options.repeats,
            least=0.1 if options.quick else 1.0,
            taking_part=present,
            quick=options.quick,
        )
        sections = []
        for section in _sections(run, options):
            print(section, flush=True)
            sections.append(section)
    if options.json:
        data = {"facts": facts, "sections": [section.plain() for section in sections]}
        options.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    if options.png and chart.draw(sections, facts, options.png):
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few samples, one repeat: does it run?")
    parser.add_argument(
        "--only", type=_names, default=SECTIONS, help=f"sections, comma-separated: {', '.join(SECTIONS)}"
    )
    parser.add_argument("--samples", type=int, help="large samples of 393 kB (default: 2000)")
    parser.add_argument("--small-samples", type=int, help="small samples of 3 kB (default: 20000)")
    parser.add_argument("--entries", type=int, help="entries of the large index (default: 10000000)")
    parser.add_argument("--repeats", type=int, help="of which medians are taken (default: 3)")
    parser.add_argument(
        "--dir", type=Path, help="where to write, on the disk to be measured (default: the temp folder)"
    )
    parser.add_argument("--json", type=Path, help="write everything there, too")
    parser.add_argument("--png", type=Path, default=ROOT / "bench/out/store.png", help="write a chart there")
    options = parser.parse_args(arguments)
    defaults = (64, 500, 50_000, 1) if options.quick else (2_000, 20_000, 10_000_000, 3)
    for name, value in zip(("samples", "small_samples", "entries", "repeats"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in SECTIONS:
            message = f"no section {name!r}; there are {', '.join(SECTIONS)}"
            raise argparse.ArgumentTypeError(message)
    return names


def _kernel() -> str:
    """The kernel's series; what follows is its builder's."""
    return ".".join(platform.release().split(".")[:2])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
