"""docs/field.md: its figures are those that plans count, and its commands run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.docs import DOCS, run_page
from tests.unit.planning.planned import published_model
from trtkit.planning.gpus import find_gpus
from trtkit.report.tables import size_text

PAGE = DOCS / "field.md"
_FIGURE = re.compile(r"^\| ([^|]+) \| [^|]+ \| ([\d.]+[ \w]*) \|$", re.MULTILINE)


def test_figures_are_those_that_plans_count() -> None:
    opt_175b, opt_13b, llama = (published_model(name) for name in ("opt-175b", "opt-13b", "llama-2-7b"))
    a100, h100 = find_gpus(["a100-80", "h100"])
    assert [value for _, value in _FIGURE.findall(PAGE.read_text(encoding="utf-8"))] == [
        size_text(opt_175b.weight_bytes),
        size_text(opt_175b.kv_bytes_per_token * 512 * (512 + 32)),
        size_text(opt_13b.kv_bytes_per_token),
        size_text(llama.kv_bytes_per_token),
        f"{a100.ridge('fp16'):.1f}",
        f"{h100.ridge('bf16'):.1f}",
        f"{70e9 * 1.58 / 8 / 2**30:.2f} GiB",
    ]


@pytest.mark.slow
def test_commands_run(tmp_path: Path) -> None:
    run_page(PAGE, tmp_path)
    assert '"kv_bytes_per_token": 819200' in (tmp_path / "opt-13b.json").read_text()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("opt-6.7b", 6.7e9),
        ("opt-13b", 13e9),
        ("opt-30b", 30e9),
        ("opt-175b", 175e9),
        ("llama-3.1-70b", 70.6e9),
        ("qwen3-0.6b", 0.6e9),
        ("qwen3-4b", 4.0e9),
        ("qwen3-8b", 8.2e9),
        ("qwen3-32b", 32.8e9),
        ("qwen3-30b-a3b", 30.5e9),
    ],
)
def test_published_models_have_the_parameters_in_their_names(name: str, parameters: float) -> None:
    assert published_model(name).parameters == pytest.approx(parameters, rel=0.02)
