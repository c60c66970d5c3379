"""The page of a benchmark: complete without JavaScript, charts that draw; a browser, where there is one, runs it."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.bench_reports import llm_report, timed, vision_report
from tests.support.pages import Page, rows_with, svg
from trtkit.benchmarking.metrics import RequestTimes
from trtkit.benchmarking.report import Ratio
from trtkit.report.benchmark import html_report

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.benchmarking.report import Report

REQUESTS = (
    RequestTimes(0.0, 5.0, 40.0, (20.0, 30.0, 40.0), 3, ""),
    RequestTimes(9.0, 9.0, 12.0, (), 3, "out of memory"),
)
RATIO = Ratio(metric="latency", numerator="a", denominator="b", ratio=1.5, low=1.25, high=1.75)


def two() -> Report:
    return vision_report(timed("a", [20.0, 21, 22]), timed("b", [10.0, 11, 12]), ratios=(RATIO,))


def test_a_page_says_what_computes_and_that_nothing_was_verified() -> None:
    text = Page(html_report(two())).text
    for part in (
        "bench tiny",
        "UNVERIFIED: never",
        "a on CPU",
        "b on CPU",
        "not steady",
        "trtkit bench x",
        "build key",
    ):
        assert part in text
    assert "2 cores" in text


def test_figures_stand_in_tables_with_their_units() -> None:
    page = Page(html_report(two()))
    assert {"20 ms", "21 ms", "22 ms", "11 ms", "1.500", "1.250 to 1.750"} <= set(page.cells)


def test_charts_have_every_sample_case_call_and_interval_and_draw() -> None:
    loads, ratios, latency, *timelines = Page(html_report(two())).specs
    assert len(rows_with(loads, "contender")) == 2
    assert [(row["low"], row["value"], row["high"]) for row in rows_with(ratios, "value")] == [(1.25, 1.5, 1.75)]
    assert [row["Samples"] for row in rows_with(latency, "share")][:1] == ["33.3 % within 20 ms"]
    assert [len(rows_with(spec, "start")) for spec in timelines] == [3, 3]
    for spec in (loads, ratios, latency, *timelines):
        drawn = svg(spec)
        assert any(f'aria-roledescription="{mark}"' in drawn for mark in ("line mark", "circle", "bar"))
        assert "NaN" not in drawn


def test_a_timeline_shows_waiting_first_token_and_failure() -> None:
    timeline = Page(html_report(llm_report(*REQUESTS))).specs[-1]
    bars = [(row["stage"], row["Time"]) for row in rows_with(timeline, "start")]
    assert bars == [
        ("waiting to be sent", "5 ms"),
        ("until the first token", "20 ms since due"),
        ("tokens", "3 tokens, 40 ms in all"),
        ("failed", "out of memory"),
    ]
    assert svg(timeline).count('aria-roledescription="bar"') == 4


def test_names_cannot_inject_markup() -> None:
    evil = "<script>alert('x')</script>"
    page = Page(html_report(vision_report(timed(evil, [1.0, 2]), name=evil, inputs=evil)))
    assert [tag for tag, _ in page.tags].count("script") == len(page.specs) + 2
    assert evil in page.cells


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_browser_draws_the_charts_and_sorts_a_table(tmp_path: Path) -> None:
    html = html_report(two())
    click = "<script>document.querySelectorAll('.sortable thead th')[2].click()</script>"
    (tmp_path / "r.html").write_text(html + click)
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    words += ["--virtual-time-budget=10000", "--host-resolver-rules=MAP * ~NOTFOUND"]
    done = subprocess.run([*words, str(tmp_path / "r.html")], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.count('<svg xmlns="http') == len(Page(html).specs)
    assert done.stdout.count('aria-sort="ascending"') == 1
    assert re.findall(r">([\d.]+ ms)</td>", done.stdout)[0] == "11 ms"  # the faster contender comes first
    assert "Uncaught" not in done.stderr
