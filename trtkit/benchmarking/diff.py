"""Two reports of the same work: what became slower, and whether that is more than noise.

A change counts where its bootstrap interval leaves out 1 and the ratio of medians is beyond the threshold: the first
alone would call a hair's breadth a regression, the second alone an unlucky run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trtkit.benchmarking.intervals import ratio_of_medians
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.intervals import Interval

Json = dict[str, Any]
Verdict = Literal["regression", "improvement", "noise", "too few samples"]
THRESHOLD = 0.05
FEWEST_SAMPLES = 5


def diff_reports(before: Json, after: Json, threshold: float = THRESHOLD, relative_to: str | None = None) -> Json:
    """Return every metric that both reports have samples of, with its ratio after / before and a verdict.

    threshold: a change up to this share is none. relative_to: a contender of both reports that was measured in the
    same rounds; samples are taken as multiples of its own, so that a machine that is busier now cancels out.
    Raises BenchError where the reports share nothing, or one lacks that contender.
    """
    rows = []
    for name, contender, metric, *samples in _shared(before, after):
        if contender == relative_to:
            continue
        compared = samples
        if relative_to is not None:
            pairs = zip((before, after), samples, strict=True)
            compared = [_relative(found, name, relative_to, metric, own) for found, own in pairs]
        interval = ratio_of_medians(compared[1], compared[0])
        verdict = _verdict(interval, min(map(len, compared)), threshold)
        rows.append({"case": name, "contender": contender, "metric": metric, **interval.to_json(), "verdict": verdict})
    if not rows:
        what = "the reports have no case in common that the same contender was measured at"
        raise BenchError(what, fix="compare two runs of one command")
    return {
        "threshold": threshold,
        "relative_to": relative_to,
        "rows": rows,
        "differences": _differences(before, after),
        "has_regression": any(row["verdict"] == "regression" for row in rows),
    }


def _verdict(interval: Interval, samples: int, threshold: float) -> Verdict:
    if samples < FEWEST_SAMPLES:
        return "too few samples"
    if interval.low > 1 and interval.ratio > 1 + threshold:
        return "regression"
    if interval.high < 1 and interval.ratio < 1 / (1 + threshold):
        return "improvement"
    return "noise"


def _shared(before: Json, after: Json) -> list[tuple[str, str, str, list[float], list[float]]]:
    """Return case, contender, metric and both samples of what both reports have."""
    old, new = _samples(before), _samples(after)
    return [(*key, old[key], new[key]) for key in old if new.get(key) and old[key]]


def _samples(found: Json) -> dict[tuple[str, str, str], list[float]]:
    try:
        return {
            (case["name"], result["contender"], metric): [float(value) for value in values]
            for case in found["cases"]
            for result in case["results"]
            for metric, values in result["samples"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        fix = "give a file that `trtkit bench --out` wrote"
        raise BenchError(f"a report is damaged: {error}", fix=fix) from None


def _relative(found: Json, case: str, contender: str, metric: str, samples: Sequence[float]) -> list[float]:
    """Return samples as multiples of a contender's in the same rounds."""
    others = _samples(found).get((case, contender, metric), [])
    if len(others) != len(samples):
        what = f"`{contender}` has no {metric} of the same rounds at {case}"
        raise BenchError(what, "--relative-to", f"run both with --compare {contender}")
    return [own / other for own, other in zip(samples, others, strict=True)]


def _differences(before: Json, after: Json) -> list[str]:
    """Return in words what else is not the same, which a change may come from."""
    said = []
    for name, path in _SAME.items():
        old, new = (_at(found, path) for found in (before, after))
        if old != new:
            said.append(f"{name}: {old} before, {new} after")
    return said


_SAME = {
    "computes": ("computes",),
    "bundle": ("bundle", "build_key"),
    "inputs": ("inputs",),
    "processor": ("provenance", "machine", "processor"),
    "usable cores": ("provenance", "machine", "usable_cores"),
    "threads": ("provenance", "machine", "torch_threads"),
    "torch": ("provenance", "versions", "torch"),
    "trtkit": ("provenance", "versions", "trtkit"),
}


def _at(found: Any, path: Sequence[str]) -> Any:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
