"""An engine shrinks with its weights; kernels add a constant per block, whatever the matrices' size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtkit.backends import load_backend
from trtkit.dtypes import FP16
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import model_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.describe import describe
from trtkit.network.graph import Graph
from trtkit.quantization.llm.choice import linear_layers
from trtkit.quantized_matrix import QuantizedMatrix, pack

MIB = 2**20
CONFIG = {
    "model_type": "llama",
    "vocab_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
RANDOM = np.random.default_rng(0)


def matrix(kind: str, shape: tuple[int, ...]) -> Any:
    """Return random weights [out, in] of a kind."""
    rows, columns = shape
    if kind == "int8":
        return QuantizedMatrix("int8", RANDOM.integers(-127, 128, shape, np.int8), np.full(rows, 0.001, np.float32))
    if kind == "int4":
        codes = pack(RANDOM.integers(0, 16, shape, np.uint8))
        return QuantizedMatrix("int4", codes, np.full((rows, columns // 128), 0.001, np.float32))
    return (RANDOM.standard_normal(shape, np.float32) * 0.02).astype(np.float16)


def sizes(kind: str, hidden_size: int) -> tuple[float, float]:
    """Build a block of a kind for one token; return MiB of its weights, and of its engine."""
    spec = decoder_spec({**CONFIG, "hidden_size": hidden_size, "intermediate_size": 3 * hidden_size})
    linear = {f"{layer.name}.weight" for layer in linear_layers(spec)}
    arrays = {
        weight.path: matrix(kind, weight.shape) if weight.path in linear else np.ones(weight.shape, np.float16)
        for weight in model_weights(spec)
    }
    graph = Graph(backend := load_backend("tensorrt_rtx"))
    build_decoder(graph, spec, arrays, DecoderOptions(FP16, 64))
    inputs = [graph.network.get_input(index) for index in range(graph.network.num_inputs)]
    shapes = {tensor.name: tuple(1 if size < 0 else size for size in tensor.shape) for tensor in inputs}
    config, profile = graph.builder.create_builder_config(), graph.builder.create_optimization_profile()
    for name, shape in shapes.items():
        profile.set_shape(name, shape, shape, shape)
    config.add_optimization_profile(profile)
    plan = graph.builder.build_serialized_network(graph.network, config)
    weights = describe(backend, graph.network, shapes).totals().weight_bytes
    return sum(weights.values()) / MIB, plan.nbytes / MIB


@pytest.fixture(scope="module")
def plain() -> tuple[float, float]:
    return sizes("fp16", 1024)


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("int4", 4 + 16 / 128)])
def test_an_engine_shrinks_as_its_weights_do(kind: str, bits: float, plain: tuple[float, float]) -> None:
    """Kernels that dequantize are larger than others, by less than a MiB for a block and a profile."""
    weights, engine = sizes(kind, 1024)
    linear = 1024 * (512 + 2 * 256 + 512 + 3 * 3072)
    assert plain[0] - weights == pytest.approx(linear * (16 - bits) / 8 / MIB, rel=0.01)
    assert plain[1] - engine == pytest.approx(plain[0] - weights, abs=1.0)


def test_what_an_engine_holds_besides_weights_is_the_same_for_larger_matrices(plain: tuple[float, float]) -> None:
    weights, engine = sizes("fp16", 512)
    assert engine - weights == pytest.approx(plain[1] - plain[0], abs=0.2)
