"""What quantizing each layer costs, as one HTML page: layers ranked, and loss against size."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtkit.report.page import page, table
from trtkit.report.plots import SCRIPT, STYLE, Point, Series, axis_of, plot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.quantization.scoring.report import LayerLoss, Scores

_LEAST = 1e-9


def sensitivity_page(name: str, scores: Scores) -> str:
    """Return a page of scores. name: of the model."""
    title = f"quantize {name}"
    kept, count = len(scores.kept), len(scores.layers)
    rest = f", {kept} {_left(scores)}" if kept else ""
    summary = f"{count - kept} of {count} layers quantized{rest}: {scores.loss:.3g} nats a token"
    body = [f"<h1>{escape(title)}</h1><p>{summary}</p>", *_ranked(scores), *_by_size(scores), *_table(scores)]
    return page(title, body, style=STYLE, script=SCRIPT)


def _ranked(scores: Scores) -> Iterator[str]:
    """Yield the losses of single layers, the largest first: a series for each method, one for layers left alone."""
    series: dict[str, list[Point]] = {}
    for rank, row in enumerate(scores.layers, 1):
        key = _left(scores) if row.layer in scores.kept else row.method
        label = f"{row.layer}, {row.method}: {row.loss:.3g} nats"
        series.setdefault(key, []).append(Point(rank, max(row.loss, _LEAST), label))
    y = axis_of([point.y for points in series.values() for point in points], "loss, nats a token", is_log=True)
    x = axis_of([float(len(scores.layers))], "rank")
    drawn = plot([Series(key, points, is_line=False) for key, points in series.items()], x, y)
    yield f"<h2>One layer quantized alone</h2>{drawn}"


def _by_size(scores: Scores) -> Iterator[str]:
    """Yield loss over the size of all linear layers, as budgets would leave the costliest alone."""
    points = [
        Point(each.mib, max(each.loss, _LEAST), f"{each.kept} layers left as they are: {each.loss:.3g} nats")
        for each in scores.curve
    ]
    y = axis_of([point.y for point in points], "loss, nats a token", is_log=True)
    drawn = plot([Series("budgets", points)], axis_of([point.x for point in points], "linear layers, MiB"), y)
    yield f"<h2>Loss against size</h2>{drawn}"
    rows = [(each.kept, f"{each.mib:.1f}", f"{each.loss:.3g}") for each in scores.curve]
    yield table(("layers left as they are", "MiB", "loss, nats a token"), rows)


def _table(scores: Scores) -> Iterator[str]:
    rows = [
        (
            rank,
            row.layer,
            row.method,
            f"{row.loss:.3g}",
            f"{row.bits:g}",
            row.weights,
            _kept(scores, row),
        )
        for rank, row in enumerate(scores.layers, 1)
    ]
    yield f"<h2>Layers</h2>{table(('', 'layer', 'method', 'loss', 'bits of a weight', 'weights', ''), rows)}"


def _kept(scores: Scores, row: LayerLoss) -> str:
    return _left(scores) if row.layer in scores.kept else ""


def _left(scores: Scores) -> str:
    """Say what becomes of layers that the budget leaves."""
    return "left as it is" if scores.fallback is None else f"left to {scores.fallback}"
