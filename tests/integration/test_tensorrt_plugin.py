"""Every op's plugin through TensorRT's own Python code: registration, shapes, types, start of the kernel, kernel."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtkit.dtypes import DType, dtype_of
from trtkit.network.aot import compile_kernel, load_kernels
from trtkit.network.custom_op import CustomOp, load_ops
from trtkit.network.foreign import Fact
from trtkit.network.plugin import Plugin, type_of

triton = pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorrt_bindings") is None or shutil.which("cc") is None,
        reason="needs TensorRT's Python bindings and a C compiler",
    ),
]
CASES = [(op.name, dtype, is_open) for op in load_ops().values() for dtype in ("fp32", "fp16") for is_open in (0, 1)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, int], dict[str, Any]]:
    """What came out of TensorRT's code, by op, data type and whether the batch was open."""
    command = [sys.executable, "-m", "tests.tensorrt_plugin", str(tmp_path_factory.mktemp("libraries"))]
    ran = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {(line["op"], line["dtype"], line["is_open"]): line for line in lines}


def _facts(op: CustomOp, dtype: DType) -> list[Fact]:
    plugin: Plugin = op.part("plugin").PLUGIN
    shapes = op.part("cases").TYPICAL.shapes
    return [Fact(type_of(types, dtype), shape) for types, shape in zip(plugin.types, shapes, strict=False)]


@pytest.mark.parametrize(("name", "dtype", "is_open"), CASES)
def test_outputs_are_what_the_op_infers(found: Any, name: str, dtype: str, is_open: int) -> None:
    op, got = load_ops()[name], found[name, dtype, is_open]
    wanted = op.check(_facts(op, dtype_of(dtype)), op.part("cases").TYPICAL.attributes)
    assert [tuple(shape) for shape in got["shapes"]] == [fact.shape for fact in wanted]
    assert got["outputs"] == [fact.dtype.tensorrt for fact in wanted]


@pytest.mark.parametrize(("name", "dtype", "is_open"), CASES)
def test_types_that_tensorrt_may_choose(found: Any, name: str, dtype: str, is_open: int) -> None:
    plugin: Plugin = load_ops()[name].part("plugin").PLUGIN
    wanted = [[type_of(types, dtype_of(data)).tensorrt for types in plugin.types] for data in ("fp32", "fp16")]
    assert found[name, dtype, is_open]["combinations"] == wanted


@pytest.mark.parametrize(("name", "dtype", "is_open"), CASES)
def test_the_kernel_starts_as_planned(found: Any, name: str, dtype: str, is_open: int) -> None:
    op, got = load_ops()[name], found[name, dtype, is_open]
    typical, kernels = op.part("cases").TYPICAL, load_kernels(op)
    started = kernels.plan(typical.shapes, typical.attributes, triton.cdiv)
    compiled = compile_kernel(kernels.to_compile(dtype_of(dtype), started), 80)
    assert got["grid"] == list(started.grid)
    assert got["scalars"] == list(started.scalars.values())
    assert got["scalar_types"] == ["INT32"]
    assert (got["block"], got["shared"]) == (32 * started.num_warps, compiled.shared_bytes)
    assert got["is_known"] == (not is_open)
    assert got["has_kernel"]
