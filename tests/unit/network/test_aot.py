from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest

from tests.selection import slow_unless
from trtkit.dtypes import FP16, FP32, DType
from trtkit.errors import BackendError
from trtkit.network.aot import COMPUTE_CAPABILITIES, compile_kernel, load_kernels, portable_ptx
from trtkit.network.custom_op import find, load_ops

if TYPE_CHECKING:
    from pathlib import Path

triton = pytest.importorskip("triton")

HEADER = """
.version 8.0
.target sm_90a
.address_size 64

.visible .entry add(
\t.param .u64 .ptr .global .align 1 add_param_0,
\t.param .u32 add_param_1,
\t.param .u64 .ptr .global .align 1 add_param_2,
\t.param .u64 .ptr .global .align 1 add_param_3
)
{
\tld.param.b64 \t%rd1, [add_param_0];
"""
KERNELS = sorted(op.name for op in load_ops().values() if op.has_part("kernel"))


@pytest.fixture(autouse=True)
def own_triton_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile anew, and leave the user's cache alone."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def test_hidden_parameters_are_taken_out() -> None:
    ptx = portable_ptx(HEADER, 2)
    assert re.findall(r"add_param_\d", ptx) == ["add_param_0", "add_param_1", "add_param_0"]
    assert "add_param_1\n)" in ptx


def test_a_target_of_one_generation_becomes_a_general_one() -> None:
    assert ".target sm_90\n" in portable_ptx(HEADER, 2)
    assert ".target sm_90a\n" in portable_ptx(f"{HEADER}\twgmma.fence.sync.aligned;", 2)


def test_hidden_parameters_in_use_are_an_error() -> None:
    ptx = f"{HEADER}\tld.param.b64 \t%rd9, [add_param_3];\n"
    with pytest.raises(BackendError, match="the kernel uses Triton's scratch memory: parameter add_param_3"):
        portable_ptx(ptx, 2)


def test_parameters_that_nobody_declared_are_an_error() -> None:
    with pytest.raises(BackendError, match="the kernel has 4 parameters, 1 declared"):
        portable_ptx(HEADER, 1)


@pytest.mark.parametrize(
    ("dtype", "capability"),
    slow_unless(
        lambda dtype, capability: (dtype is FP32) == (capability == COMPUTE_CAPABILITIES[0]),
        itertools.product((FP32, FP16), COMPUTE_CAPABILITIES),
    ),
    ids=str,
)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_at_their_typical_size(name: str, capability: int, dtype: DType) -> None:
    op = find(name)
    typical = op.part("cases").TYPICAL
    kernels = load_kernels(op)
    started = kernels.plan(typical.shapes, typical.attributes, triton.cdiv)
    kernel = kernels.to_compile(dtype, started)
    compiled = compile_kernel(kernel, capability)
    assert compiled.target == f"sm_{capability}"  # PTX that later GPUs take too
    assert compiled.spill_bytes == 0
    assert len(set(re.findall(r"_param_\d+\b", compiled.ptx))) == compiled.parameters
    arguments = [name for name, kind in kernel.signature.items() if kind != "constexpr"]
    assert compiled.parameters == len(arguments)
    inputs = len(typical.shapes)
    assert arguments[inputs : inputs + len(started.scalars)] == list(started.scalars)
    assert compiled.cubin[:4] == b"\x7fELF"
