"""Triton kernels of custom ops: loaded for the GPU or the interpreter, or compiled ahead of time without a GPU."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from trtkit.dtypes import DType
    from trtkit.network.custom_op import CustomOp

COMPUTE_CAPABILITIES = (80, 90, 120)
"""Compile targets: PTX of each runs on its generation and, translated by the driver, on later ones."""

# PTX versions old enough for the assemblers and drivers of CUDA 12 and 13, which reject Triton's default.
_PTX_VERSIONS = {80: 80, 90: 80, 120: 87}
# Instructions that PTX does not guarantee on later GPUs: such a kernel keeps its target, `sm_90a`.
_OF_ONE_GENERATION = ("wgmma", "tcgen05", "setmaxnreg")
# Triton appends pointers to scratch memory to every kernel's parameters.
_HIDDEN_PARAMETERS = 2
_POINTERS = {"fp32": "*fp32", "fp16": "*fp16", "bf16": "*bf16", "int32": "*i32", "int64": "*i64"}


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    grid: programs along x, y, z.
    scalars: int32 arguments in order, between the inputs' pointers and the outputs'.
    constants: compile-time values by name.
    """

    grid: tuple[Any, Any, Any]
    scalars: Mapping[str, Any]
    constants: Mapping[str, Any]
    num_warps: int = 4


@dataclass(frozen=True)
class TritonKernel:
    """A kernel to compile. signature: Triton's type of each argument, in order."""

    function: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    num_warps: int


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one compute capability.

    target: as named in the PTX; with the suffix `a` it runs on that generation only. parameters: of the PTX, without
    Triton's hidden ones.
    """

    name: str
    target: str
    compute_capability: int
    ptx: str
    cubin: bytes
    parameters: int
    registers: int
    spill_bytes: int
    shared_bytes: int
    num_warps: int


def load_kernels(op: CustomOp, *, interpreted: bool = False) -> ModuleType:
    """Import the op's `kernel.py`. interpreted: run its kernels on the CPU in Triton's interpreter, slowly."""
    return load_kernel_module(op.package, op.folder, interpreted=interpreted)


def load_kernel_module(package: str, folder: Path, *, interpreted: bool = False) -> ModuleType:
    """Import `kernel.py` of a package's folder, once for the GPU and once for the interpreter."""
    from triton import knobs

    name = f"{package}.{'interpreted_' * interpreted}kernel"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / "kernel.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with knobs.runtime.scope():
            knobs.runtime.interpret = interpreted
            spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


def pointer(dtype: DType) -> str:
    """Return Triton's type of a pointer to a data type."""
    return _POINTERS[dtype.name]


def compile_kernel(kernel: TritonKernel, compute_capability: int) -> Compiled:
    """Compile for one of `COMPUTE_CAPABILITIES` to PTX and cubin, with the assembler's counts of registers and spills.

    The PTX has the kernel's own parameters only, and a target that later GPUs accept. Raises BackendError.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(kernel.signature)
    aligned = {
        (index,): [["tt.divisibility", 16]] for index, kind in enumerate(kernel.signature.values()) if kind[0] == "*"
    }
    source = ASTSource(kernel.function, dict(kernel.signature), dict(kernel.constants), aligned)
    options = {
        "num_warps": kernel.num_warps,
        "ptx_version": _PTX_VERSIONS[compute_capability],
        "enable_fp_fusion": True,
    }
    compiled = triton.compile(source, target=GPUTarget("cuda", compute_capability, 32), options=options)
    declared = len(names) - len(kernel.constants)
    ptx = portable_ptx(compiled.asm["ptx"], declared)
    target = re.findall(r"^\.target (\w+)", ptx, re.M)[0]
    cubin, log = _assemble(ptx, target)
    return Compiled(
        compiled.metadata.name,
        target,
        compute_capability,
        ptx,
        cubin,
        declared,
        _figure(r"Used (\d+) registers", log),
        _figure(r"(\d+) bytes spill stores", log) + _figure(r"(\d+) bytes spill loads", log),
        compiled.metadata.shared,
        kernel.num_warps,
    )


def portable_ptx(ptx: str, declared: int) -> str:
    """Return PTX without Triton's hidden parameters, and for later GPUs too if its instructions allow it.

    Raises BackendError if the kernel uses a parameter that would be removed.
    """
    parameters = re.findall(r"^\t\.param [^\n]*?(\w+_param_\d+),?$", ptx, re.M)
    hidden = parameters[declared:]
    if len(hidden) > _HIDDEN_PARAMETERS:
        raise BackendError(f"the kernel has {len(parameters)} parameters, {declared} declared")
    for name in hidden:
        if len(re.findall(rf"\b{name}\b", ptx)) > 1:
            raise BackendError(f"the kernel uses Triton's scratch memory: parameter {name}")
        ptx = re.sub(rf",?\n\t\.param [^\n]*\b{name}\b,?(?=\n)", "", ptx)
    if any(word in ptx for word in _OF_ONE_GENERATION):
        return ptx
    return re.sub(r"^(\.target sm_\d+)a", r"\1", ptx, flags=re.M)


def _assemble(ptx: str, target: str) -> tuple[bytes, str]:
    """Return the cubin and the assembler's output."""
    import triton.backends.nvidia

    folder = Path(triton.backends.nvidia.__file__).parent / "bin"
    tool = folder / ("ptxas-blackwell" if int(target[3:].rstrip("a")) >= 100 else "ptxas")
    with tempfile.TemporaryDirectory() as temporary:
        source, cubin = Path(temporary) / "kernel.ptx", Path(temporary) / "kernel.cubin"
        source.write_text(ptx)
        command = [str(tool), "-v", f"-arch={target}", str(source), "-o", str(cubin)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise BackendError(f"the assembler refuses the kernel: {ran.stderr.strip()}")
        return cubin.read_bytes(), ran.stdout + ran.stderr


def _figure(pattern: str, text: str) -> int:
    """Return the number that a pattern matches."""
    match = re.search(pattern, text)
    assert match is not None, text
    return int(match.group(1))
