"""The HTML report: well formed, complete, and safe with names that look like markup."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from typing import Any

import pytest

from tests import reports
from tests.reports import layer
from trtkit.report.verification import html_report
from trtkit.verification.report import Agreement, Corner, Report, WorstSlice

VOID = {"meta"}


class Checker(HTMLParser):
    """Collects text and attributes; fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "outputs": {"logits": reports.output(0.001, worst_slice=WorstSlice(1, 17, 0.98))},
        "corners": (Corner("profile 0 min", {"x": (1, 3)}, False, math.inf),),
        "layers": (layer("stem", 1e-4, 3.0), layer("wrong one", math.inf, 1e6), layer("head", 0.0, 0.0, dtype="fp32")),
    }
    return reports.report(**{**fields, **changes})


def checked(report: Report) -> Checker:
    page = Checker()
    page.feed(html_report(report))
    assert page.open == []
    return page


def test_the_page_is_well_formed_and_names_every_layer() -> None:
    page = checked(report())
    text = " ".join(page.text)
    for name in (
        "verify tiny",
        "right",
        "stem",
        "wrong one",
        "head",
        "logits",
        "profile 0 min",
        "x [1, 3]",
        "axis 1, index 17: 9.8e-01",
    ):
        assert name in text


def test_both_plots_have_a_mark_for_every_layer() -> None:
    page = checked(report())
    assert sum(tag == "svg" for tag, _ in page.seen) == 2
    circles = [attributes for tag, attributes in page.seen if tag == "circle"]
    assert [circle["class"] for circle in circles] == ["low", "wrong", ""] * 2
    assert page.text.count("wrong one (convolution fp16): inf") == 1
    assert page.text.count("wrong one (convolution fp16): 1e+06") == 1


def test_marks_stay_inside_the_plot() -> None:
    page = checked(report())
    heights = [float(str(attributes["cy"])) for tag, attributes in page.seen if tag == "circle"]
    assert all(12 <= y <= 232 for y in heights)
    assert heights[1] == 12  # infinite: at the top


def test_larger_errors_stand_higher() -> None:
    layers = (layer("a", 1e-6), layer("b", 1e-4), layer("c", 1e-2))
    page = checked(report(layers=layers))
    low, middle, high = [float(str(item["cy"])) for tag, item in page.seen if tag == "circle"][:3]
    assert low > middle > high
    assert low - middle == pytest.approx(middle - high, abs=0.2)


def test_names_cannot_inject_markup() -> None:
    evil = "<script>alert('x')</script> & \"quoted\""
    page = checked(report(name=evil, layers=(layer(evil, 0.1),)))
    assert "script" not in {tag for tag, _ in page.seen}
    assert evil in page.text


def test_a_report_without_layers_corners_and_task_has_outputs_only() -> None:
    page = checked(report(layers=(), corners=(), task=Agreement(), passed=False))
    assert "svg" not in {tag for tag, _ in page.seen}
    assert "out of tolerance" in page.text
