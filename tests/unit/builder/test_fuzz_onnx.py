"""Damaged ONNX files end in one of our errors before TensorRT sees them: no other exception, hang or much memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from tests.support import models
from tests.support.fuzz import byte_changes, message_changes, must_end
from trtkit.builder.parseable import make_parseable
from trtkit.builder.profiles import opt_shapes, resolve_profiles
from trtkit.config.schema import ModelConfig, Source
from trtkit.errors import SourceError
from trtkit.jobs.events import Steps
from trtkit.network.onnx.care import grid_sample_modes
from trtkit.network.onnx.io import graph_inputs, graph_outputs, save_model
from trtkit.sources.onnx_file import read_graph, read_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A function, branches, weights, attributes, dynamic and static sizes.
TEXT = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
small (float[batch, 3, 4, 4] image, bool[1] flag) => (float[batch, 5] scores, float[batch, 5] gated)
<int64[2] shape = {0, -1}> {
    x = Conv <pads = [1, 1, 1, 1]> (image, kernel)
    y = Relu (x)
    z = Reshape (y, shape)
    transposed = Transpose <perm = [1, 0]> (weight)
    logits = MatMul (z, transposed)
    scores = Softmax <axis = -1> (logits)
    flat = Squeeze (flag)
    gated = If (flat) <
        then_branch = yes () => (float[batch, 5] a) { a = local.twice (scores) },
        else_branch = no () => (float[batch, 5] b) { b = Identity (scores) }>
}
<domain: "local", opset_import: ["" : 17]> twice (v) => (w) { w = Add (v, v) }
"""
CONFIG = ModelConfig(name="m", source=Source(onnx="m.onnx"))


def small() -> ModelProto:
    model, draw = parser.parse_model(TEXT), np.random.default_rng(0)
    for name, shape in {"kernel": (2, 3, 3, 3), "weight": (5, 32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(draw.random(shape, np.float32), name))
    return model


def read(path: Path) -> None:
    """Do all that `inspect` and `build` do with a file before TensorRT's parser gets it."""
    model = make_parseable(read_model(path), CONFIG, str(path), Steps(lambda _: None))
    profiles, _ = resolve_profiles(graph_inputs(model), CONFIG.profiles)
    opt_shapes(graph_inputs(model), profiles)
    graph_outputs(model)
    grid_sample_modes(model)
    save_model(model, path.with_name("out.onnx"))


def test_changed_bytes(tmp_path: Path) -> None:
    data, path = small().SerializeToString(), tmp_path / "m.onnx"
    path.write_bytes(data)
    read(path)
    for changed in byte_changes(data, 200):
        path.write_bytes(changed)
        must_end(lambda: read(path), changed)


def test_changed_fields(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for changed in message_changes(small(), 250):
        path.write_bytes(changed.SerializeToString())
        must_end(lambda: read(path), changed)


@pytest.mark.filterwarnings("ignore:Ignoring unknown external data")
def test_changed_places_of_external_data(tmp_path: Path) -> None:
    path = models.save_external(models.classifier(), tmp_path / "m.onnx")
    stored = read_graph(path)
    for changed in message_changes(stored.graph.initializer[0], 300):
        stored.graph.initializer[0].CopyFrom(changed)  # type: ignore[arg-type]
        path.write_bytes(stored.SerializeToString())
        must_end(lambda: read_model(path), changed)


def unknown_type(model: Any) -> None:
    model.graph.input[0].type.tensor_type.elem_type = 99


def long_vector(model: Any) -> None:
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2**31


def negative_size(model: Any) -> None:
    model.graph.initializer[1].dims[0] = -5


def circle(model: Any) -> None:
    model.graph.node[0].input[0] = "y"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            unknown_type,
            "type 99 of `image` has no counterpart in TensorRT\nfix: cast it inside the model before export",
        ),
        (
            long_vector,
            "{path}: input `flag` is a vector of 2147483648 elements, at most 16777216 are taken\n"
            "fix: export the model with its real sizes",
        ),
        (
            negative_size,
            "{path}: ONNX's checker refuses the model: Negative dimension value (tensor name: kernel)\n"
            "fix: export it again",
        ),
        (circle, "{path}: nodes wait for each other: `Conv` -> `Relu` -> `Conv`\nfix: export the model again"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[Any], None], message: str, tmp_path: Path) -> None:
    path, model = tmp_path / "m.onnx", small()
    change(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SourceError) as caught:
        read(path)
    assert str(caught.value) == message.format(path=path)


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small().SerializeToString().replace(b"batch", b"\xd2atch", 1))
    with pytest.raises(SourceError) as caught:
        read(path)
    what = "not an ONNX model: the name b'\\xd2atch' is not UTF-8"
    assert str(caught.value) == f"{path}: {what}\nfix: export or copy it again"


@pytest.mark.parametrize(("key", "value"), [("offset", "-4"), ("length", "-4")])
def test_a_place_below_zero_is_refused(key: str, value: str, tmp_path: Path) -> None:
    path = models.save_external(models.matmul(), tmp_path / "m.onnx")
    models.set_external(path, **{key: value})
    with pytest.raises(SourceError, match=r"tensor `\w+`: the place of the external data is invalid"):
        read_model(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    with pytest.raises(SourceError) as caught:
        read_model(tmp_path / "m.onnx")
    assert (
        str(caught.value)
        == f"{tmp_path}/m.onnx: cannot be read: not a regular file\nfix: copy or download the file again"
    )
