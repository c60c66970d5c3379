"""The HTML report: well formed, complete, safe; in a browser, where there is one, the legend hides a series."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.bench_reports import llm_report, timed, vision_report
from tests.unit.report.test_verification import Checker
from trtkit.benchmarking.records import RequestTimes
from trtkit.benchmarking.report import Ratio
from trtkit.report.benchmark import html_report
from trtkit.report.plots import Axis, axis_of

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.benchmarking.report import Report

REQUESTS = (
    RequestTimes(0.0, 5.0, 40.0, (20.0, 30.0, 40.0), 3, ""),
    RequestTimes(9.0, 9.0, 12.0, (), 3, "out of memory"),
)
RATIO = Ratio(metric="latency", numerator="a", denominator="b", ratio=1.5, low=1.25, high=1.75)


def checked(report: Report) -> Checker:
    page = Checker()
    page.feed(html_report(report))
    assert page.open == []
    return page


def test_a_page_says_what_computes_and_that_nothing_was_verified() -> None:
    page = checked(vision_report(timed("a", [20.0, 21, 22]), timed("b", [10.0, 11, 12]), ratios=(RATIO,)))
    text = " ".join(page.text)
    for part in ("bench tiny", "UNVERIFIED: never", "a on CPU", "b on CPU", "not steady", "1.25", "trtkit bench x"):
        assert part in text
    assert "2 cores" in text


def test_plots_have_every_sample_case_and_call() -> None:
    page = checked(vision_report(timed("a", [20.0, 21, 22]), timed("b", [10.0, 11, 12])))
    tags = [tag for tag, _ in page.seen]
    assert tags.count("svg") == 1 + 1 + 2  # the curve, a distribution, a timeline each
    assert tags.count("circle") == 2 + 6
    assert tags.count("rect") == 6
    assert "a on CPU: 33.3% within 20 ms" in page.text


def test_a_timeline_shows_waiting_first_token_and_failure() -> None:
    page = checked(llm_report(*REQUESTS))
    bars = [attributes["class"] for tag, attributes in page.seen if tag == "rect"]
    assert bars == ["wait", "first", "tokens", "failed"]
    assert {"not sent for 5 ms", "first token after 20 ms", "3 tokens, 40 ms in all", "out of memory"} <= set(page.text)


def test_marks_stay_inside_and_slower_ones_stand_further_right() -> None:
    page = checked(vision_report(timed("a", [10.0, 100, 1000])))
    circles = [(float(str(c["cx"])), float(str(c["cy"]))) for tag, c in page.seen if tag == "circle"][1:]
    assert [x for x, _ in circles] == sorted(x for x, _ in circles)
    assert circles[1][0] - circles[0][0] == pytest.approx(circles[2][0] - circles[1][0], abs=0.2)  # logarithmic
    assert all(64 <= x <= 960 and 12 <= y <= 260 for x, y in circles)


def test_names_cannot_inject_markup() -> None:
    evil = "<script>alert('x')</script>"
    page = checked(vision_report(timed(evil, [1.0, 2]), name=evil, inputs=evil))
    assert [tag for tag, _ in page.seen].count("script") == 1  # the page's own
    assert evil in page.text


@pytest.mark.parametrize("is_log", [True, False])
def test_ticks_are_round_and_inside(is_log: bool) -> None:
    axis = axis_of([3.0, 47.0], "ms", is_log=is_log)
    assert axis.ticks() == ([5, 10, 20] if is_log else [0, 10, 20, 30, 40])
    assert Axis(1, 1, "x").share(1) == 0.5


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_browser_runs_the_page_and_the_legend_hides_a_series(tmp_path: Path) -> None:
    page = html_report(vision_report(timed("a", [20.0, 21]), timed("b", [10.0, 11])))
    click = "<script>document.querySelectorAll('[data-toggle]')[1].click()</script></body>"
    (tmp_path / "r.html").write_text(page.replace("</body>", click))
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    done = subprocess.run([*words, str(tmp_path / "r.html")], capture_output=True, text=True, check=True, timeout=100)
    assert 'data-series="1" class="hidden"' in done.stdout
    assert done.stdout.count('class="hidden"') == 1
    assert "Uncaught" not in done.stderr
