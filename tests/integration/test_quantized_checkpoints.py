"""Checkpoints from other quantization tools as networks: transformers' logits, and plans for supported targets."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from tests.support.decoders import Runner, T, builds, relative_rms, rtx
from tests.support.quantized_checkpoints import FORMATS, WEIGHT_ONLY, save_gpt2, save_llama, save_mixture
from trtkit.builder.decoders import engine_bytes
from trtkit.builder.stages import DecoderSize
from trtkit.dtypes import FP16, FP32, DType
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import DecoderSource, open_hf_folder
from trtkit.sources.huggingface.model import causal_lm

IDS = torch.randint(3, 72, (2, 21), generator=torch.Generator().manual_seed(1))
LARGEST = {"int8": 127.0, "fp8": 448.0}


@cache
def opened(name: str) -> DecoderSource:
    save, _, kind = name.rpartition("/")
    folder = Path(mkdtemp())
    writers = {"": save_llama, "gpt2": save_gpt2, "mixture": save_mixture}
    return open_hf_folder(writers[save](folder, kind))


def graph_of(name: str, dtype: DType) -> Graph:
    source = opened(name)
    spec = decoder_spec(source.config)
    graph = Graph(rtx())
    weights = find_weights(spec, source.checkpoint)
    build_decoder(graph, spec, weights, DecoderOptions(dtype, T, has_all_logits=True))
    return graph


def logits(name: str, dtype: DType) -> torch.Tensor:
    """Return the logits of the network itself, by the reference executor."""
    runner = Runner(graph_of(name, dtype))
    runner.reset(2)
    return runner.step(IDS)["logits"]


def quantize_inputs(model: Any, matrices: dict[str, QuantizedMatrix]) -> None:
    """Round the inputs of a model's linear layers as their matrices ask, in torch's own arithmetic."""

    def rounded(inputs: torch.Tensor, matrix: QuantizedMatrix) -> torch.Tensor:
        assert matrix.inputs is not None
        limit, largest = LARGEST[matrix.inputs.format], inputs.abs().amax(-1, keepdim=True)
        scale = largest / (matrix.inputs.steps or limit) if matrix.inputs.is_per_token else matrix.inputs.scale
        steps = inputs / scale
        if matrix.inputs.format == "int8":
            return steps.round().clamp(-128, 127) * scale
        return steps.clamp(-limit, limit).to(torch.float8_e4m3fn).float() * scale

    for name, matrix in matrices.items():
        if matrix.inputs is not None:
            hook = lambda _, inputs, matrix=matrix: (rounded(inputs[0], matrix),)  # noqa: E731
            model.get_submodule(name).register_forward_pre_hook(hook)


@cache
def wanted(name: str) -> torch.Tensor:
    """Return the logits of transformers on the dequantized weights, inputs quantized where the checkpoint says so."""
    source = opened(name)
    model = causal_lm(source)
    arrays = {key.removesuffix(".weight"): source.checkpoint[key] for key in source.checkpoint}
    quantize_inputs(model, {key: value for key, value in arrays.items() if isinstance(value, QuantizedMatrix)})
    with torch.inference_mode():
        return model(IDS).logits


@pytest.mark.parametrize("name", [*FORMATS, "gpt2/gptq", "gpt2/awq", "mixture/gptq", "mixture/fp8-blocks"])
def test_logits_are_those_of_transformers_on_the_dequantized_weights(name: str) -> None:
    """Rounded inputs may fall to the other side of a step, which moves their logits by more than arithmetic does.

    Of compressed-tensors' int8 tokens, the largest value always lies between two steps: 127.5 of them.
    """
    kept = [key for key in opened(name).checkpoint if isinstance(opened(name).checkpoint[key], QuantizedMatrix)]
    assert len(kept) == {"gpt2": 8, "mixture": 44}.get(name.partition("/")[0], 14)
    is_exact = name.rpartition("/")[2] in WEIGHT_ONLY
    assert relative_rms(logits(name, FP32), wanted(name)) < (1e-4 if is_exact else 3e-2)
    assert relative_rms(logits(name, FP16), wanted(name)) < (2e-2 if is_exact else 0.1)


def test_room_is_needed_for_the_quantized_weights() -> None:
    source, size = opened("gptq"), DecoderSize("llama", 0, 10**9, 0, 0)
    stored = sum(path.stat().st_size for path in source.files)
    assert 0 < engine_bytes(source, size) == stored < 10**9
    assert engine_bytes(source, replace(size, weight_bytes=7)) == 7
    assert engine_bytes(replace(source, quantized_by=""), size) == 10**9


@pytest.mark.parametrize("name", [*FORMATS, "gpt2/gptq"])
def test_networks_build_for_the_least_gpu_that_has_their_type(name: str) -> None:
    assert builds(graph_of(name, FP16), [89 if "fp8" in name else 80])


@pytest.mark.parametrize(("name", "older"), [("gptq", 75), ("fp8-blocks", 86)])
def test_networks_do_not_build_for_older_ones(name: str, older: int) -> None:
    assert not builds(graph_of(name, FP16), [older])


def test_layers_that_read_the_same_inputs_put_them_in_order_once() -> None:
    """Of seven layers in a block, queries, keys and values share a gather, as do gate and up."""
    graph = graph_of("gptq-act-order", FP16)
    names = [graph.network.get_layer(index).name for index in range(graph.network.num_layers)]
    assert sum(name.endswith("/reorder") for name in names) == 2 * 4
