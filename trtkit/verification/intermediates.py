"""ONNX Runtime's value of every tensor inside a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.onnx_runtime import onnx_runtime_session
from trtkit.sources import onnx_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.arrays import Array


# A model with more weights than this is not held a second time only to see its inside.
_LARGEST_BYTES = 1 << 30


def onnx_runtime_tensors(path: Path, inputs: Mapping[str, Array], wanted: set[str]) -> dict[str, Array]:
    """Run `path` with the requested float tensors as outputs; empty if ONNX Runtime cannot."""
    import onnx

    if path.stat().st_size > _LARGEST_BYTES:
        return {}
    model = onnx_file.read_model(path)
    known = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name in wanted - known]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        session = onnx_runtime_session(path, model, optimize=False)
        values = session.run(None, dict(inputs))
    except Exception:  # ONNX Runtime raises a class of its own for each refusal; this look inside is optional
        return {}
    outputs = [item.name for item in session.get_outputs()]
    return {
        name: value.astype(np.float32)
        for name, value in zip(outputs, values, strict=True)
        if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    }
