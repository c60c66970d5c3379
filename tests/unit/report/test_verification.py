"""The page of a verification: complete without JavaScript, safe with names that look like markup, charts that draw."""

from __future__ import annotations

import base64
import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tests.support import reports
from tests.support.pages import Page, rows_with, svg
from tests.support.reports import layer
from trtkit.report.page import PageOrigin
from trtkit.report.verification import html_report
from trtkit.runtime.tasks.answers import Box
from trtkit.verification.report import Agreement, ComparedPicture, Corner, Report, WorstSlice
from trtkit.verification.verdict import verdict

if TYPE_CHECKING:
    from pathlib import Path

ORIGIN = PageOrigin("trtkit verify tiny --html r.html", "bundles/tiny, build key 1234")
LAYERS = (
    layer("stem", 1e-4, 3.0, smallest=1e-3),
    layer("wrong one", math.inf, 1e6),
    layer("far", 0.5),
    layer("head", 0.0, 0.0, dtype="fp32"),
    layer("sum", 1e-3, 1e6, dtype="fp32"),
)


def report(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "outputs": {"logits": reports.output(0.001, worst_slice=WorstSlice(1, 17, 0.98))},
        "corners": (Corner("profile 0 min", {"x": (1, 3)}, False, math.inf),),
        "layers": LAYERS,
    }
    return reports.report(**{**fields, **changes})


def page_of(report: Report) -> Page:
    return Page(html_report(report, ORIGIN))


def test_every_value_stands_in_a_table() -> None:
    page = page_of(report())
    for cell in ("stem", "wrong one", "head", "logits", "profile 0 min", "x [1, 3]", "axis 1, index 17: 9.8e-01"):
        assert cell in page.cells
    assert {"1.00e-03", "5.00e-01", "0.99900000", "inf", "1e+06", "25.0%"} <= set(page.cells)


def test_a_corner_names_the_outputs_that_are_out_of_tolerance() -> None:
    wrong = Corner("profile 0 max", {"x": (8, 3)}, False, 0.5, WorstSlice(1, 17, 0.98), outputs=("boxes", "scores"))
    assert "boxes, scores: axis 1, index 17: 9.8e-01" in page_of(report(corners=(wrong,))).cells


def test_the_title_has_the_verdict_and_the_end_says_where_figures_come_from() -> None:
    for passed in (True, False):
        one = report(passed=passed)
        page = page_of(one)
        assert f"verify tiny: {verdict(one)}" in page.text.replace(" : ", ": ")
    assert {ORIGIN.command, ORIGIN.bundle, ORIGIN.date, ORIGIN.versions} <= set(page.cells)


def test_charts_have_each_layer_with_its_name_and_draw() -> None:
    errors, ranges = page_of(report()).specs
    kinds = {row["Layer"]: row["kind"] for row in rows_with(errors, "error")}
    assert kinds == {"stem": "within tolerance", "wrong one": "not finite", "far": "above tolerance", "head": "equal",
                     "sum": "within tolerance"}  # fmt: skip
    assert {row["Layer"]: row["kind"] for row in rows_with(ranges, "largest")} == {
        "stem": "fits fp16",
        "wrong one": "overflows fp16",
        "far": "fits fp16",
        "sum": "beyond fp16, in a wider type",
    }
    for spec, marks in ((errors, 5), (ranges, 4)):
        drawn = svg(spec)
        assert drawn.count('aria-roledescription="circle"') == marks
        assert "layer, in the network's order" in drawn
        assert "Infinity" not in drawn
        assert "NaN" not in drawn


def test_what_is_zero_or_infinite_stands_at_the_ends() -> None:
    (errors, _) = page_of(report()).specs
    heights = {row["Layer"]: row["error"] for row in rows_with(errors, "error")}
    assert 0 < heights["head"] < heights["stem"] < heights["far"] < heights["wrong one"] < math.inf


def test_answers_have_the_names_of_their_classes() -> None:
    task = Agreement("top-1", 0.5, 1.0, None, ((1, 1), (2, 3)), {"1": "cat", "2": "dog"})
    page = page_of(report(task=task))
    assert {"cat (1)", "dog (2)", "3"} <= set(page.cells)
    assert "50.0 % equal (top-1), 100.0 % required" in page.text


def test_pictures_of_the_samples_are_inlined(tmp_path: Path) -> None:
    for name in ("cat.png", "other.png"):
        Image.new("RGB", (900, 600), "red").save(tmp_path / name)
    pictures = (ComparedPicture("cat.png", str(tmp_path / "cat.png")),)
    page = page_of(report(samples=("cat.png", "array.npz"), pictures=pictures))
    (picture,) = [attributes for tag, attributes in page.tags if tag == "img"]
    assert picture["alt"] == "cat.png"
    data = base64.b64decode(str(picture["src"]).removeprefix("data:image/jpeg;base64,"))
    assert Image.open(io.BytesIO(data)).size == (320, 213)


def test_boxes_of_both_sides_are_drawn_on_the_picture(tmp_path: Path) -> None:
    """A picture of 1280 pixels becomes one of 640: corners at half of their places."""
    Image.new("RGB", (1280, 640), "black").save(tmp_path / "street.png")
    ours, theirs = Box((200, 200, 400, 400), 0.9, 1, "cat"), Box((800, 200, 1000, 400), 0.8, 1, "cat")
    pictures = (ComparedPicture("street.png", str(tmp_path / "street.png"), (ours,), (theirs, theirs)),)
    page = page_of(report(samples=("street.png",), pictures=pictures))
    (picture,) = [attributes for tag, attributes in page.tags if tag == "img"]
    data = base64.b64decode(str(picture["src"]).removeprefix("data:image/jpeg;base64,"))
    pixels = np.asarray(Image.open(io.BytesIO(data)), np.int32)
    assert pixels.shape == (320, 640, 3)
    red, _, blue = pixels[150, 101]
    assert blue > red + 60  # the color of class 1
    assert pixels[150, 400].min() > 120  # white
    assert pixels[150, 250].max() < 40
    assert "street.png: 1 box, reference 2" in page.text


def test_names_cannot_inject_markup() -> None:
    evil = "<script>alert('x')</script> & \"quoted\""
    page = page_of(report(name=evil, layers=(layer(evil, 0.1),)))
    assert [tag for tag, _ in page.tags].count("script") == len(page.specs) + 2  # the library, and the page's own
    assert evil in page.cells
    assert [row["Layer"] for row in rows_with(page.specs[0], "error")] == [evil]


def test_a_report_without_layers_corners_and_task_has_outputs_only() -> None:
    html = html_report(report(layers=(), corners=(), task=Agreement()), ORIGIN)
    page = Page(html)
    assert page.specs == []
    assert len(html) < 20_000  # without the library
    assert "Profile corners" not in page.text
