"""What can be said of plugins without a TensorRT that has them: which file it would parse, what is refused before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

from tests.support import custom_op_models
from tests.support.decoders import relative_rms, rtx
from trtkit.builder.jobs import PrepareRequest
from trtkit.builder.plugins import register_plugins, uses_plugins
from trtkit.builder.prepare import prepare
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import dtype_of
from trtkit.errors import BackendError, ConfigError
from trtkit.jobs.job import JobContext
from trtkit.network.custom_op import DOMAIN
from trtkit.network.onnx.parse import parse_onnx

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.builder.stages import OnnxFile


def with_bias(layers: int = 2) -> onnx.ModelProto:
    """Return deformable convolutions, the last of which has a bias, as the plugin always takes one."""
    model = custom_op_models.deform_conv(layers)
    last = [node for node in model.graph.node if node.op_type == "DeformConv"][-1]
    last.input[3] = "bias"
    model.graph.initializer.append(numpy_helper.from_array(np.linspace(-1, 1, 6, dtype=np.float32), "bias"))
    return model


def config_of(source: Path, **keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "m", "source": {"onnx": str(source)}, **keys})


def prepared(folder: Path, model: onnx.ModelProto, **keys: Any) -> tuple[OnnxFile, dict[str, str]]:
    """Prepare a model for a TensorRT with plugins, one image at a time."""
    onnx.save(model, folder / "source.onnx")
    config = config_of(folder / "source.onnx", profiles=[{"N": [1, 2, 3]}], **keys)
    made = prepare(PrepareRequest(config, folder, has_plugins=True), JobContext())
    (stage,) = made.stages
    assert stage.onnx is not None
    return stage.onnx, {step.name: step.detail for step in made.steps}


def own_nodes(path: Path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.domain == DOMAIN]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_tensorrt_gets_plugins_and_whoever_verifies_functions(precision: str, tmp_path: Path) -> None:
    file, steps = prepared(tmp_path, with_bias(), precision=precision)
    assert (file.parsed, file.plugins) == (tmp_path / "network/model.plugins.onnx", ("DeformConv2d",))
    assert steps["plugins"] == "1 nodes to plugins"
    (plugin,) = own_nodes(file.parsed)
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in plugin.attribute}
    assert (plugin.op_type, plugin.name, len(plugin.input)) == ("DeformConv2d", "layer1/dcn", 5)
    assert (attributes["plugin_namespace"], attributes["aot"], attributes["padding"]) == (b"trtkit", 1, [1, 1])
    assert [node.name for node in own_nodes(tmp_path / "network/model.onnx")] == ["layer1/dcn"]
    assert len(onnx.load(file.parsed).functions) == 0
    assert parse_onnx(rtx(), tmp_path / "network/model.onnx").definition.num_layers > 50  # of bodies, not of calls


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_model_with_functions_computes_what_the_source_does(precision: str, tmp_path: Path) -> None:
    prepared(tmp_path, with_bias(), precision=precision)
    x = np.random.default_rng(0).standard_normal((2, 6, 9, 7)).astype(np.float32)
    ours, theirs = (
        torch.from_numpy(
            onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        )
        for path in (tmp_path / "network/model.onnx", tmp_path / "source.onnx")
    )
    assert relative_rms(ours, theirs) <= 5 * dtype_of(precision).tolerance


def test_a_model_without_a_node_for_a_plugin_gets_no_second_file(tmp_path: Path) -> None:
    file, _ = prepared(tmp_path, custom_op_models.deform_conv(2))
    assert (file.parsed, file.plugins) == (file.path, ())
    assert list((tmp_path / "network").iterdir()) == [file.path]
    assert own_nodes(tmp_path / "network/model.onnx") == []


@pytest.mark.parametrize(
    ("plugins", "backend", "used"),
    [("never", "tensorrt", False), ("auto", "tensorrt", True), ("always", "tensorrt", True),
     ("never", "tensorrt_rtx", False), ("auto", "tensorrt_rtx", False)],
)  # fmt: skip
def test_plugins_are_used_where_they_are_asked_for_and_there(
    plugins: str, backend: str, used: bool, tmp_path: Path
) -> None:
    config = config_of(tmp_path / "m.onnx", custom_ops={"plugins": plugins})
    assert uses_plugins(config, backend) is used


def test_plugins_that_the_backend_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        uses_plugins(config_of(tmp_path / "m.onnx", custom_ops={"plugins": "always"}), "tensorrt_rtx")
    assert str(caught.value) == (
        "the config does not fit the backend\n"
        "  custom_ops.plugins: the backend `tensorrt_rtx` has no plugins\n"
        "    fix: set `never`, which builds each op from standard operators, or use a "
        "target with the backend `tensorrt`"
    )


def test_a_backend_without_the_module_says_so() -> None:
    with pytest.raises(
        BackendError, match=r"(?s)`tensorrt_rtx.plugin` does not load: .*fix: leave `custom_ops.plugins`"
    ):
        register_plugins(rtx(), ["DeformConv2d"], [80])
    register_plugins(rtx(), [], [])


def test_plugins_for_an_old_gpu_are_refused() -> None:
    with pytest.raises(BackendError, match="plugin kernels need SM80 or newer; the target is SM75"):
        register_plugins(rtx(), ["DeformConv2d"], [75, 89])


def test_plugins_for_no_known_gpu_are_refused() -> None:
    with pytest.raises(
        BackendError, match="plugins are compiled for a GPU, but the target names none and none is present"
    ):
        register_plugins(rtx(), ["DeformConv2d"], [])
