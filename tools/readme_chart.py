"""Writes docs/images/reads.svg from the tables of docs/reference/benchmarks.md: `python tools/readme_chart.py`.

The page holds what bench/ printed; the chart shows these figures and no others.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "benchmarks.md"
CHART = DOCS / "images" / "reads.svg"
PANELS = (
    ("### Random read, warm, large", "touch", "Random reads, warm, every byte touched: samples of 393 kB a second"),
    (
        "### Cold read, large",
        "random/s",
        "Random reads, cold disk, every byte touched: samples of 393 kB a second",
    ),
)
WIDTH, NAMES, BAR, GAP, PANEL = 760, 190, 18, 8, 46
OURS, PEER, FLOOR = "#d1495b", "#8d99ae", "#d9dde5"


def bars(heading: str, column: str) -> list[tuple[str, int]]:
    """Layouts and their figures from one table of the page, the best first."""
    section = PAGE.read_text("utf-8").split(heading)[1].split("\n### ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    place = rows[0].index(column)
    named = {row[0]: row[place].replace(",", "") for row in rows[2:]}
    figures = [(name, int(figure)) for name, figure in named.items() if figure and not name.startswith("precook,")]
    return sorted(figures, key=lambda bar: -bar[1])


def chart() -> str:
    """The chart as it should be."""
    parts, top = [], 0
    for heading, column, title in PANELS:
        figures = bars(heading, column)
        scale = (WIDTH - NAMES - 80) / figures[0][1]
        parts.append(f'<text x="8" y="{top + 24}" font-size="15" font-weight="bold">{escape(title)}</text>')
        top += PANEL - GAP
        for name, figure in figures:
            ours = name == "precook"
            colour = OURS if ours else FLOOR if name.startswith("floor") else PEER
            weight = ' font-weight="bold"' if ours else ""
            label = escape(re.sub("^floor: ", "", name))
            middle = top + BAR - 5
            width = max(1, round(figure * scale))
            parts += [
                f'<text x="{NAMES - 8}" y="{middle}" text-anchor="end"{weight}>{label}</text>',
                f'<rect x="{NAMES}" y="{top}" width="{width}" height="{BAR}" fill="{colour}"/>',
                f'<text x="{NAMES + width + 6}" y="{middle}"{weight}>{figure:,}</text>',
            ]
            top += BAR + GAP
        top += PANEL // 2
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    style = 'font-family="sans-serif" font-size="13" fill="#222222"'
    body = "\n".join(parts)
    background = f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{background}\n{body}\n</svg>\n'


if __name__ == "__main__":
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(chart(), "utf-8")
