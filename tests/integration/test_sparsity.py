"""2:4 sparse weights: made by SparseGPT, preserved by quantization, checked before TensorRT is told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.support import tiny_llm
from tests.support.tiny_llm import config_of
from trtkit.builder.build import build_bundle
from trtkit.builder.quantize import quantize_model
from trtkit.errors import ConfigError
from trtkit.jobs.runner import new_runner
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm, encoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

LAYERS = re.compile(r"\.(?:q|k|v|o|gate|up|down)_proj\.weight$")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.save_to_quantize(tmp_path_factory.mktemp("sparse")).parent


@pytest.fixture(scope="module")
def pruned(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a checkpoint that is pruned, and quantized by a method; each is made once."""
    made: dict[str, Path] = {}

    def make(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp("pruned") / "out"
            config = config_of(models, f"quantize.method={method}", "quantize.sparsity=2:4")
            quantize_model(config, made[method], new_runner())
        return made[method]

    return make


def matrices(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = open_hf_folder(folder).checkpoint
    return {name: np.asarray(checkpoint[name], np.float32) for name in checkpoint if LAYERS.search(name)}


@pytest.mark.parametrize("method", ["none", "int8_wo", "int4_awq", pytest.param("fp8", marks=pytest.mark.slow)])
def test_two_in_four_are_zero_in_the_checkpoint(method: str, pruned: Callable[[str], Path]) -> None:
    found = matrices(pruned(method))
    assert len(found) == 14
    for name, matrix in found.items():
        counts = np.count_nonzero(matrix.reshape(len(matrix), -1, 4), axis=2)
        assert counts.max() == 2, name


def test_what_stays_makes_up_for_what_goes(models: Path, pruned: Callable[[str], Path]) -> None:
    """Logits on the calibration text are nearer to the model's than those of pruning by magnitude."""
    source = config_of(models).source.hf
    assert source is not None
    plain, magnitude = (causal_lm(open_hf_folder(models / source)) for _ in range(2))
    for name, parameter in magnitude.named_parameters():
        if LAYERS.search(name):
            groups = parameter.detach().reshape(-1, 4)
            smallest = groups.abs().argsort(1)[:, :2]
            parameter.data = groups.scatter(1, smallest, 0.0).reshape(parameter.shape)
    calibration = config_of(models).quantize
    assert calibration is not None
    text = (models / str(calibration.calibration.data)).read_text(encoding="utf-8")
    ids = torch.tensor([encoder(open_hf_folder(models / source)).encode(text)[:256]])
    with torch.no_grad():
        wanted, by_magnitude = plain(ids).logits, magnitude(ids).logits
        by_sparsegpt = causal_lm(open_hf_folder(pruned("none")))(ids).logits
    assert (by_sparsegpt - wanted).norm() < 0.95 * (by_magnitude - wanted).norm()


def test_the_flag_is_given_for_sparse_weights_only(models: Path, pruned: Callable[[str], Path], tmp_path: Path) -> None:
    sparse = config_of(models, f"source.hf={pruned('int8_wo')}", "quantize=null", "build.sparse_weights=true")
    steps = build_bundle(sparse, tmp_path / "sparse", new_runner(), use_cache=False).bundle.manifest.steps
    assert [step.detail for step in steps if step.name == "sparsity"] == ["14 linear layers are 2:4"]
    with pytest.raises(ConfigError) as caught:
        build_bundle(
            config_of(models, "quantize=null", "build.sparse_weights=true"),
            tmp_path / "x",
            new_runner(),
            use_cache=False,
        )
    assert "14 of 14 linear layers, layers.0.attention.q," in str(caught.value)
    assert "have more than two weights in four that are not zero" in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_the_command_prunes_and_refuses(models: Path, trtkit: Callable[..., Ran], tmp_path: Path) -> None:
    config = str(models / "m.yaml")
    done = trtkit("quantize", config, "--method", "none", "--sparsity", "2:4", "-o", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert "14 layers to 2:4 by SparseGPT" in done.err + done.out
    gptq = trtkit("quantize", config, "--method", "int4_gptq", "--sparsity", "2:4", "-o", str(tmp_path / "no"))
    assert gptq.code == 2
    assert "`sparsity` cannot be combined with `int4_gptq`, which turns zeros into other numbers" in gptq.err
    vision = trtkit("build", "efficientnet-lite0", "--set", "build.sparse_weights=true", "-o", str(tmp_path / "no"))
    assert vision.code == 2
    assert "build.sparse_weights: does not apply to" in vision.err
    assert not (tmp_path / "no").exists()
