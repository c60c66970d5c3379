"""`trtkit quantize` refuses what a vision model cannot have before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import models
from tests.quantized_vision import small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG = "source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\nquantize: {method: int8_wo}\n"
REFUSED = [
    (["--method", "fp8", "--target", "sm86"], "type fp8 needs SM89: not on sm86"),
    (["--sensitivity"], "only layers of language models are scored one by one"),
    (["--budget", "5bits"], "leave out --sensitivity, --budget and --html"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_a_vision_model_is_refused_before_any_work(
    words: list[str], said: str, workspace: Path, refuses: Callable[..., str]
) -> None:
    models.save(small(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text(CONFIG, encoding="utf-8")
    assert said in refuses("quantize", "m.yaml", *words, "--out", "q", "-q", code=2)
