"""Regression or noise: on simulated machines, on recorded samples with a slowdown put in, and on measured runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.bench_reports import llm_report, timed, vision_report
from tests.unit.benchmarking.clocks import VirtualClock
from trtkit.benchmarking.contenders import Contender
from trtkit.benchmarking.diff import diff_reports
from trtkit.benchmarking.metrics import RequestTimes
from trtkit.benchmarking.report import read_report, report_text
from trtkit.benchmarking.timing import Rules
from trtkit.benchmarking.vision import ShapeCase, measure_case
from trtkit.errors import BenchError
from trtkit.inputs.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.benchmarking.report import Report, VisionReport


def report(**samples: list[float]) -> VisionReport:
    """Return a report with one case, a contender for each keyword."""
    return vision_report(*(timed(name, values) for name, values in samples.items()))


def run(seed: int, scale: float = 1.0, count: int = 100) -> list[float]:
    """Simulate a run: log-normal latencies, slow spells, now and then a stall."""
    generator = np.random.default_rng(seed)
    spells = np.convolve(generator.normal(0, 0.03, count + 9), np.ones(10) / 3, "valid")
    stalls = np.where(generator.random(count) < 0.03, 5.0, 1.0)
    found: list[float] = (10 * scale * np.exp(spells + generator.normal(0, 0.03, count)) * stalls).tolist()
    return found


def verdict(before: list[float], after: list[float]) -> str:
    return diff_reports(report(ours=before), report(ours=after)).rows[0].verdict


def test_runs_of_the_same_thing_are_noise_and_ten_percent_is_a_regression() -> None:
    same = [verdict(run(seed), run(seed + 1000)) for seed in range(60)]
    slower = [verdict(run(seed), run(seed + 1000, 1.1)) for seed in range(60)]
    faster = [verdict(run(seed, 1.1), run(seed + 1000)) for seed in range(60)]
    assert same.count("noise") >= 58
    assert slower.count("regression") >= 57
    assert faster.count("improvement") >= 57


def test_ten_percent_put_into_recorded_samples_is_found_at_any_size() -> None:
    for count in (30, 100, 300):
        recorded = run(7, count=count)
        assert verdict(recorded, recorded) == "noise"
        assert verdict(recorded, [value * 1.1 for value in recorded]) == "regression"
        assert verdict(recorded, [value / 1.1 for value in recorded]) == "improvement"


def test_a_small_change_is_none_however_sure_it_is() -> None:
    recorded = [10 + index * 1e-4 for index in range(500)]
    changes = diff_reports(report(ours=recorded), report(ours=[value * 1.04 for value in recorded]))
    assert changes.rows[0].low > 1.03
    assert (changes.rows[0].verdict, changes.has_regression) == ("noise", False)
    strict = diff_reports(report(ours=recorded), report(ours=[value * 1.04 for value in recorded]), threshold=0.03)
    assert strict.has_regression


def test_a_busier_machine_cancels_out_against_a_contender_of_the_same_rounds() -> None:
    before, after = np.array(run(1)), np.array(run(2)) * 1.4
    own = np.random.default_rng(3).normal(2, 0.02, 100)
    old = report(ours=(before * own).tolist(), ort=before.tolist())
    new = report(ours=(after * own).tolist(), ort=after.tolist())
    assert diff_reports(old, new).has_regression
    relative = diff_reports(old, new, relative_to="ort")
    assert [row.contender for row in relative.rows] == ["ours"]
    assert relative.rows[0].verdict == "noise"
    slower = report(ours=(after * own * 1.1).tolist(), ort=after.tolist())
    assert diff_reports(old, slower, relative_to="ort").has_regression


def test_few_samples_prove_nothing() -> None:
    assert verdict([1.0] * 4, [2.0] * 4) == "too few samples"


def measured_runs(clock: VirtualClock, **seconds: float) -> list[VisionReport]:
    """Return a report for each, measured in the same rounds on a clock where nothing takes quite what it should."""
    noise = np.random.default_rng(0)

    def wait(name: str, usual_s: float) -> Contender:
        run = lambda _inputs: (clock.sleep(usual_s * noise.uniform(1, 1.06)), {"y": np.zeros(1)})[1]  # noqa: E731
        return Contender(name, "a wait", run)

    contenders = [wait(name, each) for name, each in seconds.items()]
    rules = Rules(warmup_runs=1, warmup_s=0, min_runs=30, min_s=0)
    case = measure_case(ShapeCase({"x": (1,)}), contenders, Sample("x", {}), rules)
    return [report(ours=list(result.samples["latency"])) for result in case.results]


def test_measured_runs_of_the_same_thing_are_noise_and_ten_percent_more_is_a_regression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    monkeypatch.setattr("trtkit.benchmarking.timing.WallClock", lambda: clock)
    before, again, slower = measured_runs(clock, before=0.05, again=0.05, slower=0.0555)
    assert diff_reports(before, again).rows[0].verdict == "noise"
    assert diff_reports(before, slower).rows[0].verdict == "regression"


def test_what_else_differs_is_said() -> None:
    other = replace(report(ours=run(1)), computes="ONNX Runtime, CPU")
    differences = diff_reports(report(ours=run(1)), other).differences
    assert differences == ("computes: reference executor, CPU before, ONNX Runtime, CPU after",)


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, report: VisionReport | str) -> Path:
        path = tmp_path / name
        path.write_text(report if isinstance(report, str) else report_text(report))
        return path

    return write


def test_the_command_ends_with_4_on_a_regression(files: Callable[..., Path], trtkit: Callable[..., Ran]) -> None:
    old = files("old.json", report(ours=run(1), ort=run(2)))
    new = files("new.json", report(ours=run(1, 1.2), ort=run(2)))
    assert trtkit("bench", "diff", old, old).code == 0
    ran = trtkit("bench", "diff", old, new)
    assert ran.code == 4
    assert "a regression beyond 5%" in ran.out
    assert "1.200" in ran.out
    assert trtkit("bench", "diff", old, new, "--threshold", 30).code == 0
    assert trtkit("bench", "diff", new, old).code == 0
    found = trtkit("bench", "diff", old, new, "--json")
    assert found.code == 4
    assert [row["verdict"] for row in found.json()["rows"]] == ["regression", "noise"]


@pytest.mark.parametrize(
    "report", [vision_report(timed("a", [1.0, 2.0])), llm_report(RequestTimes(0, 5, 9, (7, 9), 3, ""))]
)
def test_a_report_comes_back_equal_from_its_file(report: Report, files: Callable[..., Path]) -> None:
    assert read_report(str(files("r.json", report_text(report)))) == report


def damaged(*path: str | int, **changes: Any) -> str:
    """Return a report as JSON that lacks the field at `path`, or has others."""
    data: Any = {**report(ours=run(1)).to_json(), **changes}
    place = data
    for key in path[:-1]:
        place = place[key]
    for key in path[-1:]:
        del place[key]
    return json.dumps(data)


_FIELD = "bad.json: not a report of version 1: "


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "bad.json: not a report: Expecting property name"),
        (damaged(version=9), _FIELD + "`version` is 9"),
        (json.dumps([1]), _FIELD + "`version` is missing"),
        (damaged(kind="audio"), _FIELD + '`kind` is "audio"'),
        (damaged("cases"), _FIELD + "VisionReport: `cases` is missing"),
        (
            damaged("cases", 0, "results", 0, "samples"),
            _FIELD + "VisionReport.cases[0].results[0]: `samples` is missing",
        ),
        (
            damaged("cases", 0, "results", 0, "metrics", "latency", "p50"),
            _FIELD + "VisionReport.cases[0].results[0].metrics.latency: `p50` is missing",
        ),
        (damaged(computes=1), _FIELD + "VisionReport.computes: expected str, got '1'"),
        (
            report_text(report(theirs=[1.0] * 9)),
            "the reports share no case that was measured for the same contender",
        ),
    ],
)
def test_what_is_no_report_is_refused(data: str, message: str, files: Any, refuses: Any) -> None:
    good, bad = files("good.json", report(ours=run(1))), files("bad.json", data)
    assert refuses("bench", "diff", good, bad).replace(f"{bad.parent}/", "").startswith(message)
    assert refuses("bench", "diff", good, "nowhere").startswith("nowhere: the report cannot be read: No such file")


def test_a_contender_that_one_report_lacks_is_refused() -> None:
    with pytest.raises(BenchError) as caught:
        diff_reports(report(ours=run(1)), report(ours=run(1)), relative_to="ort")
    assert str(caught.value) == (
        "--relative-to: `ort` has no latency from the same rounds at images 1x3\nfix: run both with --compare ort"
    )
