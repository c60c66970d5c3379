"""The cost of quantizing each layer, as an HTML page: layers ranked, and loss against size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from trtkit.report import charts
from trtkit.report.page import page, section
from trtkit.report.tables import Column, Note, NumberCell, Table, named, number, numbers, size

if TYPE_CHECKING:
    from markupsafe import Markup

    from trtkit.quantization.scoring.report import LayerLoss, Scores
    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin, PagePart

_LEAST = 1e-9
_LOSS = charts.ChartAxis("loss", "loss, nats per token", is_log=True)


def sensitivity_page(name: str, scores: Scores, origin: PageOrigin) -> str:
    """Return a page of scores. name: of the model."""
    kept, count = len(scores.kept), len(scores.layers)
    rest = f", {kept} {_left(scores)}" if kept else ""
    summary = f"{count - kept} of {count} layers quantized{rest}: {scores.loss:.3g} nats per token"
    parts: list[PagePart] = [Note(summary)]
    parts += section("Loss with one layer quantized alone", _ranked(scores), _layers(scores))
    parts += section("Loss against size", _by_size(scores), _budgets(scores))
    return page(f"quantize {name}", parts, origin)


def _ranked(scores: Scores) -> Markup:
    """Return the losses of single layers, largest first, by method and by whether a budget excludes them."""
    rows: list[Row] = [
        {
            "rank": float(rank),
            "loss": max(row.loss, _LEAST),
            "method": _left(scores) if row.layer in scores.kept else row.method,
            "Layer": row.layer,
            "Method": row.method,
            "Loss": f"{row.loss:.3g} nats per token",
            "Size": f"{row.bits:g} bits x {row.weights:,} weights",
        }
        for rank, row in enumerate(scores.layers, 1)
    ]
    axes = charts.ChartAxis("rank", "layers, the costliest first"), _LOSS
    drawn = charts.points(rows, axes, charts.colour("method", "method"), size=60)
    return charts.figure(charts.with_legend(drawn, "method"), "Hover to name a layer; click the legend to dim others.")


def _by_size(scores: Scores) -> Markup:
    """Return loss over the size of all linear layers, for budgets that exclude the costliest ones."""
    rows: list[Row] = [
        {
            "mib": point.mib,
            "loss": max(point.loss, _LEAST),
            "order": float(index),
            "series": "budgets",
            "Layers left": f"{point.kept:,}",
            "Size": f"{point.mib:.1f} MiB",
            "Loss": f"{point.loss:.3g} nats per token",
        }
        for index, point in enumerate(scores.curve)
    ]
    axes = charts.ChartAxis("mib", "size of all linear layers, MiB"), _LOSS
    return charts.figure(
        charts.lines(rows, axes, alt.Color("series:N", legend=None, scale=alt.Scale(range=[charts.BLUE])))
    )


def _budgets(scores: Scores) -> Table:
    rows = [(point.kept, size(point.mib * 2**20), point.loss) for point in scores.curve]
    return Table("", numbers(f"layers {_left(scores)}", "linear layers", "loss, nats per token"), rows)


def _layers(scores: Scores) -> Table:
    figures = numbers("loss, nats per token", "bits per weight", "weights")
    columns = (*numbers("rank"), *named("layer", "method"), *figures, Column(""))
    return Table("", columns, [_row(scores, rank, row) for rank, row in enumerate(scores.layers, 1)])


def _row(scores: Scores, rank: int, row: LayerLoss) -> tuple[int, str, str, NumberCell, NumberCell, NumberCell, str]:
    kept = _left(scores) if row.layer in scores.kept else ""
    return rank, row.layer, row.method, number(row.loss), number(row.bits), number(row.weights), kept


def _left(scores: Scores) -> str:
    """Return how layers excluded by the budget are stored."""
    return "not quantized" if scores.fallback is None else f"left to {scores.fallback}"
