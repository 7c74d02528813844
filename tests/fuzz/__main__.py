"""`python -m tests.fuzz`: try changed inputs of one format, or of each in turn.

With atheris installed it is guided by what code an input reaches, otherwise inputs are changed at random.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import math
import sys
from pathlib import Path
from types import ModuleType

from tests.fuzz.frame import Target, fuzz, replay

try:
    import atheris
except ImportError:
    atheris = None

HERE = Path(__file__).parent
FORMATS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
"""A module for each, with a `TARGET`."""


def load(name: str, engine: ModuleType | None = None) -> Target:
    """The target of a format; with it comes the code, which an `engine` watches. Watched code is slow."""
    watched = contextlib.nullcontext() if engine is None else engine.instrument_imports(include=["precook"])
    with watched:
        module: ModuleType = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    target: Target = module.TARGET
    return target


def main() -> int:
    """How many findings there are decides the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--format", action="append", choices=FORMATS, help="one format; all of them by default")
    parser.add_argument("--seconds", type=float, default=60, help="for each format")
    parser.add_argument("--inputs", type=int, help="so many of each format, always the same; without atheris")
    parser.add_argument("--seed", type=int, default=0, help="another one makes another run")
    parser.add_argument("--replay", action="store_true", help="only what is kept, once")
    options = parser.parse_args()
    engine = None if options.inputs or options.replay else atheris
    print("guided by atheris" if engine else "inputs are changed at random", flush=True)
    logging.disable()  # a damaged entry is worth a line, thousands are not
    found = 0
    for name in options.format or FORMATS:
        target = load(name, engine)
        wrong = replay(target)
        print("\n".join(wrong) or f"{name}: its {len(target.kept())} kept inputs pass", flush=True)
        found += len(wrong)
        if not options.replay:
            found += fuzz(target, options.seconds, options.inputs or math.inf, options.seed, engine)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
