"""Models with operators that TensorRT lacks, in the commands."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import onnx
import pytest

from tests.selection import slow_unless
from tests.support import custom_op_models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

KINDS = {"deform_conv": "DeformConv", "mmcv_deform_conv": "mmcv::MMCVModulatedDeformConv2d"}


@pytest.mark.parametrize(
    ("kind", "precision"),
    slow_unless(
        lambda kind, precision: (kind == "mmcv_deform_conv") == (precision == "fp16"),
        itertools.product(KINDS, ("fp32", "fp16", "bf16")),
    ),
)
def test_deformable_convolution_builds_and_verifies(
    trtkit: Callable[..., Ran], workspace: Path, kind: str, precision: str
) -> None:
    onnx.save(getattr(custom_op_models, kind)(), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    built = trtkit("build", "m.yaml", "-o", "out", "--quiet", "--set", f"precision={precision}")
    assert built.code == 0, built.err
    found = trtkit("inspect", "out", "--json").json()
    steps = {step["name"]: step["detail"] for step in found["manifest"]["steps"]}
    assert steps["custom ops"] == f"2 DeformConv2d from {KINDS[kind]}"
    types = {layer["outputs"][0]["dtype"] for layer in found["network"]["layers"] if layer["type"] == "GRID_SAMPLE"}
    assert types == {"fp32"}
    products = {
        layer["outputs"][0]["dtype"] for layer in found["network"]["layers"] if layer["type"] == "MATRIX_MULTIPLY"
    }
    assert products == {precision}
    verified = trtkit("verify", "out")
    assert verified.code == 0, verified.out + verified.err
    needs_functions = kind == "mmcv_deform_conv"
    assert ("with trtkit's functions for 2 DeformConv2d" in " ".join(verified.out.split())) is needs_functions


def test_a_node_that_cannot_be_taken_ends_in_a_clear_error(refuses: Callable[..., str], workspace: Path) -> None:
    onnx.save(custom_op_models.mmcv_deform_conv(layers=1, deform_groups=4), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    said = refuses("build", "m.yaml")
    assert "trtkit cannot take 1 node" in said
    assert "18 channels of `offset`, 72 wanted: 2 * offset_groups * kernel" in said


def test_an_attribute_that_nobody_knows_ends_in_a_clear_error(refuses: Callable[..., str], workspace: Path) -> None:
    onnx.save(custom_op_models.mmcv_deform_conv(layers=1, padding=[1, 1, 1]), "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    assert refuses("build", "m.yaml", "--quiet") == (
        "trtkit cannot take 1 node\n"
        "  mmcv::MMCVModulatedDeformConv2d `layer0/dcn`: attribute `padding` is [1, 1, 1]: 2 numbers are allowed"
    )
