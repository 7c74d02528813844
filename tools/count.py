"""How much there is to read: modules, lines, helpers used once, and what an operation runs through.

A thermometer, run by hand, and no gate: `python tools/count.py`; `--source DIR` takes another tree's `src`.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|BEGIN|COMMIT|ATTACH)\b")
_SHORT = 8
"""Lines below which a helper that is used once is read faster where it is used."""
_PICTURE = """\
store: cache
dataset: one
concepts:
  - {name: pictures, path: pictures, captions: {text: "a picture"}}
image: {resolutions: [64], step: 64}
encoders:
  pixels: {uses: image}
"""


def main() -> None:
    """Print every count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--trace", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        _trace(options.trace)
        return
    package = options.source / "precook"
    _read(package)
    for name in _OPERATIONS:
        # A process for each: what one has imported or opened the next would not run through again.
        command = [sys.executable, __file__, "--source", str(options.source), "--trace", name]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(options.source)})  # noqa: S603 - ourselves


def _read(package: Path) -> None:
    """What can be counted without running anything."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py"))}
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in trees)
    functions = [(path, node) for path, tree in trees.items() for node in ast.walk(tree) if _is_function(node)]
    names = {path: Counter(_names(tree)) for path, tree in trees.items()}
    once = [node for path, node in functions if _is_private(node.name) and names[path][node.name] == 1]
    short = [node for node in once if _length(node) < _SHORT]
    classes = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")].add(path)
    twice = sorted(name for name, paths in classes.items() if len(paths) > 1)
    sql = sorted({path.relative_to(package).as_posix() for path, tree in trees.items() if _has_sql(tree)})
    outside = [path for path in sql if not path.startswith("store/index/")]
    comments = sum(line.lstrip().startswith("#") for path in trees for line in path.read_text("utf-8").splitlines())
    _show("modules", len(trees))
    _show("lines", lines)
    _show("comment lines", f"{comments} ({comments / lines:.1%})")
    _show(
        "functions", f"{len(functions)}, median {statistics.median(_length(node) for _, node in functions):.0f} lines"
    )
    _show(
        "helpers used once",
        f"{len(once)} ({len(once) / len(functions):.0%}), {len(short)} of them under {_SHORT} lines",
    )
    _show("class names for two ideas", f"{len(twice)}: {', '.join(twice)}" if twice else "0")
    _show("modules with SQL outside store/index/", f"{len(outside)}: {', '.join(outside)}" if outside else "0")


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _length(node: Any) -> int:
    return int(node.end_lineno - node.lineno + 1)


def _names(tree: ast.AST) -> Iterator[str]:
    """Every use of a name, in code or as an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _has_sql(tree: ast.AST) -> bool:
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any(_SQL.match(text) and " " in text for text in texts if text[:6].isupper())


def _trace(name: str) -> None:
    """What one operation runs through: functions, modules, threads, plans."""
    with tempfile.TemporaryDirectory() as folder:
        run = _OPERATIONS[name](Path(folder))
        seen: set[tuple[str, str, int]] = set()
        threads: set[int] = set()
        plans = 0

        def watch(frame: FrameType, event: str, _: object) -> None:
            nonlocal plans
            code = frame.f_code
            if event == "call" and "/precook/" in code.co_filename and "<" not in code.co_name:
                seen.add((code.co_filename, code.co_name, code.co_firstlineno))
                threads.add(threading.get_ident())
                plans += code.co_name == "make_plan"

        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        modules = len({file for file, _, _ in seen})
        told = f"{len(seen)} functions, {modules} modules, {len(threads)} threads"
        _show(name, f"{told}, {plans} plans" if plans else told)


def _put(folder: Path) -> Callable[[], object]:
    import numpy as np  # noqa: PLC0415 - an operation imports what it needs before it is watched

    import precook  # noqa: PLC0415

    store, recipe = precook.open(folder / "cache"), precook.Recipe("count", {})
    store.put(recipe.key(0), np.arange(4))
    key, tree = recipe.key(1), {"x": np.arange(4), "text": "a cat"}
    return lambda: store.put(key, tree)


def _get(folder: Path, *, again: bool = False) -> Callable[[], object]:
    import precook  # noqa: PLC0415

    _put(folder)()
    store, key = precook.open(folder / "cache"), precook.Recipe("count", {}).key(1)
    if again:
        store.get(key)
    return lambda: store.get(key)


def _project(folder: Path) -> Any:
    import numpy as np  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    import precook  # noqa: PLC0415

    (folder / "pictures").mkdir()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(folder / "pictures" / "one.png")
    (folder / "precook.yaml").write_text(_PICTURE, encoding="utf-8")
    return precook.load(folder / "precook.yaml")


def _build(folder: Path) -> Callable[[], object]:
    plan = _project(folder).plan()
    return plan.build


def _batch(folder: Path) -> Callable[[], object]:
    project = _project(folder)
    project.build()
    feed = project.feed(batch_size=1)
    return lambda: list(feed.epoch(0))


def _command(folder: Path, *, idle: bool = False) -> Callable[[], object]:
    _project(folder)
    from precook.cli.main import app  # noqa: PLC0415

    def run() -> None:
        app(["build", "--config", str(folder / "precook.yaml"), "--json"], standalone_mode=False)

    if idle:
        run()
    return run


_OPERATIONS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "store.put": _put,
    "store.get, first": _get,
    "store.get, again": lambda folder: _get(folder, again=True),
    "plan.build() of one picture": _build,
    "one batch": _batch,
    "precook build": _command,
    "precook build, idle": lambda folder: _command(folder, idle=True),
}


def _show(name: str, value: object) -> None:
    print(f"{name:40} {value}", flush=True)


if __name__ == "__main__":
    main()
