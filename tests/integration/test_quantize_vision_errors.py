"""Models that cannot be quantized are refused with a reason and a fix; no files are left behind."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image

from tests.support import models
from tests.support.quantized_vision import pictures, small
from trtkit.builder.jobs import PrepareRequest
from trtkit.builder.prepare import prepare
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import INT8
from trtkit.errors import ConfigError, QuantizeError, TrtkitError
from trtkit.jobs.job import JobContext
from trtkit.network.onnx.quantize import lifted, quantize_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PREPROCESS = {"resize": {"exact": [32, 32]}}


@pytest.fixture
def refused(workspace: Path) -> Callable[..., TrtkitError]:
    """Prepare a model with a `quantize` section and return the error."""

    def run(model: onnx.ModelProto | None = None, preprocess: Any = PREPROCESS, **quantize: Any) -> TrtkitError:
        models.save(model or small(), workspace / "m.onnx")
        data = quantize.pop("data", "a.npz")
        asked = {"method": "int8", "calibration": {"data": data}, **quantize}
        config = {"name": "m", "source": {"onnx": "m.onnx"}, "profiles": [{"batch": [1, 4, 8]}], "quantize": asked}
        whole = ModelConfig.model_validate({**config, "preprocess": preprocess})
        (workspace / "out").mkdir()
        with pytest.raises(TrtkitError) as caught:
            prepare(PrepareRequest(whole, workspace / "out"), JobContext())
        assert not (workspace / "out/network/model.onnx").exists()
        return caught.value

    return run


def save(path: str, **arrays: Any) -> None:
    np.savez(path, allow_pickle=False, **arrays)


@pytest.fixture
def data(workspace: Path) -> None:
    save("a.npz", images=pictures(4))


def test_no_data(refused: Callable[..., TrtkitError]) -> None:
    error = refused(data=None)
    assert isinstance(error, QuantizeError)
    assert str(error) == (
        "quantize.calibration: this method needs calibration data\n"
        "fix: give images like those the model will see: `--set quantize.calibration.data=FOLDER`, or `--calib FOLDER`"
    )


def test_a_path_that_is_not_there(refused: Callable[..., TrtkitError]) -> None:
    assert str(refused(data="nothing")).startswith("nothing: no such file")


def test_an_empty_folder(refused: Callable[..., TrtkitError], workspace: Path) -> None:
    (workspace / "empty").mkdir()
    (workspace / "empty/notes.txt").write_text("no image")
    error = refused(data="empty")
    assert (error.what, error.where) == ("the folder holds no inputs", "empty")
    assert error.fix.startswith("put files in it that end in ")


def test_an_image_that_does_not_decode(refused: Callable[..., TrtkitError], workspace: Path) -> None:
    (workspace / "images").mkdir()
    data = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(data, "png")
    (workspace / "images/a.png").write_bytes(data.getvalue())
    (workspace / "images/b.png").write_bytes(data.getvalue()[:40])
    error = refused(data="images")
    assert "not a readable image" in error.what
    assert error.where == "images/b.png"


def test_images_for_a_config_that_says_nothing_of_images(refused: Callable[..., TrtkitError], workspace: Path) -> None:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(workspace / "a.png")
    error = refused(data="a.png", preprocess=None)
    assert (error.what, error.fix) == ("images need `preprocess:` in the config", "add it, or give .npz arrays")


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"image": pictures(2)}, "unknown input `image`, missing input `images`"),
        ({"images": pictures(2)[:, :2]}, "`images` has shape [1, 2, 32, 32]; expected [batch, 3, 32, 32]"),
        ({"images": pictures(2)[:, 0]}, "`images` has shape [1, 32, 32]; expected [batch, 3, 32, 32]"),
        ({"images": pictures(2).astype(np.float64)}, "`images` has type float64, float32 is needed"),
        ({"images": np.full((2, 3, 32, 32), np.nan, np.float32)}, "`images` holds NaN or infinite values"),
        ({"images": pictures(2)[:0]}, "the arrays hold different numbers of samples: 0 of `images`"),
        ({"images": np.float32(1)}, "the arrays hold different numbers of samples: 0 of `images`"),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], what: str, refused: Callable[..., TrtkitError]) -> None:
    save("a.npz", **arrays)
    error = refused()
    assert error.what == what
    assert error.where.startswith("a.npz")


def test_a_file_that_is_no_npz(refused: Callable[..., TrtkitError], workspace: Path) -> None:
    (workspace / "a.npz").write_bytes(b"no archive")
    assert refused().what.startswith("not a readable .npz file: ")


@pytest.mark.usefixtures("data")
def test_activations_that_are_not_numbers(refused: Callable[..., TrtkitError]) -> None:
    model = small()
    model.graph.node.insert(4, helper.make_node("Log", ["r1"], ["l1"], "block/log"))
    model.graph.node[5].input[0] = "l1"
    error = refused(model)
    assert error.what == "`l1`, which `block/conv2` reads, is NaN or infinite on the calibration data"
    assert error.where == "a.npz"
    assert error.fix == "give other data, or exclude the node: `quantize.exclude: ['block/conv2']`"


def test_data_without_any_variation(refused: Callable[..., TrtkitError]) -> None:
    save("a.npz", images=np.full((2, 3, 32, 32), 0.5, np.float32))
    error = refused()
    assert error.what == "`images`, which `stem/conv` reads, is 0.5 everywhere on the calibration data"
    assert error.fix.startswith("give data like what it will see, or exclude the node")


@pytest.mark.usefixtures("data")
def test_activations_that_are_always_zero_name_their_node_and_can_be_left_out(
    refused: Callable[..., TrtkitError], workspace: Path
) -> None:
    model = small()
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name == "b1")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.full(64, -1e6, np.float32), "b1"))
    error = refused(model)
    assert error.what == "`r1`, which `block/conv2` reads, is 0 everywhere on the calibration data"
    exclude = {"method": "int8", "exclude": ["block/conv2"], "calibration": {"data": "a.npz"}}
    config = {"source": {"onnx": "m.onnx"}, "profiles": [{"batch": [1, 4, 8]}], "quantize": exclude}
    (workspace / "again").mkdir()
    prepare(PrepareRequest(ModelConfig.model_validate(config), workspace / "again"), JobContext())
    assert (workspace / "again/network/model.onnx").exists()


@pytest.mark.usefixtures("data")
def test_globs_that_match_nothing(refused: Callable[..., TrtkitError]) -> None:
    error = refused(exclude=["stem/con", "op:conv", "head/*"])
    assert isinstance(error, ConfigError)
    places = [(problem.what, problem.where) for problem in error.problems]
    assert places == [
        ("`stem/con` matches no node", "quantize.exclude"),
        ("`op:conv` matches no node", "quantize.exclude"),
    ]


@pytest.mark.parametrize("method", ["int8_sq", "int4_awq", "int4_gptq", "fp8_pc", "nvfp4", "mxfp8", "as_stored"])
def test_methods_of_language_models(method: str, refused: Callable[..., TrtkitError]) -> None:
    assert str(refused(method=method)) == (
        "the model cannot be quantized this way\n"
        f"  quantize.method: `{method}` does not apply to vision models\n"
        "    fix: use one of int8, fp8, int8_wo, int4_wo"
    )


def test_options_of_language_models_are_named_all_at_once(refused: Callable[..., TrtkitError]) -> None:
    error = refused(kv_cache="fp8", head=True, smoothing=0.5, layers={"*": "fp8"})
    assert isinstance(error, ConfigError)
    wrong = [problem.where for problem in error.problems]
    assert wrong == ["quantize.kv_cache", "quantize.layers", "quantize.smoothing", "quantize.head"]


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("method", ["int8", "int8_wo", "int4_wo"])
def test_nothing_left_to_quantize(method: str, refused: Callable[..., TrtkitError]) -> None:
    error = refused(method=method, exclude=["*"])
    assert error.what == f"{method} finds nothing to quantize: every product is excluded or too small"


def test_a_block_that_does_not_divide(refused: Callable[..., TrtkitError]) -> None:
    node = helper.make_node("MatMul", ["images", "w"], ["y"], name="head")
    inputs, outputs = [models.tensor("images", "batch", 96)], [models.tensor("y", "batch", 1024)]
    model = models.model([node], inputs, outputs, [models.weights("w", 96, 1024)])
    assert str(refused(model, method="int4_wo", block=64)) == (
        "quantize.block: a block size of 64 does not divide the 96 inputs of `head`\n"
        "fix: remove `block` to use the largest size that divides, or exclude head"
    )


@pytest.mark.usefixtures("data")
def test_a_model_that_is_quantized_already(refused: Callable[..., TrtkitError]) -> None:
    model = lifted(small(), INT8)
    assert quantize_weights(model, INT8, (), None) == 2
    error = refused(model)
    assert (error.what, error.where) == ("the model already has Q/DQ nodes", "quantize")


def test_fp8_for_a_target_without_it_is_refused_before_any_work(
    workspace: Path, refuses: Callable[..., str], data: None
) -> None:
    models.save(small(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\n")
    asked = ("--set", "quantize.method=fp8", "--set", "quantize.calibration.data=a.npz", "--target", "sm86")
    message = refuses("build", "m.yaml", "--quiet", *asked, code=2)
    assert message.startswith("the target cannot run the network\n  target: type fp8 needs SM89: not on sm86")
    assert message.endswith("fix: build with a target of SM89 or newer, such as `--target sm89`")


def test_the_command_line_says_how_to_give_data(workspace: Path, refuses: Callable[..., str]) -> None:
    models.save(small(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 4, 8]}]\n")
    message = refuses("build", "m.yaml", "--quiet", "--set", "quantize.method=int8")
    assert message.startswith("quantize.calibration: this method needs calibration data")
