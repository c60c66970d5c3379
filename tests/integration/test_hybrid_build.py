"""Hybrids from a folder are built, run and verified; refusals say why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.decoders import relative_rms
from tests.support.hybrids import answers, case_of, saved
from trtkit.files import replace_file
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

pytestmark = pytest.mark.usefixtures("one_export")


def edit(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


@pytest.fixture
def vit(workspace: Path) -> Path:
    """A folder with a tiny ViT, and a config that names it."""
    saved(case_of("ViTModel"), workspace / "vit")
    (workspace / "m.yaml").write_text("source: {hf: vit}\n")
    return workspace / "vit"


@pytest.mark.parametrize("compose", ["fused", "chained"])
def test_bundle_computes_what_transformers_does(compose: str, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    case = case_of("DetrForObjectDetection")
    model = saved(case, workspace / "model")
    (workspace / "m.yaml").write_text(f"source: {{hf: model}}\nimage_size: {list(case.size)}\n")
    ran = trtkit("build", "m.yaml", "--set", f"compose={compose}", "--json")
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    engines = ["m"] if compose == "fused" else ["backbone", "encoder", "decoder"]
    assert [engine["path"] for engine in manifest["engines"]] == [f"engines/{name}.plan" for name in engines]
    assert [tensor["name"] for tensor in manifest["outputs"]] == list(case.outputs)
    feeders = [{tensor["feeder"] for tensor in stage["inputs"]} for stage in manifest["stages"]]
    assert feeders[0] == {"request"}
    assert all("stage" in each for each in feeders[1:])
    network = open_model(workspace / "bundles/m")
    pixels = torch.randn(2, 3, *case.size)
    found, wanted = network.run({"pixel_values": pixels.numpy()}), answers(model, case, pixels)
    for name in case.outputs:
        assert relative_rms(torch.from_numpy(found[name]), wanted[name]) <= 1e-5, name


@pytest.mark.parametrize(("precision", "compose"), [("fp16", "fused"), ("bf16", "chained")])
def test_precision_below_fp32_is_within_its_tolerance(
    precision: str, compose: str, vit: Path, trtkit: Callable[..., Ran]
) -> None:
    ran = trtkit("verify", "m.yaml", "--set", f"precision={precision}", "--set", f"compose={compose}", "--json")
    assert ran.code == 0, ran.err + ran.out
    found = ran.json()
    assert [part["passed"] for part in found["parts"]] == [True, True]
    assert [corner["passed"] for corner in found["corners"]] == [True] * len(found["corners"])


def test_verify_notes_parts_in_the_manifest(vit: Path, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml").code == 0
    ran = trtkit("verify", "bundles/m", "--layers", "--json")
    assert ran.code == 0, ran.err
    found = ran.json()
    assert [part["name"] for part in found["parts"]] == ["patch.embeddings", "encoder.last_hidden_state"]
    assert max(part["relative_rms_error"] for part in found["parts"]) <= 1e-6
    assert "encoder/layers.1/attention/o/matmul" in [layer["layer"] for layer in found["layers"]]
    manifest = json.loads((workspace / "bundles/m/manifest.json").read_text())
    assert manifest["verify"]["passed"] is True


def test_inspect_lists_parts_and_what_goes_between_them(vit: Path, trtkit: Callable[..., Ran]) -> None:
    said = trtkit("inspect", "m.yaml", "--set", "compose=chained").out
    assert "parts of vit, chained" in said
    assert "patch.embeddings fp32" in said
    found = trtkit("inspect", "m.yaml", "--json").json()
    assert [(part["name"], part["kind"]) for stage in found["stages"] for part in stage["parts"]] == [
        ("patch", "onnx"),
        ("encoder", "network"),
    ]
    layers = [part["layers"] for stage in found["stages"] for part in stage["parts"]]
    assert sum(layers) == found["network"]["totals"]["layers"]


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("vit-hybrid", "ViTForImageClassification"),
        pytest.param("rt-detr-v2", "RTDetrV2ForObjectDetection", marks=pytest.mark.slow),
    ],
)
def test_shipped_config_builds_a_folder_of_its_family(
    name: str, architecture: str, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    case = case_of(architecture)
    saved(case, workspace / "model")
    ran = trtkit("build", name, "--set", "source.hf=model", "--set", f"image_size={list(case.size)}", "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["manifest"]["model_type"] == case.model_type


@pytest.mark.parametrize(
    "architecture",
    ["DetrForObjectDetection", pytest.param("RTDetrV2ForObjectDetection", marks=pytest.mark.slow)],
)
def test_detector_goes_through_onnx_as_a_whole(architecture: str, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    case = case_of(architecture)
    layers = {name: 1 for name in ("encoder_layers", "decoder_layers") if architecture == "DetrForObjectDetection"}
    saved(replace(case, config={**case.config, **layers}), workspace / "model")
    (workspace / "m.yaml").write_text(
        f"source: {{hf: model}}\nroute: onnx\nimage_size: {list(case.size)}\nprofiles: [batch: [1, 2, 3]]\n"
        "verify: {pair_rows: true, random_shapes: 0}\n"
    )
    ran = trtkit("verify", "m.yaml", "--json")
    assert ran.code == 0, ran.err
    errors = [output["relative_rms_error"] for output in ran.json()["outputs"].values()]
    assert len(errors) == 2
    assert [corner["passed"] for corner in ran.json()["corners"]] == [True] * 3
    assert max(errors) <= 1e-5


def test_second_build_is_not_done_again(vit: Path, own_cache: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml", "--json").json()["origin"] == "built"
    assert trtkit("build", "m.yaml", "--json").json()["origin"] == "unchanged"
    assert trtkit("build", "m.yaml", "--set", "compose=chained", "--json").json()["origin"] == "built"


def test_changed_plan_or_onnx_is_found(vit: Path, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml").code == 0
    network = workspace / "bundles/m/network/m.onnx"
    replace_file(network, network.read_bytes() + b"x")
    ran = trtkit("verify", "bundles/m")
    assert ran.code == 1
    assert "the file has changed since the build: SHA-256 mismatch" in ran.err


def test_bundle_whose_weights_changed_is_not_verified(vit: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml").code == 0
    weights = load_file(vit / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, vit / "model.safetensors", {"format": "pt"})
    ran = trtkit("verify", "bundles/m")
    assert ran.code == 1
    assert "the source has changed since the bundle was built" in ran.err


def test_missing_and_misshapen_weights_are_named_all_at_once(vit: Path, refuses: Callable[..., str]) -> None:
    weights = load_file(vit / "model.safetensors")
    weights.pop("layernorm.weight")
    weights["pooler.dense.bias"] = weights["pooler.dense.bias"][:-1].clone()
    weights["surplus"] = torch.zeros(3)
    save_file(weights, vit / "model.safetensors", {"format": "pt"})
    where = vit / "config.json"
    assert refuses("build", "m.yaml") == (
        "the weights do not fit a `vit` of this config\n"
        f"  {where}: `layernorm.weight` is missing, of shape [32]\n"
        f"  {where}: `pooler.dense.bias` has shape [19]; expected [20]\n"
        f"  {where}: `surplus` is not a weight of this model"
    )


def test_missing_weight_of_an_exported_part_is_named(vit: Path, refuses: Callable[..., str]) -> None:
    weights = load_file(vit / "model.safetensors")
    weights.pop("embeddings.patch_embeddings.projection.bias")
    save_file(weights, vit / "model.safetensors", {"format": "pt"})
    said = refuses("build", "m.yaml")
    assert "1 weights are missing, such as `embeddings.patch_embeddings.projection.bias`" in said


def test_weight_that_is_not_a_number_is_refused_in_every_part(workspace: Path, refuses: Callable[..., str]) -> None:
    case = case_of("RTDetrForObjectDetection")
    saved(case, workspace / "model")
    (workspace / "m.yaml").write_text(f"{{source: {{hf: model}}, image_size: {list(case.size)}}}\n")
    weights = load_file(workspace / "model/model.safetensors")
    weights["model.encoder_input_proj.0.0.weight"][3] = float("nan")
    save_file(weights, workspace / "model/model.safetensors", {"format": "pt"})
    assert "NaN or infinite" in refuses("build", "m.yaml")


def test_misshapen_weight_of_an_exported_part_is_named(vit: Path, refuses: Callable[..., str]) -> None:
    edit(vit, num_channels=4)
    said = refuses("build", "m.yaml")
    assert "weights below `embeddings.patch_embeddings.projection.` do not fit: size mismatch for weight" in said


def test_wrong_image_size_is_refused(vit: Path, refuses: Callable[..., str]) -> None:
    assert refuses("build", "m.yaml", "--set", "image_size=[36, 18]") == (
        "image_size: image size 36 x 18 is not the model's, 30 x 18\n"
        "fix: leave it out, or use a model whose positions are resized (dinov2)"
    )


def test_field_that_changes_the_mathematics_is_refused_by_name(vit: Path, refuses: Callable[..., str]) -> None:
    edit(vit, use_registers=True)
    assert "`use_registers` is `True`" in refuses("build", "m.yaml")


def test_io_types_have_no_meaning_for_a_hybrid(vit: Path, refuses: Callable[..., str]) -> None:
    said = refuses("build", "m.yaml", "--set", "io_types=fp16", code=2)
    assert said == (
        "the config does not fit a hybrid\n"
        "  io_types: does not apply to a hybrid\n"
        "    fix: remove it: trtkit sets these types itself"
    )


def test_unknown_family_that_is_asked_to_be_a_hybrid_is_refused(vit: Path, refuses: Callable[..., str]) -> None:
    edit(vit, model_type="resnet")
    said = refuses("build", "m.yaml", "--set", "route=hybrid")
    assert "`resnet` is not a hybrid family" in said
    assert "or use `route: onnx`" in said


def test_onnx_runtime_is_no_reference_of_a_hybrid(vit: Path, refuses: Callable[..., str]) -> None:
    assert refuses("verify", "m.yaml", "--against", "onnxruntime") == (
        "--against onnxruntime: a hybrid is not an ONNX file\nfix: leave it out, or verify with `--set route=onnx`"
    )


def test_same_folder_goes_through_onnx_as_a_whole(vit: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", "m.yaml", "--set", "route=onnx", "--json")
    assert ran.code == 0, ran.err
    assert [stage["writer"] for stage in ran.json()["manifest"]["stages"]] == ["parser"]


def test_a_hybrid_that_memory_cannot_hold_is_refused_before_it_is_exported(
    vit: Path, refuses: Callable[..., str]
) -> None:
    edit(vit, intermediate_size=2**28)
    said = refuses("build", "m.yaml")
    assert "GiB of memory needed" in said
    assert "fix: free some memory, or build on a machine with more" in said
