"""A benchmark as a script: where its modules lie, what it is asked, what it runs on, and a folder that goes with it.

A script that is run by its path imports this one by its bare name before anything else of ours, and so finds the rest:

    if not __package__:
        import script
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import importlib.util
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

if not __package__:
    # This folder's parent holds the package, and precook's sources unless it is installed.
    sys.path[0] = str(ROOT)
    if importlib.util.find_spec("precook") is None:
        sys.path.insert(1, str(ROOT / "src"))


def parser(about: str | None) -> argparse.ArgumentParser:
    """What every benchmark can be asked; the script adds its own."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--quick", action="store_true", help="little of everything: does it run?")
    found.add_argument("--dir", type=Path, help="where to write, on the disk to be measured (default: the temp folder)")
    return found


def some_of(names: Sequence[str]) -> dict[str, Any]:
    """How an option is read that takes some of these names, separated by commas; without it, all of them."""

    def read(text: str) -> tuple[str, ...]:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(f"no {name!r}; there are {', '.join(names)}")
        return tuple(text.split(","))

    return {"type": read, "default": tuple(names), "help": f"comma-separated: {', '.join(names)}"}


def fill(options: argparse.Namespace, *, full: Mapping[str, Any], quick: Mapping[str, Any]) -> argparse.Namespace:
    """Give what was not asked for the value that it has in a full or a quick run."""
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def facts(**more: str) -> dict[str, str]:
    """What every figure depends on, for the head of a report."""
    return {
        "date": dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.system()} {_kernel()}, {_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **more,
    }


def versions(*packages: str) -> str:
    """The packages with the versions that are installed."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


def tell(found: Mapping[str, str]) -> None:
    """Print the head of a report."""
    for name, fact in found.items():
        print(f"{name}: {fact}")
    print(flush=True)


@contextmanager
def folder(parent: Path | None) -> Iterator[Path]:
    """A folder for a run, which goes with it: also where the run is ended by a signal."""
    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="precook-bench-", dir=parent) as made:
            yield Path(made)
    finally:
        signal.signal(signal.SIGTERM, before)


def _kernel() -> str:
    """The kernel's series; what follows is its builder's."""
    return ".".join(platform.release().split(".")[:2])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
