"""`trtkit inspect` of an ONNX file, a config and a bundle, against independent counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import pytest

from tests.conftest import tree
from tests.support import models
from trtkit.bundle.bundle import open_bundle
from trtkit.report.models import bundle_summary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

CONV_FLOPS, GEMM_FLOPS = 2 * 8 * 16 * 16 * 3 * 9, 2 * 5 * 8


@pytest.fixture
def classifier(workspace: Path) -> Path:
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    return models.save(models.classifier(), workspace / "m.onnx")


def test_onnx_file_config_and_bundle_tell_the_same_network(classifier: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml", "-o", "b").code == 0
    file, config, bundle = (trtkit("inspect", path, "--json").json() for path in ("m.onnx", "m.yaml", "b"))
    assert (file["kind"], config["kind"], bundle["kind"]) == ("network", "network", "bundle")
    assert file["network"] == config["network"] == bundle["network"]
    totals = file["network"]["totals"]
    assert totals["weight_bytes"]["fp32"] == 4 * (8 * 3 * 9 + 5 * 8 + 5)
    by_type = {layer["type"]: layer["flops"] for layer in file["network"]["layers"] if layer["flops"]}
    assert (by_type["CONVOLUTION"], by_type["MATRIX_MULTIPLY"]) == (CONV_FLOPS, GEMM_FLOPS)
    assert bundle["manifest"]["totals"] == totals


def test_inspecting_writes_nothing(workspace: Path, classifier: Path, trtkit: Callable[..., Ran]) -> None:
    before = tree(workspace)
    assert trtkit("inspect", classifier, "--quiet").err == ""
    assert tree(workspace) == before


def test_tables_show_what_a_person_asks(classifier: Path, trtkit: Callable[..., Ran]) -> None:
    out = trtkit("inspect", classifier).out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "input images fp32 [?, 3, 16, 16]",
        "output logits fp32 [?, 5]",
        "profiles images: 1x3x16x16 | 1x3x16x16 | 8x3x16x16",
        "precision fp32; I/O types: model",
        f"convolution 1 {CONV_FLOPS / 1e3:.1f} K 11.8 KiB",
        "stem fp32 [1, 8, 16, 16] 8.0 KiB",
    ):
        assert line in lines
    assert "largest tensors" in lines


def test_layers_lists_every_layer_in_order(
    classifier: Path, trtkit: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a row each
    found = trtkit("inspect", classifier, "--json").json()["network"]["layers"]
    out = trtkit("inspect", classifier, "--layers").out
    rows = out.partition("layers in order")[2].splitlines()[2:]
    assert [row.split()[0] for row in rows if row.strip()][: len(found)] == [layer["name"] for layer in found]


def test_overrides_change_what_is_shown(classifier: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("inspect", classifier, "--json", "--set", "profiles.0.batch=[2, 4, 8]", "--set", "io_types=fp16")
    found = ran.json()["network"]
    assert found["shapes"] == {"images": [4, 3, 16, 16]}
    assert found["inputs"] == [{"name": "images", "dtype": "fp16", "shape": [-1, 3, 16, 16]}]
    assert sum(layer["flops"] for layer in found["layers"] if layer["type"] == "CONVOLUTION") == 4 * CONV_FLOPS


def test_names_with_brackets_are_shown(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    model = models.matmul()
    model.graph.node[0].name = "[/model/head]"
    models.save(model, workspace / "m.onnx")
    assert "[/model/head]" in trtkit("inspect", "m.onnx", "--layers").out


def test_missing_onnx_file_is_told(refuses: Callable[..., str]) -> None:
    assert refuses("inspect", "nowhere.onnx") == "nowhere.onnx: no such file\nfix: check the path"


def test_resnet50_costs_what_is_published(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    found: Any = trtkit("inspect", "resnet50", "--json").json()["network"]
    layers = [layer for layer in found["layers"] if layer["type"] in {"CONVOLUTION", "MATRIX_MULTIPLY"}]
    # torchvision publishes 4.09 G multiply-adds and 25,557,032 parameters; TensorRT folds the batch norms away.
    assert sum(layer["flops"] for layer in layers) / 2e9 == pytest.approx(4.09, abs=0.005)
    assert found["totals"]["weight_bytes"] == {"fp32": pytest.approx(4 * 25_557_032, rel=0.002)}
    assert len(layers) == 54  # 53 convolutions and the classifier


def test_described_nodes_are_those_of_the_prepared_model(classifier: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "m.yaml", "-o", "b").code == 0
    nodes = {node.name for node in onnx.load("b/network/model.onnx").graph.node}
    names = {layer["name"] for layer in trtkit("inspect", "b", "--json").json()["network"]["layers"]}
    assert {"stem/conv", "stem/relu", "pool"} <= nodes & names


def test_tensors_of_all_layers_are_one_row_of_each_kind(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    lines = [str(value) for _, value in bundle_summary(bundle).rows]
    for kind in ("past", "past_prompt", "present", "present_prompt"):
        assert sum(f"{kind}_key_0 .. {kind}_value_1 " in line for line in lines) == 1, kind
    runtime = next(line for line in lines if line.endswith("from the runtime"))
    assert {"position_ids", "write_indices", "logit_index"} < set(runtime.replace(",", "").split())
    names = {tensor.name for tensor in (*bundle.manifest.inputs, *bundle.manifest.outputs)}
    missing = {name for name in names if not any(name in line for line in lines)}
    assert missing
    assert all(name.startswith(("past_", "present_")) for name in missing)
    assert {"past_key_1", "present_prompt_value_0"} <= missing
