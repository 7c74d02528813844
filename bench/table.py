"""What a run says: sections with a table, goals and notes; printed, or as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Cell = float | str | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    form: str = ",.0f"
    """How its numbers are printed."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A number to reach: DESIGN.md, section 9."""

    what: str
    found: float
    wanted: float
    sense: Literal["at least", "more than", "at most", "under"] = "at least"
    form: str = ".2f"
    unit: str = "x"

    @property
    def met(self) -> bool:
        """Whether it was reached."""
        if self.sense in ("at least", "more than"):
            return self.found > self.wanted if self.sense == "more than" else self.found >= self.wanted
        return self.found < self.wanted if self.sense == "under" else self.found <= self.wanted

    def __str__(self) -> str:
        found, wanted = (f"{number:{self.form}}{self.unit}" for number in (self.found, self.wanted))
        return f"{self.what}: {found} (goal: {self.sense} {wanted}): {'met' if self.met else 'not met'}"


@dataclass(slots=True)
class Section:
    """One table with what it says about the goals."""

    name: str
    title: str
    columns: list[Column]
    kind: str | None = None
    """The kind of sample it is about, where it is about one."""
    rows: list[list[Cell]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def value(self, row: str, column: str) -> float | None:
        """The number in a row, found by the row's first cell, under a column's title."""
        at = [known.title for known in self.columns].index(column)
        for cells in self.rows:
            if cells[0] == row:
                found = cells[at]
                return found if isinstance(found, float | int) else None
        return None

    def plain(self) -> dict[str, Any]:
        """The section as data for JSON."""
        titles = [column.title for column in self.columns]
        return {
            "name": self.name,
            "kind": self.kind,
            "title": self.title,
            "rows": [dict(zip(titles, row, strict=True)) for row in self.rows],
            "goals": [asdict(goal) | {"met": goal.met} for goal in self.goals],
            "notes": self.notes,
        }

    def __str__(self) -> str:
        lines = [f"### {self.title}", "", *table(self.columns, self.rows)]
        lines += [line for goal in self.goals for line in ("", str(goal))]
        lines += [line for note in self.notes for line in ("", f"Note: {note}")]
        return "\n".join([*lines, ""])


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """A table that reads well in a terminal and is Markdown too."""
    texts = [[_text(cell, column) for cell, column in zip(row, columns, strict=True)] for row in rows]
    titles = [column.title for column in columns]
    widths = [max(len(row[at]) for row in [titles, *texts]) for at in range(len(columns))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [_line(row, widths) for row in [titles, rule, *texts]]


def _text(cell: Cell, column: Column) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:{column.form}}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = cells[0].ljust(widths[0])
    return f"| {' | '.join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))])} |"
