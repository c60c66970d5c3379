"""The contents of an op's folder as plain data, and which of its parts have run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.network.custom_op import CustomOp

COMPILED = "compiled.json"
"""File in an op's folder: its kernel's registers, spills and shared memory, as compiled without a GPU."""


def describe_op(op: CustomOp) -> dict[str, Any]:
    """Return the op as plain data: name, folder, what it represents, inputs, forms, kernel, plugin."""
    return {
        "name": op.name,
        "folder": str(op.folder),
        "foreign": [foreign.label for foreign in op.foreign],
        "inputs": [f"{port.name} [{port.dims.replace(' ', ', ')}]" for port in op.inputs],
        "forms": list(op.forms),
        "kernel": _kernel(op),
        "plugin": "TensorRT, kernel compiled ahead; never built by TensorRT" if op.has_part("plugin") else "none",
    }


def compiled_kernels(op: CustomOp) -> list[dict[str, Any]]:
    """Return the recorded facts of the op's kernel, one entry for each target and type."""
    path = op.folder / COMPILED
    if not path.is_file():
        return []
    kernels: list[dict[str, Any]] = json.loads(path.read_text())["kernels"]
    return kernels


def _kernel(op: CustomOp) -> str:
    if not op.has_part("kernel"):
        return "none"
    targets = dict.fromkeys(entry["target"] for entry in compiled_kernels(op))
    compiled = f"compiles for {', '.join(targets)}" if targets else "not compiled yet"
    return f"Triton; runs under the interpreter; {compiled}; never run on a GPU"
