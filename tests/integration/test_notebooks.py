"""The notebooks under examples/ run cell by cell, and their last values display as in a notebook."""

from __future__ import annotations

import ast
import html
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.pages import Page

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
# What each notebook shows: pages, and pictures.
SHOWN = {"plan": (1, 0), "vision": (2, 1), "language": (2, 0)}


def cells(name: str) -> list[dict[str, Any]]:
    data = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
    every: list[dict[str, Any]] = data["cells"]
    assert len({cell["id"] for cell in every}) == len(every)
    return every


def run(source: str, names: dict[str, Any]) -> object:
    """Run a cell as Jupyter does, and return its last expression's value."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_every_notebook_is_here_without_outputs() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SHOWN)
    for name in SHOWN:
        for cell in cells(name):
            if cell["cell_type"] == "code":
                assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.parametrize(
    "name", ["plan", *(pytest.param(name, marks=pytest.mark.slow) for name in SHOWN if name != "plan")]
)
def test_a_notebook_runs_and_shows_its_results(name: str, workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    pages = pictures = 0
    for cell in cells(name):
        if cell["cell_type"] != "code":
            continue
        value = run("".join(cell["source"]), names)
        if hasattr(value, "_repr_html_"):
            ((source, text),) = re.findall(
                r'<iframe srcdoc="([^"]*)".*?><pre>(.*)</pre></iframe>', value._repr_html_(), re.S
            )
            Page(html.unescape(source))
            assert html.unescape(text) == str(value)  # for viewers that remove frames
            pages += 1
        if hasattr(value, "_repr_png_"):
            with Image.open(io.BytesIO(value._repr_png_())) as picture:
                assert min(picture.size) > 100
            pictures += 1
    assert (pages, pictures) == SHOWN[name]
    if name == "vision":
        printed = capsys.readouterr().out
        assert "espresso" in printed
        assert printed.rstrip().endswith("True")
