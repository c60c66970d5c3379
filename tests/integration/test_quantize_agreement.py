"""The reference executor on quantized networks against ModelOpt's fake quantization of the same models."""

from __future__ import annotations

import math
import pydoc_data.topics
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from benchmarks.quantize_agreement import QUIET, executed, faked, quantized
from tests.support import tiny_llm
from trtkit.config.load import load_config
from trtkit.sources.decoder_source import open_decoder_source
from trtkit.sources.huggingface.model import encoder
from trtkit.verification.perplexity import mean_loss

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.config.schema import ModelConfig


def both(
    config: ModelConfig, windows: np.ndarray[tuple[int, int], np.dtype[np.int64]], folder: Path
) -> list[torch.Tensor]:
    """Return the logits of ModelOpt's model, and of the network that TensorRT builds of its checkpoint."""
    made = quantized(config)
    want = torch.stack(list(faked(made, windows)))
    made.write(config, folder, QUIET)
    return [want, torch.stack(list(executed(config, folder, windows)))]


@pytest.mark.parametrize(
    "method", ["int8_sq", "fp8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("int8", "fp8_pc"))]
)
def test_a_network_computes_what_modelopt_fakes(method: str, tmp_path: Path) -> None:
    config = load_config(str(tiny_llm.save_to_quantize(tmp_path)), [f"quantize.method={method}"])
    windows = np.random.default_rng(0).integers(6, 320, (2, 48))
    want, got = both(config, windows, tmp_path / "out")
    errors = (got - want).norm(dim=-1) / want.norm(dim=-1)
    assert errors.median() < 1e-5
    assert errors.max() < 0.1  # a code between two values flips, and moves its token


@pytest.mark.slow
def test_smollm2s_perplexity_is_modelopts_within_half_a_percent(tmp_path: Path) -> None:
    """Inputs are rounded in the last blocks only: each flipped rounding would move all that follows."""
    text = "\n".join(pydoc_data.topics.topics.values())
    (tmp_path / "text.txt").write_text(text[200_000:210_000], encoding="utf-8")
    layers = 'layers={"layers.28.*": fp8, "layers.29.*": int8}'
    data = [f"calibration.data={tmp_path / 'text.txt'}", "calibration.samples=2", "calibration.length=128"]
    config = load_config("llama", [f"quantize.{key}" for key in ("method=int8_wo", layers, *data)], "sm89")
    windows = np.array(encoder(open_decoder_source(config.source)).encode(text[:4000])[:512]).reshape(2, 256)
    want, got = (
        math.exp(sum(mean_loss(logits, ids.tolist()) for logits, ids in zip(found, windows, strict=True)) / 2)
        for found in both(config, windows, tmp_path / "out")
    )
    assert got == pytest.approx(want, rel=0.005)
