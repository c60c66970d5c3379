"""Plots as SVG: distributions, a curve over the cases, a timeline. Hovering names a mark, the legend hides a series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 260, 64, 34, 12
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#4d2d00")
SCRIPT = """
for (const button of document.querySelectorAll("[data-toggle]")) button.onclick = () => {
  const svg = button.parentElement.nextElementSibling;
  svg.querySelector(`[data-series="${button.dataset.toggle}"]`).classList.toggle("hidden");
  button.classList.toggle("off");
};
"""
"""Lets legends hide series; a page has it once."""
STYLE = """
.axis { stroke: #e2e2e2 } g.hidden { display: none } button.off { opacity: .3 }
.legend button { border: 0; background: none; font: inherit; cursor: pointer }
"""


@dataclass(frozen=True)
class Point:
    """A mark. label: what hovering says."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Series:
    """Marks of one name, and whether a line joins them."""

    name: str
    points: Sequence[Point]
    is_line: bool = True


@dataclass(frozen=True)
class Bar:
    """A piece of a row in a timeline, from `start` to `end`. kind: its class of colour."""

    start: float
    end: float
    kind: str
    label: str


@dataclass(frozen=True)
class Axis:
    """From values to pixels."""

    low: float
    high: float
    name: str
    is_log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies between the ends, 0 to 1."""
        low, high, value = (self._scaled(each) for each in (self.low, self.high, value))
        return (value - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Return round values inside the axis."""
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (10.0**power * factor for power in powers for factor in (1, 2, 5))
            return [step for step in steps if self.low <= step <= self.high]
        raw = (self.high - self.low) / 6 or 1.0
        size = 10.0 ** math.floor(math.log10(raw))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw)
        first = math.ceil(self.low / step)
        return [step * index for index in range(first, math.floor(self.high / step) + 1)]

    def _scaled(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.is_log else value


def axis_of(values: Sequence[float], name: str, *, is_log: bool = False) -> Axis:
    """Return an axis that holds the values, from 0 where it is linear."""
    low = min(values, default=1.0) if is_log else 0.0
    high = max(values, default=1.0)
    return Axis(max(low, 1e-9) if is_log else low, high if high > low else low * 1.1 + 1e-9, name, is_log)


def plot(series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Return a plot with a legend."""
    marks = [_grid(x, y)]
    for index, each in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        places = [(_x(x, point.x), _y(y, point.y), point.label) for point in each.points]
        line = " ".join(f"{left:.1f},{top:.1f}" for left, top, _ in places)
        drawn = [f"<polyline points='{line}' fill='none' stroke='{colour}'/>"] if each.is_line else []
        drawn += [_circle(left, top, colour, label) for left, top, label in places]
        marks.append(f"<g data-series='{index}'>{''.join(drawn)}</g>")
    return f"{_legend([each.name for each in series])}{_svg(marks, HEIGHT)}"


def timeline(rows: Sequence[tuple[str, Sequence[Bar]]], unit: str) -> str:
    """Return a row of bars for each name, over a common axis."""
    height = 18 * len(rows) + TOP + BOTTOM
    x = axis_of([bar.end for _, bars in rows for bar in bars], unit)
    marks = [_ticks(x, height)]
    for index, (name, bars) in enumerate(rows):
        top = TOP + 18 * index
        marks.append(f"<text x='4' y='{top + 12}'>{escape(name[:10])}</text>")
        marks += [_bar(x, bar, top) for bar in bars]
    return _svg(marks, height)


def _bar(x: Axis, bar: Bar, top: float) -> str:
    left, right = _x(x, bar.start), _x(x, bar.end)
    place = f"x='{left:.1f}' y='{top}' width='{max(0.8, right - left):.1f}' height='14'"
    return f"<rect class='{bar.kind}' {place}><title>{escape(bar.label)}</title></rect>"


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.share(value) * (WIDTH - LEFT - 16)


def _y(axis: Axis, value: float) -> float:
    return TOP + (1 - axis.share(value)) * (HEIGHT - TOP - BOTTOM)


def _grid(x: Axis, y: Axis) -> str:
    rows = [
        f"<line class='axis' x1='{LEFT}' x2='{WIDTH}' y1='{_y(y, tick):.1f}' y2='{_y(y, tick):.1f}'/>"
        f"<text x='4' y='{_y(y, tick) + 4:.1f}'>{tick:g}</text>"
        for tick in y.ticks()
    ]
    return _ticks(x, HEIGHT) + "".join(rows) + f"<text x='{LEFT + 4}' y='{TOP + 8}'>{escape(y.name)}</text>"


def _ticks(x: Axis, height: float) -> str:
    columns = [
        f"<line class='axis' x1='{_x(x, tick):.1f}' x2='{_x(x, tick):.1f}' y1='{TOP}' y2='{height - BOTTOM}'/>"
        f"<text x='{_x(x, tick) - 8:.1f}' y='{height - 18}'>{tick:g}</text>"
        for tick in x.ticks()
    ]
    return "".join(columns) + f"<text x='{WIDTH // 2}' y='{height - 4}'>{escape(x.name)}</text>"


def _circle(left: float, top: float, colour: str, label: str) -> str:
    return f"<circle cx='{left:.1f}' cy='{top:.1f}' r='3' fill='{colour}'><title>{escape(label)}</title></circle>"


def _legend(names: Sequence[str]) -> str:
    buttons = [
        f"<button data-toggle='{index}' style='color:{COLOURS[index % len(COLOURS)]}'>&#9679; {escape(name)}</button>"
        for index, name in enumerate(names)
    ]
    return f"<div class='legend'>{''.join(buttons)}</div>"


def _svg(marks: Sequence[str], height: float) -> str:
    return f"<svg viewBox='0 0 {WIDTH} {height}' width='100%'>{''.join(marks)}</svg>"
