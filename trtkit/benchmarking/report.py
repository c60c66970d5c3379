"""A report as a file: JSON with everything in it, CSV with a line for each figure."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from trtkit.errors import BenchError

Json = dict[str, Any]
SCHEMA_VERSION = 1
_STATISTICS = ("avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std", "count")
_CEILING = ("ceiling", "reached", "bound")
_FIX = "give a file that `trtkit bench --out` wrote"


def report_text(found: Json) -> str:
    """Return the report as JSON."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **found}, indent=1) + "\n"


def read_report(path: str) -> Json:
    """Return a report that was written. Raises BenchError where it is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(f"the report cannot be read: {error.strerror}", path, _FIX) from None
    except ValueError as error:
        raise BenchError(f"not a report: {error}", path, _FIX) from None
    version = found.get("schema_version") if isinstance(found, dict) else None
    if version != SCHEMA_VERSION or not isinstance(found.get("cases"), list):
        raise BenchError(f"not a report of version {SCHEMA_VERSION}", path, _FIX)
    return dict(found)


def csv_text(found: Json) -> str:
    """Return a line for each figure: case, contender, what computes, metric, statistics, ceiling, verification."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(
        [
            "name",
            "case",
            "contender",
            "computes",
            "metric",
            "unit",
            *_STATISTICS,
            *_CEILING,
            "is_steady",
            "verification",
        ]
    )
    verified = found["bundle"]["verification"]
    for case in found["cases"]:
        for result in case["results"]:
            for metric, figures in result["metrics"].items():
                head = [found["name"], case["name"], result["contender"], result["computes"], metric, figures["unit"]]
                statistics = [figures.get(name, "") for name in _STATISTICS]
                against = result.get("ceilings", {}).get(metric, {})
                reached = [against.get(name, "") for name in _CEILING]
                rows.writerow([*head, *statistics, *reached, result["is_steady"], verified])
    return out.getvalue()
