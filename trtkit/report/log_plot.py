"""A plot with two logarithmic axes, as SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _PAD = 960, 420, 90, 46, 14
_LEGEND_STEP = 15

Pair = tuple[float, float]


@dataclass
class LogPlot:
    """Lines and points over positive ranges. Hovering a mark shows its text."""

    x_range: Pair
    y_range: Pair
    _marks: list[str] = field(default_factory=list)
    _legend: list[str] = field(default_factory=list)

    def line(self, points: Sequence[Pair], colour: str, label: str) -> None:
        """Add a line with a place in the legend."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._place, points))
        self._marks.append(f"<polyline points='{path}' stroke='{colour}'><title>{escape(label)}</title></polyline>")
        y = _PAD + 4 + _LEGEND_STEP * (len(self._legend) + 1)
        self._legend.append(f"<text x='{_LEFT + 12}' y='{y}' style='fill:{colour}'>{escape(label)}</text>")

    def point(self, at: Pair, colour: str, label: str, *, is_large: bool = False) -> None:
        """Add a point."""
        x, y = self._place(at)
        radius = 7 if is_large else 4.5
        circle = f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{colour}'>"
        self._marks.append(f"{circle}<title>{escape(label)}</title></circle>")

    def svg(self, x_title: str, y_title: str) -> str:
        """Return the whole plot."""
        middle = _LEFT + _inner_width() / 2
        turned = f"transform='translate(14 {_HEIGHT / 2:.0f}) rotate(-90)'"
        titles = [
            f"<text x='{middle:.0f}' y='{_HEIGHT - 8}' text-anchor='middle'>{escape(x_title)}</text>",
            f"<text {turned} text-anchor='middle'>{escape(y_title)}</text>",
        ]
        body = "".join([*self._grid(), *titles, *self._marks, *self._legend])
        return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' width='100%' role='img'>{body}</svg>"

    def _place(self, at: Pair) -> Pair:
        """Return where a value lies in the picture."""
        x, y = _share(at[0], self.x_range), _share(at[1], self.y_range)
        return _LEFT + x * _inner_width(), _PAD + (1 - y) * (_HEIGHT - _BOTTOM - _PAD)

    def _grid(self) -> Iterator[str]:
        """Yield a line and a number for each power of ten."""
        for power in _powers(self.x_range):
            x, _ = self._place((10.0**power, self.y_range[0]))
            yield f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='{_PAD}' y2='{_HEIGHT - _BOTTOM}'/>"
            yield f"<text x='{x:.1f}' y='{_HEIGHT - _BOTTOM + 16}' text-anchor='middle'>{_number(power)}</text>"
        for power in _powers(self.y_range):
            _, y = self._place((self.x_range[0], 10.0**power))
            yield f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH - _PAD}' y1='{y:.1f}' y2='{y:.1f}'/>"
            yield f"<text x='{_LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'>{_number(power)}</text>"


def _inner_width() -> float:
    return _WIDTH - _LEFT - _PAD


def _share(value: float, ends: Pair) -> float:
    low, high = (math.log10(end) for end in ends)
    return (math.log10(value) - low) / (high - low) if high > low else 0.5


def _powers(ends: Pair) -> range:
    return range(math.ceil(math.log10(ends[0])), math.floor(math.log10(ends[1])) + 1)


def _number(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else f"1e{power}"
