"""Writes docs/reference/errors.md from src/precook/errors.py: `python tools/errors_page.py`."""

from __future__ import annotations

import inspect
from pathlib import Path

from precook import errors

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"
INTRODUCTION = """\
# Errors

Every error of ours is a `precook.PrecookError`, and can be imported from `precook`.
It carries its facts as attributes, a `hint` with the next step, and the `exit_code` that a command ends with.
Where the table has no hint, the error brings one of its own or needs none.
This page is made from `src/precook/errors.py`.

## The tree

```text
{tree}
```

## One by one

| error | what it means | hint | exit code |
|---|---|---|---|
"""


def page() -> str:
    """The page as it should be."""
    tree = (errors.__doc__ or "").split("\n\n")[1]
    rows = []
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.PrecookError):
            meaning = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
            rows.append(f"| `{name}` | {meaning} | {kind.hint} | {kind.exit_code} |")
    return INTRODUCTION.format(tree=inspect.cleandoc(tree)) + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
