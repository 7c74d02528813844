"""What `import precook` costs a program that starts."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from bench import measure
from bench.script import ROOT
from bench.table import Column, Goal, Section
from bench.work import child_environment

_PROGRAMS = {
    "python -c pass": "pass",
    "import precook": "import precook",
    "import precook; precook.open": "import precook; precook.open",
}


def imports(repeats: int) -> Section:
    """Milliseconds more than a Python that does nothing, and whether torch stays out."""
    for code in _PROGRAMS.values():
        _python(code)
    times = measure.interleave(
        {name: partial(measure.seconds, partial(_python, code)) for name, code in _PROGRAMS.items()},
        repeats,
    )
    columns = [Column("program"), Column("ms", ".1f"), Column("more than bare, ms", ".1f"), Column("imports torch")]
    section = Section("import", "Import", columns)
    bare = times["python -c pass"]
    more = {
        name: measure.median(a - b for a, b in zip(found, bare, strict=True)) * 1e3 for name, found in times.items()
    }
    for name, code in _PROGRAMS.items():
        torch = _python(f"{code}; import sys; print('torch' in sys.modules)") == "True"
        section.rows.append([name, measure.median(times[name]) * 1e3, more[name], "yes" if torch else "no"])
        if name == "import precook":
            section.goals.append(Goal(name, more[name], 100, "under", ".1f", " ms"))
        if name != "python -c pass":
            section.goals.append(Goal(f"{name}: modules called torch", int(torch), 0, "at most", ".0f", ""))
    section.notes.append(
        f"medians of {repeats} fresh processes each, in turn; names load when first used: the third loads numpy."
    )
    return section


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=child_environment(), check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
