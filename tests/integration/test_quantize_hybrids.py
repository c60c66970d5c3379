"""Hybrids quantized part by part: results, contents of the bundle, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.integration.test_hybrid_parity import paired
from tests.support.decoders import relative_rms
from tests.support.hybrids import CASES, Case, case_of, make, saved
from trtkit.errors import ConfigError, QuantizeError
from trtkit.verification.hybrid_reference import HybridReference

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran
    from tests.support.hybrids import Hybrid
    from trtkit.quantization.by_part import HybridQuantization

    Run = Callable[..., Ran]
    Refuses = Callable[..., str]

pytestmark = pytest.mark.usefixtures("one_export")
EXPORTED = {"detr": "backbone", "rt_detr": "features", "rt_detr_v2": "features"}
# Of a small random model's outputs, where inputs of layers are rounded too, which the reference's are not.
FAST = ("ViTForImageClassification", "Dinov2Model-resized", "SiglipVisionModel", "DetrForObjectDetection")
WRITTEN = [case if str(case) in FAST else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
ROUNDED = {"int8": 0.1, "fp8": 0.3, "mxfp8": 0.3}
WIDE = Case(
    "ViTForImageClassification",
    "vit",
    ("logits",),
    {
        "hidden_size": 256,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 320,
        "image_size": [32, 48],
        "patch_size": 16,
        "num_labels": 7,
    },
    (32, 48),
)


def written(case: Case, tmp_path: Path, method: str, precision: str = "fp32") -> Hybrid:
    """Return the case with the parts that the network API writes quantized."""
    saved(case, tmp_path / "model")
    quantize = {"method": method, "parts": {EXPORTED.get(case.model_type, "patch"): "none"}}
    return make(case, tmp_path / "model", "fused", precision, quantize=quantize)


def compare(hybrid: Hybrid, case: Case) -> dict[str, float]:
    """Return each output's error against transformers on the dequantized weights."""
    pixels = torch.randn(2, 3, *case.size, generator=torch.Generator().manual_seed(1))
    theirs = HybridReference(hybrid.opened).run({"pixel_values": pixels.numpy()})
    found, wanted = hybrid.run(pixels), {name: torch.from_numpy(value) for name, value in theirs.items()}
    if hybrid.spec.has_unordered_rows:
        found = paired(found, wanted)
    return {name: relative_rms(found[name].float(), wanted[name]) for name in case.outputs}


def dequantized(hybrid: Hybrid) -> set[str]:
    """Return the layers of the network whose matrices are dequantized in it."""
    network = hybrid.execution.stages[0].layers.owner.graph.network  # type: ignore[attr-defined]
    names = [network.get_layer(index).name for index in range(network.num_layers)]
    return {name.partition("/dequantize")[0].replace("/", ".") for name in names if "/dequantize" in name}


def quantization_of(hybrid: Hybrid) -> HybridQuantization:
    assert hybrid.opened.quantization is not None
    return hybrid.opened.quantization


@pytest.mark.parametrize("case", WRITTEN, ids=str)
def test_written_parts_are_those_of_transformers_on_dequantized_weights(case: Case, tmp_path: Path) -> None:
    made = written(case, tmp_path, "int8_wo")
    assert max(compare(made, case).values()) <= 1e-5
    asked, found = set(quantization_of(made).layers), dequantized(made)
    shares = {f"{path}.{index}" for path in asked if path.endswith(".qkv") for index in range(3)}
    assert found == {path for path in asked if not path.endswith(".qkv")} | shares


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("SiglipVisionModel", "int4_wo"),
        ("ViTModel", "int8"),
        ("ViTModel", "mxfp8"),
        ("DetrForObjectDetection", "fp8"),
    ],
)
def test_written_parts_in_other_types_build(name: str, method: str, tmp_path: Path) -> None:
    case = case_of(name)
    made = written(case, tmp_path, method)
    assert max(compare(made, case).values()) <= ROUNDED.get(method, 1e-5)
    assert made.builds()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT whose patches' convolution is large enough to be quantized, and data to measure it on."""
    folder = tmp_path_factory.mktemp("wide")
    saved(WIDE, folder / "model")
    pixels = np.random.default_rng(0).standard_normal((4, 3, *WIDE.size)).astype(np.float32)
    np.savez(folder / "data.npz", pixel_values=pixels)
    (folder / "m.yaml").write_text("source: {hf: model}\nprofiles: [batch: [1, 2, 3]]\nverify: {random_shapes: 0}\n")
    return folder


def test_each_part_has_a_method_of_its_own(wide: Path, workspace: Path, trtkit: Run) -> None:
    parts = "quantize.parts={patch: int8_wo, encoder: {method: int4_wo, exclude: [encoder.classifier]}}"
    ran = trtkit("build", wide / "m.yaml", "--set", parts, "--target", "sm89", "--json", "-q")
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    bytes_by_type = manifest["totals"]["weight_bytes"]
    assert bytes_by_type["int8"] == 256 * 3 * 16 * 16
    assert bytes_by_type["int4"] == (4 * 256 * 256 + 2 * 256 * 320) // 2
    said = [step["detail"] for step in manifest["steps"] if step["name"] == "quantize"]
    assert said[0] == "part `encoder`: 6 layers int4_wo"
    assert said[1].startswith("part `patch`, int8_wo: 0 activations, 1 weights")
    ran = trtkit("verify", "bundles/m", "--json")
    assert ran.code == 0, ran.out + ran.err
    assert ran.json()["tolerance"] == 0.2
    said_text = trtkit("inspect", "bundles/m").out
    assert "int4" in said_text


@pytest.mark.slow
def test_activations_of_both_kinds_of_parts(wide: Path, workspace: Path, trtkit: Run) -> None:
    asked = ("quantize.method=int8", f"quantize.calibration.data={wide}/data.npz")
    words = [word for text in asked for word in ("--set", text)]
    assert trtkit("build", wide / "m.yaml", *words, "-q").code == 0
    ran = trtkit("verify", "bundles/m", "--json")
    assert ran.code == 0, ran.out + ran.err
    assert 1e-4 < ran.json()["outputs"]["logits"]["relative_rms_error"] < 0.1
    layers = json.loads((workspace / "bundles/m/network.json").read_text())["layers"]
    rounded = [layer["name"] for layer in layers if layer["type"] == "QUANTIZE"]
    assert len([name for name in rounded if name.startswith("encoder/")]) == 5  # q, k and v read the same
    assert len(rounded) > 5


def refusal(wide: Path, refuses: Refuses, quantize: str, *words: str, code: int = 2) -> str:
    asked = (wide / "m.yaml", "--set", f"quantize={quantize}", *words, "--quiet")
    return refuses("build", *asked, code=code)


def test_a_part_that_is_not_there(wide: Path, refuses: Refuses) -> None:
    assert refusal(wide, refuses, "{parts: {encoders: int8_wo}}") == (
        "the model cannot be quantized this way\n"
        "  quantize.parts: no part `encoders`\n    fix: its parts are patch, encoder"
    )


def test_a_method_that_a_part_cannot_have(wide: Path, refuses: Refuses) -> None:
    assert refusal(wide, refuses, "{method: mxfp8, parts: {encoder: int4_awq}}") == (
        "the model cannot be quantized this way\n"
        "  quantize.method: part `patch` comes through ONNX and cannot be mxfp8\n"
        "    fix: use one of int8, fp8, int8_wo, int4_wo, or `none`: `quantize.parts.patch: int8`\n"
        "  quantize.parts.encoder.method: part `encoder` is written by the network API and cannot be int4_awq\n"
        "    fix: use one of int8, fp8, int8_wo, int4_wo, mxfp8, or `none`"
    )


def test_options_of_language_models(wide: Path, refuses: Refuses) -> None:
    said = refusal(wide, refuses, "{method: int8_wo, kv_cache: int8, parts: {patch: {method: int8_wo, head: true}}}")
    assert "quantize.kv_cache: a KV cache format applies to language models only" in said
    assert "quantize.parts.patch.head: an output head applies to language models only" in said


def test_globs_that_match_nothing(wide: Path, tmp_path: Path) -> None:
    asked = {"method": "int8_wo", "exclude": ["patch/*", "op:Conv", "encoder.layers.9.*"], "layers": {"x": "int8"}}
    with pytest.raises(ConfigError) as caught:
        make(WIDE, Path(shutil.copytree(wide / "model", tmp_path / "model")), "fused", quantize=asked)
    assert [(problem.what, problem.where) for problem in caught.value.problems] == [
        ("`encoder.layers.9.*` matches no layer or node of its parts", "quantize.exclude"),
        ("`x` matches no layer or node of its parts", "quantize.layers"),
    ]


def test_nothing_left_of_a_part(wide: Path, refuses: Refuses, tmp_path: Path) -> None:
    said = refusal(wide, refuses, "{parts: {encoder: {method: int8_wo, exclude: ['encoder.*']}}}")
    assert "quantize.parts.encoder: the method would quantize nothing in part `encoder`\n" in said
    folder = Path(shutil.copytree(wide / "model", tmp_path / "model"))
    with pytest.raises(QuantizeError, match="int4_wo finds nothing to quantize in part `patch`") as caught:
        make(WIDE, folder, "fused", quantize={"parts": {"patch": "int4_wo"}})
    assert caught.value.where == "quantize.parts.patch"


def test_parts_of_models_that_have_none(wide: Path, refuses: Refuses) -> None:
    said = refusal(wide, refuses, "{method: int8_wo, parts: {patch: none}}", "--set", "route=onnx")
    assert said.endswith("quantize.parts: no part `patch`\n    fix: remove it: the model is not made of parts")


def test_a_section_that_asks_for_nothing(wide: Path, refuses: Refuses) -> None:
    said = refusal(wide, refuses, "{parts: {patch: none}}")
    assert "nothing would be quantized: set `method`, `layers`, `kv_cache`, `sparsity` or `parts`" in said


def test_quantize_writes_no_hybrid(wide: Path, refuses: Refuses) -> None:
    said = refuses("quantize", wide / "m.yaml", "--method", "int8_wo", "--quiet", code=2)
    assert "quantize: models of several parts cannot be written as one quantized model" in said
    assert "fix: run `trtkit build`, which quantizes each part as it is built; `--set route=onnx` quantizes" in said


@pytest.mark.slow
def test_vit_b_16_is_half_as_large(workspace: Path, trtkit: Run) -> None:
    saved(Case("ViTForImageClassification", "vit", ("logits",), {"num_labels": 1000}, (224, 224)), workspace / "model")
    asked = ("--set", "source.hf=model", "--set", "quantize.method=int8_wo", "--target", "sm89", "--json", "-q")
    ran = trtkit("build", "vit-hybrid", *asked)
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    assert manifest["totals"]["weight_bytes"]["int8"] == 12 * 12 * 768**2 + 1000 * 768 + 3 * 16 * 16 * 768
    weights = sum(manifest["totals"]["weight_bytes"].values())
    assert weights < manifest["engines"][0]["size_bytes"] < 1.15 * weights
