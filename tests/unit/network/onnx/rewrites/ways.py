"""A model in ONNX Runtime, and its rewritten form in ONNX Runtime and in TensorRT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from tests.support import models
from trtkit.backends import load_backend
from trtkit.network.onnx.rewrites import rewrite
from trtkit.reference import Executor, read_layers, to_array

if TYPE_CHECKING:
    import onnx

Arrays = dict[str, np.ndarray[Any, Any]]
BACKEND = load_backend("tensorrt_rtx")
RANDOM = np.random.default_rng(0)


def random_bytes(*shape: int, dtype: str = "uint8") -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def random_weights(*shape: int, dtype: str = "int8") -> np.ndarray[Any, Any]:
    """Seven bits: with AVX2 and nothing newer, ONNX Runtime's sums of two products of 8 bits saturate at 16."""
    middle = 0 if dtype == "int8" else 128
    return RANDOM.integers(middle - 63, middle + 63, shape, endpoint=True).astype(dtype)


def scalars(**values: tuple[float, str]) -> list[onnx.TensorProto]:
    return [models.constant(name, value, dtype) for name, (value, dtype) in values.items()]


def in_onnx_runtime(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray[Any, Any]] = session.run(None, feeds)
    return found


def in_tensorrt(model: onnx.ModelProto, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
    """Parse, build for the shapes of `feeds`, and run by the reference executor."""
    logger = BACKEND.logger("ERROR")
    builder = BACKEND.trt.Builder(logger)
    network = BACKEND.new_network(builder)
    parser = BACKEND.trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString()), parser.get_error(0).desc()
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for name, value in feeds.items():
        profile.set_shape(name, value.shape, value.shape, value.shape)
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None
    return [to_array(value) for value in Executor(read_layers(BACKEND, network)).run(feeds).values()]


def assert_all_agree(model: onnx.ModelProto, feeds: Arrays, atol: float = 0.0, rtol: float = 0.0) -> str:
    """Compare the rewritten model, in both, with the original in ONNX Runtime; return what was rewritten."""
    expected = in_onnx_runtime(model, feeds)
    new, said = rewrite(model)
    for found in (in_onnx_runtime(new, feeds), in_tensorrt(new, feeds)):
        for have, want in zip(found, expected, strict=True):
            assert have.shape == want.shape
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), atol=atol, rtol=rtol)
    return said
