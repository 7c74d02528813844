"""What a sweep found, as a value that travels between processes."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

_VARIABLE = re.compile(r"[0-9a-f]{8,}|\d+|precook-faults-\w+|packs/[0-9a-f]{2}\b")
# A bug seeded or real can break every point of a sweep: remember enough of them, count all.
_REMEMBERED = 2000


@dataclass
class Report:
    """The result of one sweep."""

    title: str
    calls: int = 0
    """Calls at which the fault could have struck, in a run that it did not disturb; zero where that is not counted."""
    points: int = 0
    """Faults injected, or crash states built."""
    checked: int = 0
    """Of these, how many were different from all others and so were checked."""
    violations: int = 0
    found: list[tuple[str, str]] = field(default_factory=list)
    """The violations: where, and what did not hold."""
    cpu: float = 0.0
    """Seconds of CPU that it took: those that passed say little on a machine that does other things too."""
    skipped: str = ""
    """Why nothing was done here, empty where it was."""
    errors: dict[str, int] = field(default_factory=dict)
    """Errors of its own kinds that the store raised, by type: expected, worth a look."""

    def violation(self, where: str, what: str) -> None:
        """Something did not hold at the point `where`."""
        self.violations += 1
        if len(self.found) < _REMEMBERED:
            self.found.append((where, what))

    def error(self, name: str) -> None:
        """The store raised an error of its own."""
        self.errors[name] = self.errors.get(name, 0) + 1

    def as_data(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)

    def summary(self, examples: int = 2) -> str:
        """The violations in words: alike ones together, with how many there are and where the first of them lie."""
        alike: dict[str, list[tuple[str, str]]] = {}
        for where, what in self.found:
            alike.setdefault(_VARIABLE.sub("#", what), []).append((where, what))
        lines = []
        for group in sorted(alike.values(), key=len, reverse=True):
            lines.append(f"{self.title}: {len(group)} x {group[0][1].strip()}")
            lines += [f"    at {where}" for where, _ in group[:examples]]
        return "\n".join(lines)
