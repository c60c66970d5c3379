"""Comparison of two reports of the same work: what became slower, beyond noise.

A change counts if its bootstrap interval excludes 1 and the ratio of medians exceeds the threshold: the first condition
alone would report tiny regressions, the second alone an unlucky run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.benchmarking.statistics import Interval, ratio_of_medians
from trtkit.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.benchmarking.report import Report

    Key = tuple[str, str, str]

Verdict = Literal["regression", "improvement", "noise", "too few samples"]
THRESHOLD = 0.05
FEWEST_SAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Change(Interval):
    """Change of a metric: after / before."""

    case: str
    contender: str
    metric: str
    verdict: Verdict


@dataclass(frozen=True)
class Diff:
    """Changes between two reports. differences: descriptions of other differences."""

    threshold: float
    relative_to: str | None
    rows: tuple[Change, ...]
    differences: tuple[str, ...]
    has_regression: bool


def diff_reports(before: Report, after: Report, threshold: float = THRESHOLD, relative_to: str | None = None) -> Diff:
    """Return every metric sampled in both reports, with its ratio after / before and a verdict.

    threshold: changes up to this share are ignored. relative_to: a contender in both reports that was measured in the
    same rounds; samples are divided by its own, so that a busier machine cancels out. Raises BenchError if the reports
    share nothing, or if one lacks that contender.
    """
    old, new = _samples(before), _samples(after)
    changes = []
    for key in (key for key in old if old[key] and new.get(key) and key[1] != relative_to):
        samples = [old[key], new[key]]
        if relative_to is not None:
            samples = [_relative(report, key, relative_to) for report in (old, new)]
        interval = ratio_of_medians(samples[1], samples[0])
        case, contender, metric = key
        verdict = _verdict(interval, min(map(len, samples)), threshold)
        changes.append(Change(case=case, contender=contender, metric=metric, verdict=verdict, **vars(interval)))
    if not changes:
        what = "the reports share no case that was measured for the same contender"
        raise BenchError(what, fix="compare two runs of the same command")
    has_regression = any(change.verdict == "regression" for change in changes)
    return Diff(threshold, relative_to, tuple(changes), tuple(_differences(before, after)), has_regression)


def _verdict(interval: Interval, samples: int, threshold: float) -> Verdict:
    if samples < FEWEST_SAMPLES:
        return "too few samples"
    if interval.low > 1 and interval.ratio > 1 + threshold:
        return "regression"
    if interval.high < 1 and interval.ratio < 1 / (1 + threshold):
        return "improvement"
    return "noise"


def _samples(report: Report) -> dict[Key, Sequence[float]]:
    """Return samples by case, contender and metric."""
    return {
        (case.name, result.contender, metric): values
        for case in report.cases
        for result in case.results
        for metric, values in result.samples.items()
    }


def _relative(samples: Mapping[Key, Sequence[float]], key: Key, relative_to: str) -> Sequence[float]:
    """Return samples divided by a contender's in the same rounds."""
    case, _, metric = key
    ours, others = samples[key], samples.get((case, relative_to, metric), ())
    if len(others) != len(ours):
        what = f"`{relative_to}` has no {metric} from the same rounds at {case}"
        raise BenchError(what, "--relative-to", f"run both with --compare {relative_to}")
    return [value / other for value, other in zip(ours, others, strict=True)]


def _differences(before: Report, after: Report) -> Iterator[str]:
    """Yield descriptions of other differences, which may cause a change."""
    old, new = _conditions(before), _conditions(after)
    for name, value in old.items():
        if value != new[name]:
            yield f"{name}: {value} before, {new[name]} after"


def _conditions(report: Report) -> dict[str, str | int | None]:
    """Return the conditions that should be the same in both reports."""
    machine, versions = report.provenance.machine, report.provenance.versions
    return {
        "computes": report.computes,
        "bundle": report.bundle.build_key,
        "inputs": report.inputs,
        "processor": machine.processor,
        "usable cores": machine.usable_cores,
        "threads": machine.torch_threads,
        "torch": versions.get("torch"),
        "trtkit": versions.get("trtkit"),
    }
