"""What a network is compared with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from tests.support import models
from tests.support.decoder_case import case
from tests.support.engine_decoders import config_of
from trtkit.builder.decoders import llm_options, open_decoder
from trtkit.config.schema import ModelConfig
from trtkit.errors import SourceError
from trtkit.resolve import resolve
from trtkit.sources.digest import digest_source
from trtkit.verification.decoder_reference import TransformersReference
from trtkit.verification.references import NetworkOrigin, OnnxRuntimeReference, choose_reference
from trtkit.verification.tokens_inputs import read_prompts

if TYPE_CHECKING:
    from pathlib import Path

FACTORY = """\
import torch

class Affine(torch.nn.Module):
    def forward(self, x):
        return 2 * x + 1, -x

def affine():
    return Affine()
"""


@pytest.fixture
def torch_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    (tmp_path / "affine_module.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "affine_module", raising=False)
    source = {"factory": "affine_module:affine", "inputs": {"x": {"shape": [2]}}, "outputs": ["up", "down"]}
    return ModelConfig.model_validate({"source": {"torch": source}})


@pytest.fixture
def origin(tmp_path: Path) -> NetworkOrigin:
    return NetworkOrigin(models.save(models.matmul(), tmp_path / "network.onnx"), ["up", "down"])


def onnx_config(path: Path) -> ModelConfig:
    return ModelConfig.model_validate({"source": {"onnx": str(path)}})


def test_a_torch_source_is_compared_with_its_module(torch_config: ModelConfig, origin: NetworkOrigin) -> None:
    reference = choose_reference(torch_config, None, origin)
    assert reference.description == "PyTorch on affine_module:affine"
    found = reference.run({"x": np.array([1, -2], np.float32)})
    assert {name: value.tolist() for name, value in found.items()} == {"up": [3, -3], "down": [-1, 2]}


def test_a_torch_module_computes_in_fp32_what_a_16_bit_network_is_given(
    torch_config: ModelConfig, origin: NetworkOrigin
) -> None:
    x = np.array([2049, 0.1], np.float16)
    found = choose_reference(torch_config, None, origin).run({"x": x})
    assert found["up"].dtype == np.float32
    np.testing.assert_array_equal(found["up"], 2 * x.astype(np.float32) + 1)


def test_a_torch_source_can_be_compared_with_onnx_runtime(torch_config: ModelConfig, origin: NetworkOrigin) -> None:
    reference = choose_reference(torch_config, "onnxruntime", origin)
    assert reference.description == "ONNX Runtime on the network's own ONNX file"
    found = reference.run({"x": np.array([[1, 0, 0]], np.float32)})
    assert found["y"].tolist() == [[1, 2, 3, 4]]


def test_onnx_runtime_is_given_the_types_that_the_source_takes(tmp_path: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "m.onnx")
    found = OnnxRuntimeReference(path, "").run({"x": np.array([[0, 1, 0]], np.float16)})
    assert found["y"].dtype == np.float32
    assert found["y"].tolist() == [[5, 6, 7, 8]]


def test_a_model_of_the_newest_ir_version_runs_in_an_older_onnx_runtime(tmp_path: Path) -> None:
    model = models.matmul()
    model.ir_version = onnx.IR_VERSION
    path = models.save(model, tmp_path / "m.onnx")
    assert OnnxRuntimeReference(path, "").run({"x": np.eye(3, dtype=np.float32)})["y"].shape == (3, 4)


@pytest.mark.parametrize("change", ["gone", "changed", "same"])
def test_a_source_that_is_not_the_one_built_from_is_no_reference(
    tmp_path: Path, origin: NetworkOrigin, change: str
) -> None:
    path = models.save(models.classifier(), tmp_path / "source.onnx")
    config = onnx_config(path)
    digests = [file.sha256 for file in digest_source(config.source)]
    if change == "gone":
        path.unlink()
    if change == "changed":
        models.save(models.classifier(seed=1), path)
    own = "ONNX Runtime on the network's own ONNX file"
    assert (
        choose_reference(config, None, NetworkOrigin(origin.onnx, [], digests)).description
        == {
            "gone": f"{own}; the source is not here any more",
            "changed": f"{own}; the source has changed since the build",
            "same": "ONNX Runtime on source.onnx",
        }[change]
    )


def test_a_changed_module_cannot_be_asked_for(torch_config: ModelConfig, origin: NetworkOrigin) -> None:
    with pytest.raises(SourceError) as error:
        choose_reference(torch_config, "torch", NetworkOrigin(origin.onnx, origin.outputs, ["0" * 64]))
    assert str(error.value) == (
        "--against torch: the source has changed since the build\nfix: build the bundle again, or leave out --against"
    )


def test_what_onnx_runtime_refuses_is_an_error(tmp_path: Path) -> None:
    broken: Any = models.matmul()
    broken.graph.node[0].op_type = "NoSuchOperator"
    path = models.save(broken, tmp_path / "m.onnx")
    with pytest.raises(SourceError) as error:
        OnnxRuntimeReference(path, "")
    assert str(error.value).startswith(f"{path}: ONNX Runtime cannot load the model: ")
    assert "NoSuchOperator" in str(error.value)


def test_tokens_of_a_window_of_one_token_are_those_of_the_logits(tmp_path: Path) -> None:
    """transformers' cache of such a window keeps all tokens, so that `generate` sees too many."""
    config = config_of(case("one-token", "cwm", sliding_window=1), tmp_path)
    reference, ids = TransformersReference(open_decoder(resolve(config)).source), [7, 8, 9, 10, 11]
    answer = reference.greedy(ids, 12)
    for token in answer:
        assert token == int(reference.logits(ids)[-1].argmax())
        ids.append(token)
    assert len(answer) == 12


def test_a_tokenizer_of_another_model_is_named(tmp_path: Path) -> None:
    config = config_of(case("few-tokens", "llama", vocab_size=128), tmp_path)
    opened = open_decoder(resolve(config))
    (tmp_path / "prompts.txt").write_text("\u00e9\n")
    for paths, name in (((), "Gravity is"), ((str(tmp_path / "prompts.txt"),), "\u00e9")):
        with pytest.raises(SourceError, match="the tokenizer gives token") as error:
            read_prompts(paths, opened.source, llm_options(opened.config))
        assert (error.value.where, "the model's vocabulary ends at 127" in error.value.what) == (name, True)
