"""NVFP4 and MXFP8 are scored on what TensorRT's network computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from benchmarks.quantize_agreement import QUIET, executed, faked, quantized
from tests.support import tiny_llm
from trtkit.config.load import load_config
from trtkit.quantization.scoring.mix import Bits, Switchboard, by_loss_saved, score
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from pathlib import Path

WINDOWS = np.random.default_rng(0).integers(6, 320, (2, 48))


@pytest.mark.parametrize("method", ["nvfp4", "mxfp8"])
def test_what_is_scored_is_what_the_network_computes(method: str, tmp_path: Path) -> None:
    config = load_config(str(tiny_llm.save_to_quantize(tmp_path)), [f"quantize.method={method}"], "sm120")
    made = quantized(config)
    before = {name: weight.clone() for name, weight in made.model.state_dict().items()}
    scores = score(made, WINDOWS.tolist(), None, Bits(0), lambda *_: None)
    assert all(row.loss > 0 for row in scores.layers)
    kept = [point.kept for point in scores.curve]
    assert kept == sorted(set(kept))
    assert len(kept) == 5
    sizes = [len(group) for group in by_loss_saved(scores.layers)]  # eight: those that share inputs are left together
    assert kept == [sum(sizes[:count]) for count in (0, 1, 2, 4, 6)]
    assert kept[0] == 0 < kept[-1] < len(scores.layers)
    assert scores.curve[0].loss == scores.loss
    assert [point.mib for point in scores.curve] == sorted(point.mib for point in scores.curve)
    assert all(torch.equal(weight, before[name]) for name, weight in made.model.state_dict().items())
    switches = Switchboard(made)
    switches.only(switches.layers)
    want = torch.stack(list(faked(made, WINDOWS)))
    weights = {
        layer.module: made.model.get_submodule(layer.module).weight.detach().clone() for layer in switches.layers
    }
    switches.restore()
    made.write(config, tmp_path / "out", QUIET)
    stored = open_hf_folder(tmp_path / "out").checkpoint
    for module, weight in weights.items():
        matrix = stored[f"{module}.weight"]
        assert isinstance(matrix, QuantizedMatrix)
        assert np.array_equal(matrix.weights(), weight.numpy()), module
    got = torch.stack(list(executed(config, tmp_path / "out", WINDOWS)))
    errors = (got - want).norm(dim=-1) / want.norm(dim=-1)
    assert errors.median() < 1e-5
    assert errors.max() < 0.1  # a code between two values flips, and moves its token
