"""TensorRT's words made readable: these are real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .case import Outcome
from .report import readable, write_markdown

if TYPE_CHECKING:
    from pathlib import Path

CAUSES = {
    "false": "no importer for this operator: TensorRT's parser answers `false`",
    "Assertion failed: creator && version(creator) == CreatorVersion::kV3ONE: failed to load X plugin.": (
        "failed to load X plugin"
    ),
    '(p == 1 || p == 2) && "Only L1 and L2 normalization are supported."': "Only L1 and L2 normalization are supported",
    'softcap == 0.0 && "Setting softcap is not supported in TensorRT Attention."': (
        "Setting softcap is not supported in TensorRT Attention"
    ),
    "Shape Error (unsqueeze axis is not a constant [checkMacros.cpp::catchCudaError::212] Error Code 1: Cuda": (
        "unsqueeze axis is not a constant"
    ),
    "API Usage Error (Parameter check failed, condition: a.get().kind == Kind::kNONE. Option mask is alone. [ch": (
        "Option mask is alone"
    ),
    "the parser ignores `layout=1` of RNN, GRU and LSTM": "the parser ignores `layout=1` of RNN, GRU and LSTM",
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_one_short_line(cause: str) -> None:
    assert readable(cause) == CAUSES[cause]


def test_long_causes_are_cut_between_words() -> None:
    assert readable("word " * 60) == "word " * 21 + "…"


def test_the_page_counts_all_cases_and_names_three(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    outcomes = [Outcome(f"test_case_{index}", "Op", cause="false") for index in range(5)]
    write_markdown(path, outcomes, {"versions": {"onnx": "1"}})
    assert "answers `false` | 5 | case_0, case_1, case_2 |" in path.read_text()
