"""Whole models through TensorRT's parser: ONNX Runtime and stored outputs are the oracles."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.testing import assert_close

from trtkit.errors import ExecutionError
from trtkit.reference import Executor, constants_from_onnx, read_layers, to_array
from trtkit.reference.polygraphy_runner import ReferenceRunner

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def _network(backend: Any, logger: Any, path: Path) -> Any:
    network = backend.trt.Builder(logger).create_network(0)
    parser = backend.trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(path))
    return network


def _onnxruntime(model: Any, feed: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    found: list[Any] = onnxruntime.InferenceSession(model, options).run(None, feed)
    return found


def relative_rms(got: Any, want: Any) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_models_match_their_stored_outputs(backend: Any, logger: Any, path: Path) -> None:
    """The wheel's own test feeds an input whose values are position / size."""
    executor = Executor(read_layers(backend, _network(backend, logger, path)))
    (spec,) = executor.inputs
    size = int(np.prod(spec.shape))
    x = (np.arange(size, dtype=np.float32) / size).reshape(spec.shape)
    (got,) = executor.run({spec.name: x}).values()
    stored = TensorProto()
    stored.ParseFromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    want = numpy_helper.to_array(stored)
    assert_close(got, torch.from_numpy(want.copy()), rtol=1e-3, atol=1e-7)
    assert relative_rms(to_array(got), _onnxruntime(str(path), {spec.name: x})[0]) < 1e-5


OCR_SHAPES = {"det": [(1, 3, 320, 320), (2, 3, 224, 416)], "rec": [(1, 3, 48, 320), (2, 3, 48, 192)]}


@pytest.mark.parametrize("kind", ["det", "rec", "cls"])
def test_pp_ocr_matches_onnx_runtime_at_two_dynamic_shapes(backend: Any, logger: Any, kind: str) -> None:
    package = find_spec("rapidocr_onnxruntime")
    if package is None or package.origin is None:
        pytest.skip("the models are in the rapidocr-onnxruntime package")
    (path,) = (Path(package.origin).parent / "models").glob(f"*{kind}*.onnx")
    executor = Executor(read_layers(backend, _network(backend, logger, path)))
    for shape in OCR_SHAPES.get(kind, OCR_SHAPES["rec"]):
        x = _page(shape)
        (got,) = executor.run({executor.inputs[0].name: x}).values()
        assert relative_rms(to_array(got), _onnxruntime(str(path), {executor.inputs[0].name: x})[0]) < 1e-5


def _page(shape: tuple[int, ...]) -> Any:
    """Return dark strokes on a light page in [-1, 1]: on noise the models' sigmoids saturate."""
    page = np.ones(shape, np.float32)
    for row in range(8, shape[2] - 8, 24):
        for column in range(8, shape[3] - 12, 14):
            page[:, :, row : row + 14, column : column + 3] = -0.9
            page[:, :, row + 6 : row + 9, column : column + 9] = -0.9
    return page


def _resize(scales: list[float], **attributes: Any) -> Any:
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)]
    table = [numpy_helper.from_array(np.array(scales, np.float32), "scales")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 7])
    model = helper.make_model(
        helper.make_graph(nodes, "resize", [x], [y], table), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 10
    return model


@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 0.6, 1.7]])
@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_resize_matches_onnx_runtime(
    backend: Any, parse: Any, mode: str, transformation: str, scales: list[float]
) -> None:
    model = _resize(scales, mode=mode, coordinate_transformation_mode=transformation)
    x = np.sin(np.arange(70, dtype=np.float32)).reshape(1, 2, 5, 7)
    (got,) = Executor(read_layers(backend, parse(model))).run({"x": x}).values()
    (want,) = _onnxruntime(model.SerializeToString(), {"x": x})
    assert_close(got, torch.from_numpy(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_matches_onnx_runtime(backend: Any, parse: Any, random: Any, mode: str, padding: str) -> None:
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding)
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 5, 6]),
        helper.make_tensor_value_info("grid", TensorProto.FLOAT, [1, 3, 4, 2]),
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "sample", inputs, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    feed = {"x": random(1, 2, 5, 6).numpy(), "grid": random(1, 3, 4, 2).numpy()}
    (got,) = Executor(read_layers(backend, parse(model))).run(feed).values()
    (want,) = _onnxruntime(model.SerializeToString(), feed)
    assert_close(got, torch.from_numpy(want), rtol=1e-4, atol=1e-5)


def test_trilu_without_upper_is_the_lower_triangle_as_the_parser_writes_it(backend: Any, parse: Any) -> None:
    """ONNX's default is the upper triangle; the parser's network is what the engine would compute."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Trilu", ["x"], ["y"])], "trilu", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 10
    (got,) = Executor(read_layers(backend, parse(model))).run({"x": np.ones((3, 3), np.float32)}).values()
    assert got.tolist() == np.tril(np.ones((3, 3))).tolist()


def test_polygraphys_comparator_runs_the_reference_beside_onnx_runtime(backend: Any, parse: Any, random: Any) -> None:
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator

    model = _resize([1, 1, 2, 2], mode="linear")
    runners = [ReferenceRunner(backend, parse(model)), OnnxrtRunner(SessionFromOnnx(model.SerializeToString()))]
    results = Comparator.run(runners, data_loader=[{"x": random(1, 2, 5, 7).numpy()}])
    assert bool(Comparator.compare_accuracy(results))


def _bf16_model() -> Any:
    generator = np.random.default_rng(0)
    shapes = {"kernel": (4, 3, 3, 3), "bias": (4,), "matrix": (8, 5)}
    table = [
        numpy_helper.from_array(generator.normal(size=shape).astype(ml_dtypes.bfloat16), name)
        for name, shape in shapes.items()
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape)
        for name, shape in (("x", [1, 3, 10, 10]), ("y", [1, 4, 8, 5]))
    )
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["middle"]),
        helper.make_node("MatMul", ["middle", "matrix"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "bf16", [x], [y], table)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])
    model.ir_version = 10
    return model


@pytest.mark.parametrize("is_readable", [True, False])
def test_bf16_weights_come_from_the_network_or_from_the_onnx_file(
    backend: Any, parse: Any, random: Any, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    if not is_readable:
        monkeypatch.setattr("trtkit.network.layer_graph._layout_is_known", lambda _: False)
    model = _bf16_model()
    constants = {} if is_readable else constants_from_onnx(model)
    x = random(1, 3, 10, 10, dtype=torch.bfloat16)
    (got,) = Executor(read_layers(backend, parse(model), constants)).run({"x": x}).values()
    kernel, bias, matrix = (
        torch.from_numpy(numpy_helper.to_array(item).astype(np.float32)) for item in model.graph.initializer
    )
    middle = torch.nn.functional.conv2d(x.float(), kernel, bias).bfloat16()
    assert_close(got, (middle.float() @ matrix).bfloat16(), rtol=2**-7, atol=2**-7)


def test_weights_that_cannot_be_read_are_an_error_that_says_what_to_pass(
    backend: Any, parse: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtkit.network.layer_graph._layout_is_known", lambda _: False)
    with pytest.raises(ExecutionError) as error:
        Executor(read_layers(backend, parse(_bf16_model())))
    assert str(error.value) == (
        "node_of_middle/kernel: TensorRT does not let bf16 weights be read back\n"
        "fix: pass them as constants[`node_of_middle/kernel`]"
    )
