"""`trtkit quantize` refuses settings that do not apply to vision models before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import models, tiny_llm
from tests.support.quantized_vision import small

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

CONFIG = "source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\nquantize: {method: int8_wo}\n"
REFUSED = [
    (["--method", "fp8", "--target", "sm86"], "type fp8 needs SM89: not on sm86"),
    (["--sensitivity"], "only language models can be scored layer by layer"),
    (["--budget", "5bits"], "remove --sensitivity, --budget and --html"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_a_vision_model_is_refused_before_any_work(
    words: list[str], said: str, workspace: Path, refuses: Callable[..., str]
) -> None:
    models.save(small(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text(CONFIG, encoding="utf-8")
    assert said in refuses("quantize", "m.yaml", *words, "-o", "q", "-q", code=2)


def test_a_language_model_is_refused_before_it_is_quantized(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    """Quantizing takes minutes; that the target's GPU lacks int4 is known at once."""
    config = tiny_llm.save_to_quantize(workspace)
    ran = trtkit("build", config, "--set", "quantize.method=int4_wo", "--target", "sm75")
    assert ran.code == 2
    assert "target: type int4 needs SM80: not on sm75" in ran.err
    assert "linear layers to quantize" not in ran.err
    assert not (workspace / "bundles").exists()
