"""`trtkit verify` for users: exit codes, output, files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.support import models
from tests.support.pages import Page
from trtkit.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import onnx

    from tests.conftest import Ran

    Trtkit = Callable[..., Ran]

CONFIG = """\
source: {onnx: tiny.onnx}
profiles: [{batch: [1, 2, 4]}]
preprocess: {resize: {exact: [16, 16]}}
task: {kind: classification}
verify: {random_shapes: 0}
"""


@pytest.fixture
def config(workspace: Path) -> Path:
    models.save(models.classifier(), workspace / "tiny.onnx")
    path = workspace / "tiny.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def bundle(config: Path, trtkit: Trtkit) -> Path:
    assert trtkit("build", config, "-o", "bundle", "-q").code == 0
    return config.parent / "bundle"


def error_of(ran: Ran) -> str:
    return ran.err.partition("error: ")[2].rstrip()


def test_answers_have_the_names_that_the_bundle_holds(config: Path, trtkit: Trtkit) -> None:
    labels = config.parent / "names.txt"
    labels.write_text("ant\nbee\ncat\ndog\nelk\n")
    words = ("--set", "task.labels=names.txt")
    of_config = trtkit("verify", config, *words, "--json").json()["task"]
    assert trtkit("build", config, "-o", "bundle", "-q", *words).code == 0
    labels.unlink()
    of_bundle = trtkit("verify", "bundle", "--json").json()["task"]
    for task in (of_config, of_bundle):
        named = {
            str(number): ("ant", "bee", "cat", "dog", "elk")[number] for pair in task["answers"] for number in pair
        }
        assert task["names"] == named


def test_a_right_network_is_exit_0_with_a_table_that_says_so(config: Path, trtkit: Trtkit) -> None:
    ran = trtkit("verify", config)
    assert ran.code == 0
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert "reference ONNX Runtime on tiny.onnx" in lines
    assert "top-1 100.0% match the reference" in lines
    assert [line.split(" images ")[0] for line in lines if " images " in line] == [
        "profile 0 min",
        "profile 0 opt",
        "profile 0 max",
    ]
    assert lines[-1] == "PASS: tiny in fp32, tolerance 0.0001"


def test_json_is_one_object_with_every_measure(config: Path, trtkit: Trtkit) -> None:
    found = trtkit("verify", config, "--json", "--layers").json()
    assert found["passed"] is True
    assert found["outputs"]["logits"]["relative_rms_error"] < 1e-5
    assert [corner["shapes"]["images"][0] for corner in found["corners"]] == [1, 2, 4]
    assert {layer["node"] for layer in found["layers"]} >= {"stem/conv", "stem/relu", "head/gemm"}
    assert all(layer["relative_rms_error"] < 1e-5 for layer in found["layers"])


def test_a_network_out_of_tolerance_is_exit_3_and_shows_its_layers(config: Path, trtkit: Trtkit) -> None:
    ran = trtkit("verify", config, "--no-corners", "--set", "verify.max_relative_rms_error=1.0e-12")
    assert ran.code == 3
    lines = ran.out.splitlines()
    assert lines[-1] == "FAIL (out of tolerance): tiny in fp32, tolerance 1e-12"
    assert any(line.startswith("first layer out of tolerance: stem/conv (convolution fp32)") for line in lines)


def test_the_manifest_of_a_bundle_keeps_the_result(bundle: Path, trtkit: Trtkit) -> None:
    before = json.loads((bundle / "manifest.json").read_text())
    assert before["verify"] is None
    assert trtkit("verify", bundle, "-q").code == 0
    after = json.loads((bundle / "manifest.json").read_text())
    assert {**after, "verify": None} == before
    assert after["verify"]["passed"] is True
    assert after["verify"]["outputs"]["logits"]["relative_rms_error"] < 1e-5
    assert len(after["verify"]["corners"]) == 3
    assert trtkit("inspect", bundle).code == 0


@pytest.mark.parametrize(
    ("seed", "words"), [(None, "the source is not here any more"), (1, "the source has changed since the build")]
)
def test_a_bundle_without_its_source_is_compared_with_its_own_file_and_says_so(
    bundle: Path, trtkit: Trtkit, workspace: Path, seed: int | None, words: str
) -> None:
    (workspace / "tiny.onnx").unlink()
    if seed is not None:
        models.save(models.classifier(seed=seed), workspace / "tiny.onnx")
    found = trtkit("verify", bundle, "--no-corners", "--json").json()
    assert found["passed"] is True
    assert found["reference"] == f"ONNX Runtime on the network's own ONNX file; {words}"


def test_a_change_that_needs_no_build_reaches_the_bundle(
    bundle: Path, config: Path, trtkit: Trtkit, workspace: Path
) -> None:
    """Preprocessing, task and `verify` are no part of the engine; the folder may also have moved."""
    assert trtkit("verify", bundle, "--no-corners", "-q").code == 0
    config.write_text(CONFIG.replace("kind: classification", "kind: classification, min_agreement: 0.5"))
    (workspace / "tiny.onnx").rename(workspace / "moved.onnx")
    change = ("--set", "source.onnx=moved.onnx")
    ran = trtkit("build", config, *change, "-o", "bundle")
    assert ran.code == 0
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["config"]["task"]["min_agreement"] == 0.5
    assert manifest["config"]["source"]["onnx"] == str(workspace / "moved.onnx")
    assert manifest["verify"] is None
    found = trtkit("verify", bundle, "--no-corners", "--json").json()
    assert (found["passed"], found["reference"]) == (True, "ONNX Runtime on moved.onnx")


def test_a_bundle_is_verified_as_it_was_built(bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("verify", bundle, "--set", "precision=fp16")
    assert ran.code == 2
    assert "Error: a bundle is already built: --set" in ran.err


def test_a_bundle_is_not_repaired(bundle: Path, trtkit: Trtkit) -> None:
    ran = trtkit("verify", bundle, "--fix", "fixed.yaml", "-q")
    assert ran.code == 2
    assert "Error: a bundle cannot be repaired: verify its config with --fix, then build again" in ran.err


def test_a_changed_bundle_is_refused(bundle: Path, trtkit: Trtkit) -> None:
    onnx_file = bundle / "network" / "model.onnx"
    replace_file(onnx_file, onnx_file.read_bytes() + b" ")  # the cache's hard link stays as it was
    ran = trtkit("verify", bundle)
    assert ran.code == 1
    assert error_of(ran).startswith(f"{onnx_file}: the file has changed since the build")


def test_the_html_report_is_written(config: Path, trtkit: Trtkit, workspace: Path) -> None:
    ran = trtkit("verify", config, "--no-corners", "--html", "report.html")
    assert ran.code == 0
    assert ran.err.endswith("wrote report.html\n")
    page = Page((workspace / "report.html").read_text(encoding="utf-8"))
    assert len(page.specs) == 2
    for node in ("stem/conv", "stem/relu", "head/gemm"):
        assert any(cell.startswith(node) for cell in page.cells)
    assert "--no-corners --html report.html" in page.text


def test_an_onnx_file_needs_no_config(workspace: Path, trtkit: Trtkit) -> None:
    models.save(models.matmul(), workspace / "m.onnx")
    np.savez(workspace / "in.npz", x=np.eye(3, dtype=np.float32))
    found = trtkit("verify", "m.onnx", "--inputs", "in.npz", "--no-corners", "--json").json()
    assert (found["passed"], found["samples"]) == (True, ["in.npz"])


BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "NaN": (
        np.full((1, 3, 16, 16), np.nan, np.float32),
        "in.npz: `images` holds NaN or infinite values\nfix: give finite inputs",
    ),
    "outside the profile": (
        np.zeros((9, 3, 16, 16), np.float32),
        "in.npz: dimension 0 of `images` is 9; the profile allows 1 to 4\n"
        "fix: give other inputs, or widen the profile and build again",
    ),
}


@pytest.mark.parametrize("kind", BAD_INPUTS)
def test_bad_input_is_exit_1_with_its_reason(config: Path, refuses: Callable[..., str], kind: str) -> None:
    array, message = BAD_INPUTS[kind]
    np.savez(config.parent / "in.npz", images=array)
    assert refuses("verify", config, "--inputs", "in.npz", "-q") == message


def test_an_error_is_json_for_a_program(config: Path, trtkit: Trtkit, workspace: Path) -> None:
    (workspace / "empty").mkdir()
    ran = trtkit("verify", config, "--inputs", "empty", "--json")
    assert ran.code == 1
    assert ran.json()["what"] == "the folder holds no inputs"


def test_an_onnx_source_has_no_torch_module(config: Path, refuses: Callable[..., str]) -> None:
    assert refuses("verify", config, "--against", "torch", "-q") == (
        "--against torch: an ONNX source has no PyTorch module\nfix: use --against onnxruntime"
    )


@pytest.mark.parametrize("option", ["--html", "--fix"])
def test_a_place_that_cannot_be_written_is_known_before_the_work(config: Path, trtkit: Trtkit, option: str) -> None:
    ran = trtkit("verify", config, option, "missing/out")
    assert ran.code == 2
    assert "Error: cannot write `missing/out`: no such folder" in ran.err


def test_an_unknown_config_is_exit_2(workspace: Path, trtkit: Trtkit) -> None:
    assert trtkit("verify", "nothing").code == 2


def test_a_text_recognizer_keeps_its_alphabet_in_fp16(workspace: Path, trtkit: Trtkit) -> None:
    shape = ("batch", 4, 3)
    nodes = [helper.make_node("Softmax", ["x"], ["y"], name="softmax", axis=-1)]
    model = models.model(nodes, [models.tensor("x", *shape)], [models.tensor("y", *shape)])
    model.metadata_props.add(key="character", value="b")
    models.save(model, workspace / "text.onnx")
    steps = np.array([[2, 0, 1, 1], [1, 1, 2, 0]])  # index 2 is the space that the alphabet ends with
    np.savez(workspace / "in.npz", x=9 * np.eye(3, dtype=np.float32)[steps])
    words = ("--set", "precision=fp16", "--set", "task.kind=ctc-text", "--inputs", "in.npz", "--no-corners", "--json")
    found = trtkit("verify", "text.onnx", *words).json()
    assert (found["passed"], found["precision"]) == (True, "fp16")
    assert found["task"]["answers"] == [[" b", " b"], ["b ", "b "]]


def fp16_inside() -> onnx.ModelProto:
    """x [batch, 64] fp32 -> cast -> three products in fp16 -> cast -> y [batch, 64] fp32."""
    values = np.random.default_rng(0).standard_normal((3, 64, 64)) / 8
    weights = [models.constant(f"w{index}", value, "float16") for index, value in enumerate(values)]
    nodes = [helper.make_node("Cast", ["x"], ["h0"], "down", to=TensorProto.FLOAT16)]
    for index in range(3):
        nodes.append(helper.make_node("MatMul", [f"h{index}", f"w{index}"], [f"m{index}"], f"product{index}"))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"h{index + 1}"], f"relu{index}"))
    nodes.append(helper.make_node("Cast", ["h3"], ["y"], "up", to=TensorProto.FLOAT))
    return models.model(nodes, [models.tensor("x", "batch", 64)], [models.tensor("y", "batch", 64)], weights)


def test_the_tolerance_follows_from_what_the_source_itself_rounds_to(workspace: Path, trtkit: Trtkit) -> None:
    models.save(fp16_inside(), workspace / "half.onnx")
    ran = trtkit("verify", "half.onnx", "--set", "profiles=[{batch: [1, 2, 4]}]", "--no-layers")
    assert ran.code == 0, ran.out
    verdict = " ".join(ran.out.split()).partition("PASS: ")[2]
    assert verdict == "half in fp32, tolerance 0.02 since the source itself computes in fp16"
    report = trtkit("verify", "half.onnx", "--set", "profiles=[{batch: [1, 2, 4]}]", "--no-layers", "--json").json()
    assert report["source_precision"] == "fp16"
    assert report["outputs"]["y"]["relative_rms_error"] > 1e-4, "more than fp32 may have"


def test_weights_stored_in_fp16_alone_widen_no_tolerance(workspace: Path, trtkit: Trtkit) -> None:
    weights = models.constant("w", np.arange(12).reshape(3, 4) / 7, "float16")
    nodes = [
        helper.make_node("Cast", ["w"], ["wide"], "up", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "wide"], ["y"], "product"),
    ]
    model = models.model(nodes, [models.tensor("x", 2, 3)], [models.tensor("y", 2, 4)], [weights])
    models.save(model, workspace / "stored.onnx")
    report = trtkit("verify", "stored.onnx", "--json").json()
    assert (report["passed"], report["tolerance"]) == (True, 1e-4)
    assert "source_precision" not in report


@pytest.mark.parametrize("name", ["rows", "others", "a.0", "b.0"])
def test_a_dimension_that_two_inputs_share_goes_by_either_name(
    name: str, trtkit: Callable[..., Ran], workspace: Path
) -> None:
    """a [rows, 21] + b [others, 21], in rows of 84: random sizes are multiples of 4 by any of the names."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"], "sum"),
        helper.make_node("Reshape", ["sum", "shape"], ["y"], "wide"),
    ]
    inputs = [models.tensor("a", "rows", 21), models.tensor("b", "others", 21)]
    shape = models.constant("shape", [-1, 84], "int64")
    models.save(models.model(nodes, inputs, [models.tensor("y", "wide_rows", 84)], [shape]), workspace / "m.onnx")
    profile = f"profiles=[{{{name}: {{min: 4, opt: 8, max: 64, multiple_of: 4}}}}]"
    report = trtkit("verify", "m.onnx", "--set", profile, "--set", "verify.random_shapes=6", "--no-layers", "--json")
    assert report.code == 0, report.out + report.err
    sizes = {corner["shapes"][name][0] for corner in report.json()["corners"] for name in ("a", "b")}
    assert len(sizes) > 3
    assert all(size % 4 == 0 for size in sizes)


@pytest.mark.parametrize("name", ["rows", "others"])
def test_folding_is_checked_on_a_run_if_two_inputs_share_a_dimension(
    name: str, trtkit: Callable[..., Ran], workspace: Path
) -> None:
    """a [rows, 4] + b [others, 4] becomes [rows, 2, 2]; the file says [rows, 4], which onnxslim believes unchecked."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"], "sum"),
        helper.make_node("Shape", ["sum"], ["sizes"], "sizes"),
        helper.make_node("Slice", ["sizes", "zero", "one", "zero"], ["row"], "row"),
        helper.make_node("Concat", ["row", "two", "two"], ["shape"], "shape", axis=0),
        helper.make_node("Reshape", ["sum", "shape"], ["y"], "square"),
    ]
    constants = [models.constant(name, [value], "int64") for value, name in enumerate(("zero", "one", "two"))]
    inputs = [models.tensor("a", "rows", 4), models.tensor("b", "others", 4)]
    models.save(models.model(nodes, inputs, [models.tensor("y", "rows", 4)], constants), workspace / "m.onnx")
    built = trtkit("build", "m.onnx", "-o", "out", "--set", f"profiles=[{{{name}: [3, 4, 5]}}]")
    assert built.code == 0, built.err
    manifest = trtkit("inspect", "out", "--json").json()["manifest"]
    steps = {step["name"]: step["detail"] for step in manifest["steps"]}
    assert steps["declared shapes"] == "wrong, corrected: `y` is [3, 2, 2]"
    assert manifest["profiles"][0]["b"]["max"] == [5, 4]
