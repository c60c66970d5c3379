"""A report as CSV: a line for each figure."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.benchmarking.report import Report, Result

_STATISTICS = ("avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std", "count")
_CEILING = ("ceiling", "reached", "bound")
_HEAD = ("name", "case", "contender", "computes", "metric", "unit")


def csv_text(report: Report) -> str:
    """Return a line for each figure: case, contender, what computes, metric, statistics, ceiling, verification."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*_HEAD, *_STATISTICS, *_CEILING, "is_steady", "verification"])
    for case in report.cases:
        for result in case.results:
            for figures in _figures(result):
                head = [report.name, case.name, result.contender, result.computes]
                rows.writerow([*head, *figures, result.is_steady, report.bundle.verification])
    return out.getvalue()


def _figures(result: Result) -> Iterator[list[object]]:
    """Yield each metric with its unit, statistics and ceiling; what it does not have is empty."""
    for name, metric in result.metrics.items():
        statistics, ceiling = vars(metric), vars(result.ceilings[name]) if name in result.ceilings else {}
        figures = [*(statistics.get(name, "") for name in _STATISTICS), *(ceiling.get(name, "") for name in _CEILING)]
        yield [name, metric.unit, *figures]
