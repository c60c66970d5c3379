"""Vega-Lite charts made with Altair and drawn by the library embedded in the page, without network access."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import altair as alt
import vl_convert
from markupsafe import Markup

from trtkit.report.tables import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Drawn = alt.Chart | alt.LayerChart | alt.FacetChart

CHART = "<figure class='chart'>"
"""The start of a chart in a page."""
BLUE, ORANGE, GREEN, PURPLE, RED, GREY = "#3b82f6", "#e07b00", "#2da44e", "#a371f7", "#e5534b", "#8b949e"
"""Colours that are legible on white and on black."""
_PALETTE = [BLUE, ORANGE, GREEN, PURPLE, RED, "#14b8a6", "#d946ef", "#a16207", GREY]
_ROOFS = [PURPLE, RED, GREY, GREEN, "#14b8a6", "#d946ef", "#a16207", ORANGE]
_HEIGHT = 300

Row = dict[str, str | float | None]


@dataclass(frozen=True)
class ChartAxis:
    """A field of the rows and its description with unit. ticks: a d3 format."""

    field: str
    title: str
    is_log: bool = False
    ticks: str = ".4~g"

    @property
    def shorthand(self) -> str:
        """The field in Vega-Lite's shorthand, as a number."""
        return f"{self.field}:Q"

    @property
    def scale(self) -> alt.Scale:
        """A linear scale starts at zero."""
        return alt.Scale(type="log", nice=False, padding=12) if self.is_log else alt.Scale(zero=True)

    @property
    def axis(self) -> alt.Axis:
        """An axis with few ticks, which fit on narrow screens."""
        return alt.Axis(tickCount=6, format=self.ticks)


def figure(chart: Drawn, caption: str = "", height: int = _HEIGHT) -> Markup:
    """Return a chart as wide as the page."""
    spec = chart.properties(width="container", height=height).to_dict()
    del spec["$schema"]
    text = json.dumps({**spec, "autosize": {"type": "fit-x", "contains": "padding"}}).replace("<", "\\u003c")
    note = Markup("<figcaption>{}</figcaption>").format(caption) if caption else ""
    drawn = Markup("<div class='plot'></div><script type='application/json'>{}</script>{}</figure>")
    return Markup(CHART) + drawn.format(Markup(text), note)


@cache
def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    text = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    assert "</script" not in text.lower()
    return text


def data(rows: Sequence[Mapping[str, str | float | None]]) -> alt.Chart:
    """Return a chart of rows without marks."""
    return alt.Chart(alt.InlineData(values=list(map(dict, rows))))


def colour(field: str, title: str, colours: Mapping[str, str] | None = None) -> alt.Color:
    """Return colours by a field: the given ones, or the palette's."""
    scale = (
        alt.Scale(range=_PALETTE) if colours is None else alt.Scale(domain=list(colours), range=list(colours.values()))
    )
    return alt.Color(f"{field}:N", title=title, scale=scale, sort=None)


Axes = tuple[ChartAxis, ChartAxis]
"""Horizontal and vertical axis."""


def points(rows: Sequence[Row], axes: Axes, by: alt.Color, *, size: int = 45) -> alt.Chart:
    """Return a point for each row, with a tooltip of all its texts; clicking on the legend dims the others."""
    x, y = axes
    drawn: alt.Chart = (
        data(rows)
        .mark_circle(size=size, opacity=0.85)
        .encode(
            x=alt.X(x.shorthand, title=x.title, scale=x.scale, axis=x.axis),
            y=alt.Y(y.shorthand, title=y.title, scale=y.scale, axis=y.axis),
            color=by,
            tooltip=tooltip(rows),
        )
    )
    return drawn


def lines(rows: Sequence[Row], axes: Axes, by: alt.Color, *, has_points: bool = True) -> alt.Chart:
    """Return a line per color through its rows in order; steps if points are not drawn."""
    x, y = axes
    drawn: alt.Chart = (
        data(rows)
        .mark_line(point=has_points, interpolate="linear" if has_points else "step-after")
        .encode(
            x=alt.X(x.shorthand, title=x.title, scale=x.scale, axis=x.axis),
            y=alt.Y(y.shorthand, title=y.title, scale=y.scale, axis=y.axis),
            color=by,
            order="order:Q",
            tooltip=tooltip(rows),
        )
    )
    return drawn


def with_legend(chart: alt.Chart, field: str) -> alt.Chart:
    """Make a click on the legend dim the other series."""
    chosen = alt.selection_point(fields=[field], bind="legend")
    dimmed: alt.Chart = chart.add_params(chosen).encode(opacity=alt.condition(chosen, alt.value(0.9), alt.value(0.1)))
    return dimmed


def limit(value: float, text: str) -> Drawn:
    """Return a labelled dashed line across the chart."""
    rule = data([{"limit": value, "text": text}])
    line = rule.mark_rule(color=RED, strokeDash=[5, 4]).encode(y="limit:Q")
    name = rule.mark_text(color=RED, align="left", dx=6, dy=-7)
    drawn: alt.LayerChart = line + name.encode(y="limit:Q", x=alt.value(0), text="text:N")
    return drawn


def bars(rows: Sequence[Row], x_title: str, by: alt.Color) -> alt.Chart:
    """Return bars from `start` to `end`, on one line per `row`."""
    drawn: alt.Chart = (
        data(rows)
        .mark_bar(height=alt.RelativeBandSize(0.8))
        .encode(
            x=alt.X("start:Q", title=x_title, axis=alt.Axis(tickCount=6)),
            x2="end:Q",
            y=alt.Y("row:N", title=None, sort=None),
            color=by,
            tooltip=tooltip(rows),
        )
    )
    return drawn


def matrix(rows: Sequence[Row], order: Sequence[str], has_texts: bool) -> Drawn:
    """Return a square for each row, `predicted` across and `truth` down, darker with its `share`; texts: `count`."""
    names = alt.Scale(domain=list(order))  # of both axes, so that what is right is on the diagonal
    across = alt.Axis(labelAngle=-45, orient="top", labelOverlap=False)
    x = alt.X("predicted:N", scale=names, title="predicted", axis=across)
    y = alt.Y("truth:N", scale=names, title="truth", axis=alt.Axis(labelOverlap=False))
    scale = alt.Scale(domain=[0, 1], scheme="blues")
    colours = alt.Color(
        "share:Q", title="share of the class", scale=scale, legend=alt.Legend(format=".0%", values=[0, 0.5, 1])
    )
    squares: alt.Chart = data(rows).mark_rect().encode(x=x, y=y, color=colours, tooltip=tooltip(rows))
    if not has_texts:
        return squares
    dark = alt.condition("datum.share > 0.5", alt.value("white"), alt.value("#1f2328"))
    texts: alt.Chart = data(rows).mark_text().encode(x=x, y=y, text="count:Q", color=dark)
    drawn: Drawn = squares + texts
    return drawn


def intervals(rows: Sequence[Row], title: str) -> Drawn:
    """Return each row's `value` with its interval from `low` to `high`, on a logarithmic scale with a line at 1."""
    base = data(rows).encode(y=alt.Y("row:N", title=None, sort=None, axis=alt.Axis(labelLimit=240)))
    span = base.mark_rule(color=BLUE, strokeWidth=2).encode(
        x=alt.X("low:Q", title=title, scale=alt.Scale(type="log", nice=False, padding=20)),
        x2="high:Q",
        tooltip=tooltip(rows),
    )
    point = base.mark_circle(color=BLUE, size=90).encode(x="value:Q", tooltip=tooltip(rows))
    one = data([{"one": 1.0}]).mark_rule(color=GREY, strokeDash=[5, 4])
    return alt.layer(one.encode(x="one:Q"), span, point)


def tooltip(rows: Sequence[Row]) -> list[alt.Tooltip]:
    """Return the texts of the rows as a tooltip: fields with readable names are capitalized."""
    names = dict.fromkeys(name for row in rows for name in row if name[:1].isupper())
    return [alt.Tooltip(field=name, type="nominal") for name in names]


def roofline(rates: Mapping[str, float], bandwidth: float, layers: Sequence[Row], by: alt.Color) -> Markup:
    """Return a processor's roofs, and a point for each layer.

    rates: operations per second, by type. layers: rows with `intensity`, `rate` and `size`, the point's area.
    """
    reach = [float(row["intensity"] or 0) for row in layers]
    low, high = min([0.1, *reach]) / 2, 2 * max([10 * max(rates.values()) / bandwidth, *reach])
    roofs: list[Row] = [
        {"intensity": x, "rate": y, "roof": f"{dtype} {quantity(rate, 'OP/s').text}", "order": float(index)}
        for dtype, rate in rates.items()
        for index, (x, y) in enumerate(((low, bandwidth * low), (rate / bandwidth, rate), (high, rate)))
    ]
    axes = (
        ChartAxis("intensity", "operations per byte", True, "~g"),
        ChartAxis("rate", "operations per second", True, "~s"),
    )
    roof = alt.Color(
        "roof:N", title=f"roofs, {bandwidth / 1e9:,.0f} GB/s and", sort=None, scale=alt.Scale(range=_ROOFS)
    )
    drawn = lines(roofs, axes, roof)
    marks = points(layers, axes, by).encode(size=alt.Size("size:Q", scale=None, legend=None))
    return figure(alt.layer(drawn.mark_line(), marks).resolve_scale(color="independent"), height=340)
