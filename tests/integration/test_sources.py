"""PyTorch modules, Hugging Face folders and awkward ONNX files become bundles."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from safetensors.torch import save_file

from tests.support import models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

FACTORY = """\
    import torch

    def make(width=4):
        return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Tanh())

    def download(width: int) -> torch.nn.Module:
        from urllib.error import URLError

        raise URLError("no network")
"""
CONFIG = """\
    source:
      torch:
        factory: factory:make
        kwargs: {width: 6}
        checkpoint: weights.safetensors
        inputs:
          x: {shape: [batch, 3]}
        outputs: [y]
"""


@pytest.fixture
def build(workspace: Path, trtkit: Callable[..., Ran]) -> Callable[..., Any]:
    def run(*words: object) -> Any:
        ran = trtkit("build", "m.yaml", "--json", *words)
        assert ran.code == 0, ran.err
        return ran.json()["manifest"]

    return run


@pytest.fixture
def torch_config(workspace: Path) -> dict[str, torch.Tensor]:
    """Write factory, checkpoint and config; return the checkpoint's tensors."""
    generator = torch.Generator().manual_seed(5)
    state = {
        "0.weight": torch.randn(6, 3, generator=generator),
        "0.bias": torch.randn(6, generator=generator),
    }
    save_file(state, workspace / "weights.safetensors")
    (workspace / "factory.py").write_text(textwrap.dedent(FACTORY))
    (workspace / "m.yaml").write_text(textwrap.dedent(CONFIG))
    return state


def tensors(records: list[dict[str, Any]]) -> list[tuple[str, str, list[int]]]:
    return [(record["name"], record["dtype"], record["shape"]) for record in records]


def run_bundle(**inputs: np.ndarray) -> np.ndarray:
    return onnx.reference.ReferenceEvaluator("bundles/m/network/model.onnx").run(None, inputs)[0]


def test_torch_module_is_exported_with_its_checkpoint(
    torch_config: dict[str, torch.Tensor], build: Callable[..., Any]
) -> None:
    manifest = build()
    assert tensors(manifest["inputs"]) == [("x", "fp32", [-1, 3])]
    assert tensors(manifest["outputs"]) == [("y", "fp32", [-1, 6])]
    assert [file["path"].rpartition("/")[2] for file in manifest["sources"]] == ["factory.py", "weights.safetensors"]
    x = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    expected = torch.tanh(torch.from_numpy(x) @ torch_config["0.weight"].T + torch_config["0.bias"])
    np.testing.assert_allclose(run_bundle(x=x), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_checkpoint_that_does_not_fit_names_the_tensors(
    workspace: Path, torch_config: object, refuses: Callable[..., str]
) -> None:
    save_file({"0.weight": torch.ones(6, 3), "2.bias": torch.ones(6)}, workspace / "weights.safetensors")
    assert refuses("build", "m.yaml") == (
        f"{workspace}/weights.safetensors: the checkpoint does not fit the module: "
        'Missing key(s) in state_dict: "0.bias".; Unexpected key(s) in state_dict: "2.bias".'
    )


def test_pickled_code_is_not_run(workspace: Path, torch_config: object, refuses: Callable[..., str]) -> None:
    torch.save(torch.nn.Linear(3, 6), workspace / "evil.pt")
    message = refuses("build", "m.yaml", "--set", "source.torch.checkpoint=evil.pt")
    assert message == (
        f"{workspace}/evil.pt: the checkpoint is not a plain state dict of tensors\nfix: save it as safetensors"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("factory=nowhere:make", "nowhere:make: factory module `nowhere` does not import: No module named"),
        ("factory=factory:made", "factory:made: `factory` has no `made`\nfix: correct `source.torch.factory`"),
        ("kwargs={depth: 2}", "source.torch.kwargs: `factory:make` does not take these kwargs: make() got"),
        (
            "factory=factory:download",
            "factory:download: the factory failed: URLError: <urlopen error no network>\n"
            "fix: if it downloads weights, fetch them first and name the file in `source.torch.checkpoint`",
        ),
        ("inputs.x.shape=[batch, 4]", "factory:make: torch.export cannot trace the module: "),
    ],
)
def test_factory_that_does_not_work_is_named(
    override: str, expected: str, torch_config: object, refuses: Callable[..., str]
) -> None:
    assert refuses("build", "m.yaml", "--set", f"source.torch.{override}").startswith(expected)


def test_hugging_face_folder_becomes_a_classifier(workspace: Path, build: Callable[..., Any]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=7,
    )  # fmt: skip
    torch.manual_seed(0)
    vit = transformers.ViTForImageClassification(config).eval()
    vit.save_pretrained(workspace / "vit")
    (workspace / "m.yaml").write_text("{source: {hf: vit}, route: onnx}\n")
    manifest = build()
    assert tensors(manifest["inputs"]) == [("pixel_values", "fp32", [-1, 3, 16, 16])]
    assert tensors(manifest["outputs"]) == [("logits", "fp32", [-1, 7])]
    pixels = torch.rand(3, 3, 16, 16)
    expected = vit(pixels).logits.detach().numpy()
    np.testing.assert_allclose(run_bundle(pixel_values=pixels.numpy()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config_json", "expected"),
    [
        (None, "`config.json` is missing\nfix: give a folder that transformers saved"),
        ("{", "not valid JSON: "),
        ('{"model_type": "vit"}', "the input size is in neither `config.json` nor `preprocessor_config.json`"),
        ('{"model_type": "nobodys", "image_size": 8}', "transformers cannot read the config: "),
        ('{"model_type": "vit", "image_size": 8}', "transformers cannot load the model: "),
    ],
)
def test_folder_that_transformers_did_not_save_is_refused(
    config_json: str | None, expected: str, workspace: Path, refuses: Callable[..., str]
) -> None:
    (workspace / "vit").mkdir()
    if config_json is not None:
        (workspace / "vit/config.json").write_text(config_json)
    (workspace / "m.yaml").write_text("{source: {hf: vit}, route: onnx}\n")
    assert f": {expected}" in refuses("build", "m.yaml")


def test_external_data_is_taken_in(workspace: Path, build: Callable[..., Any]) -> None:
    models.save_external(models.matmul(), workspace / "m.onnx")
    (workspace / "m.onnx.data").rename(workspace / "blob")
    (workspace / "m.onnx.data").symlink_to("blob")  # within the folder, as caches do
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    manifest = build()
    assert [file["path"].rpartition("/")[2] for file in manifest["sources"]] == ["m.onnx", "m.onnx.data"]
    expected = np.ones((2, 3), np.float32) @ np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(run_bundle(x=np.ones((2, 3), np.float32)), expected)


@pytest.mark.parametrize("placeholder", ["?", -1])
def test_placeholders_for_several_sizes_get_names_of_their_own(
    placeholder: str | int, workspace: Path, build: Callable[..., Any]
) -> None:
    models.save(models.question_marks(placeholder), workspace / "m.onnx")
    (workspace / "m.yaml").write_text(
        "source: {onnx: m.onnx}\nprofiles: [{x.0: [1, 2, 4], x.2: 48, x.3: [8, 16, 32]}]\n"
    )
    shapes = build()["profiles"][0]["x"]
    assert shapes == {"min": [1, 3, 48, 8], "opt": [2, 3, 48, 16], "max": [4, 3, 48, 32]}


def test_old_model_is_lifted_and_its_weights_are_no_inputs(workspace: Path, build: Callable[..., Any]) -> None:
    models.save(models.old_opset(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    manifest = build()
    steps = {step["name"]: step["detail"] for step in manifest["steps"]}
    assert steps["opset"] == "opset 7 lifted to 13"
    assert [tensor["name"] for tensor in manifest["inputs"]] == ["x"]


def test_several_profiles_are_all_in_the_manifest(workspace: Path, build: Callable[..., Any]) -> None:
    models.save(models.classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: 1}, {batch: [1, 16, 64]}]\n")
    profiles = build()["profiles"]
    assert [[p["images"][kind][0] for kind in ("min", "opt", "max")] for p in profiles] == [[1, 1, 1], [1, 16, 64]]


@pytest.mark.parametrize(("mode", "opset"), [("bilinear", 16), ("nearest", 16), ("linear", 20), ("cubic", 20)])
def test_grid_sample_keeps_its_mode(mode: str, opset: int, workspace: Path, build: Callable[..., Any]) -> None:
    models.save(models.grid_sample(mode, opset), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert tensors(build()["outputs"]) == [("y", "fp32", [1, 2, 3, 7])]
