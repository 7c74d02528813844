"""The picture of a run: a panel for each question a reader asks first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.samples import Kind
from bench.table import Section

_OURS = "#d1495b"
_PEER = "#8d99ae"
_FLOOR = "#d9dde5"


@dataclass(frozen=True, slots=True)
class _Panel:
    section: str
    kind: Kind
    column: str
    title: str


_PANELS = (
    _Panel("read", "large", "touch", "Random read, warm: 393 kB samples/s"),
    _Panel("cold", "large", "random/s", "Random read, cold disk: 393 kB samples/s"),
    _Panel("read", "small", "touch", "Random read, warm: 3 kB samples/s"),
    _Panel("cold", "small", "random/s", "Random read, cold disk: 3 kB samples/s"),
)


def draw(sections: list[Section], facts: dict[str, str], path: Path) -> bool:
    """Write a chart of what was measured; False where nothing of it was, or matplotlib is not installed."""
    bars = [(panel, found) for panel in _PANELS if (found := _bars(sections, panel))]
    if not bars:
        return False
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only where a chart is wanted
    except ImportError:
        print("not installed: matplotlib; no chart is drawn")
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after its backend is chosen

    columns = min(2, len(bars))
    rows = -(-len(bars) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(6.4 * columns, 3.7 * rows + 0.7), squeeze=False, layout="constrained"
    )
    for axis, (panel, found) in zip(axes.flat, bars, strict=False):
        _draw_panel(axis, panel.title, found)
    for axis in axes.flat[len(bars) :]:
        axis.set_visible(False)
    figure.suptitle(
        "To torch tensors, every byte touched, one process (longer is better)", fontsize=13, fontweight="bold"
    )
    figure.supxlabel(f"{facts['machine']}; Python {facts['python']}; {facts['date']}", fontsize=8, color="#666666")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _bars(sections: list[Section], panel: _Panel) -> list[tuple[str, float]]:
    """Layouts and their numbers, the best first."""
    for section in sections:
        if section.name == panel.section and section.kind == panel.kind:
            named = {str(row[0]): section.value(str(row[0]), panel.column) for row in section.rows}
            found = [(name, value) for name, value in named.items() if value is not None and _shown(name)]
            return sorted(found, key=lambda bar: -bar[1])
    return []


def _shown(name: str) -> bool:
    return name == "precook" or not name.startswith("precook")


def _draw_panel(axis: Any, title: str, bars: list[tuple[str, float]]) -> None:
    names = [name.removeprefix("floor: ") for name, _ in bars]
    values = [value for _, value in bars]
    colours = [_OURS if name == "precook" else _FLOOR if name.startswith("floor") else _PEER for name, _ in bars]
    axis.barh(names, values, color=colours, height=0.72)
    axis.invert_yaxis()
    for place, value in enumerate(values):
        axis.text(value, place, f" {value:,.0f}", va="center", fontsize=9)
    axis.set_xlim(0, max(values) * 1.16)
    axis.set_title(title, fontsize=11, loc="left")
    axis.xaxis.set_visible(False)
    axis.tick_params(axis="y", length=0)
    for label, (name, _) in zip(axis.get_yticklabels(), bars, strict=True):
        if name == "precook":
            label.set_fontweight("bold")
            label.set_color(_OURS)
    for side in ("top", "right", "bottom", "left"):
        axis.spines[side].set_visible(False)
