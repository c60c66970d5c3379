"""What quantizing each layer costs, as one HTML page: layers ranked, and loss against size."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from trtkit.bench.plots import SCRIPT, Point, Series, axis_of, plot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = dict[str, Any]
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1040px; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
th { border-bottom: 1px solid #ccc; font-weight: 600 }
svg { background: #fafafa; border: 1px solid #ddd } .axis { stroke: #e2e2e2 } polyline { fill: none }
text { font: 11px system-ui; fill: #555 } circle:hover { r: 6 } g.hidden { display: none } button.off { opacity: .3 }
.legend button { border: 0; background: none; font: inherit; cursor: pointer }
"""
_LEAST = 1e-9


def sensitivity_page(name: str, scores: Json) -> str:
    """Return a page of `Scores` as data. name: of the model."""
    title = f"quantize {escape(name)}"
    kept, count = len(scores["kept"]), len(scores["layers"])
    said = f"{count - kept} of {count} layers quantized: {scores['loss']:.3g} nats a token"
    body = [f"<h1>{title}</h1><p>{said}</p>", *_ranked(scores), *_by_size(scores), *_table(scores)]
    head = f"<meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
    script = f"<script>{SCRIPT}</script>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(body)}{script}</body></html>\n"


def _ranked(scores: Json) -> Iterator[str]:
    """Yield the losses of single layers, the largest first: a series for each method, one for layers left alone."""
    series: dict[str, list[Point]] = {}
    for rank, row in enumerate(scores["layers"], 1):
        key = "left as it is" if row["layer"] in scores["kept"] else row["method"]
        label = f"{row['layer']}, {row['method']}: {row['loss']:.3g} nats"
        series.setdefault(key, []).append(Point(rank, max(row["loss"], _LEAST), label))
    y = axis_of([point.y for points in series.values() for point in points], "loss, nats a token", is_log=True)
    x = axis_of([float(len(scores["layers"]))], "rank")
    drawn = plot([Series(key, points, is_line=False) for key, points in series.items()], x, y)
    yield f"<h2>One layer quantized alone</h2>{drawn}"


def _by_size(scores: Json) -> Iterator[str]:
    """Yield loss over the size of all linear layers, as budgets would leave the costliest alone."""
    points = [
        Point(
            each["mib"], max(each["loss"], _LEAST), f"{each['kept']} layers left as they are: {each['loss']:.3g} nats"
        )
        for each in scores["curve"]
    ]
    y = axis_of([point.y for point in points], "loss, nats a token", is_log=True)
    drawn = plot([Series("budgets", points)], axis_of([point.x for point in points], "linear layers, MiB"), y)
    yield f"<h2>Loss against size</h2>{drawn}"
    rows = [(each["kept"], f"{each['mib']:.1f}", f"{each['loss']:.3g}") for each in scores["curve"]]
    yield _rows(("layers left as they are", "MiB", "loss, nats a token"), rows)


def _table(scores: Json) -> Iterator[str]:
    rows = [
        (
            rank,
            row["layer"],
            row["method"],
            f"{row['loss']:.3g}",
            f"{row['bits']:g}",
            row["weights"],
            _kept(scores, row),
        )
        for rank, row in enumerate(scores["layers"], 1)
    ]
    yield f"<h2>Layers</h2>{_rows(('', 'layer', 'method', 'loss', 'bits of a weight', 'weights', ''), rows)}"


def _kept(scores: Json, row: Json) -> str:
    return "left as it is" if row["layer"] in scores["kept"] else ""


def _rows(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
