"""`trtkit quantize --sensitivity` and `--budget`: ranking of layers, and what happens to layers outside the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from tests.support.pages import Page, rows, svg
from trtkit.config.load import load_config
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.report.tables import number
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a text, and a config that names both."""
    return tiny_llm.save_to_quantize(tmp_path_factory.mktemp("budget")).parent


def test_sensitivity_ranks_layers_and_a_budget_writes_its_choice(
    models: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    files = ["--write", "chosen.yaml", "--html", "losses.html"]
    asked = ["--method", "int4_wo", "--budget", "8bits", *files, "-o", "q", "--json"]
    ran = trtkit("quantize", models / "m.yaml", *asked)
    assert ran.code == 0, ran.err
    scores = ran.json()["sensitivity"]
    losses = [row["loss"] for row in scores["layers"]]
    assert len(losses) == 14
    assert losses == sorted(losses, reverse=True)
    assert 0 < len(scores["kept"]) < 14
    page = Page((workspace / "losses.html").read_text(encoding="utf-8"))
    assert [svg(spec).count('aria-roledescription="circle"') for spec in page.specs] == [14, 0]
    assert len(rows(page.specs[1])) == len(scores["curve"])
    assert page.cells.count("not quantized") == len(scores["kept"])
    for row in scores["layers"]:
        place = page.cells.index(row["layer"])
        assert page.cells[place + 1 : place + 3] == ["int4_wo", number(row["loss"]).text]
    assert next(point["loss"] for point in scores["curve"]) >= scores["loss"]
    chosen = load_config("chosen.yaml")
    assert chosen.quantize is not None
    assert set(chosen.quantize.exclude) == set(scores["kept"])
    source = open_hf_folder(workspace / "q")
    found = [name for name in source.checkpoint if isinstance(source.checkpoint[name], QuantizedMatrix)]
    assert len(found) == 14 - len(scores["kept"])


def test_layers_that_a_budget_leaves_may_have_another_method(
    models: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    """The layers that lose most in fp8 are kept in int8 with 16-bit inputs, and the loss of the mix is measured."""
    asked = ["quantize", models / "m.yaml", "--method", "fp8"]
    whole = trtkit(*asked, "--sensitivity", "-o", "whole", "--json").json()["sensitivity"]
    budget = f"{whole['loss'] / 2:.9f}nats"
    mix = ["--budget", budget, "--fallback", "int8_wo", "--write", "mix.yaml", "--html", "mix.html"]
    ran = trtkit(*asked, *mix, "-o", "q", "--json")
    assert ran.code == 0, ran.err
    scores = ran.json()["sensitivity"]
    page = Page((workspace / "mix.html").read_text(encoding="utf-8"))
    assert page.cells.count("left to int8_wo") == len(scores["kept"])
    assert 0 < scores["loss"] < whole["loss"]
    chosen = load_config("mix.yaml")
    assert chosen.quantize is not None
    assert chosen.quantize.layers == dict.fromkeys(scores["kept"], "int8_wo")
    source = open_hf_folder(workspace / "q")
    matrices = [m for name in source.checkpoint if isinstance(m := source.checkpoint[name], QuantizedMatrix)]
    assert {name for name in scores["kept"] if name.endswith((".q", ".gate"))}  # whole groups that share inputs
    assert sum(matrix.format == "int8" for matrix in matrices) == len(scores["kept"]) > 0
    assert sum(matrix.format == "fp8" for matrix in matrices) == 14 - len(scores["kept"]) > 0
