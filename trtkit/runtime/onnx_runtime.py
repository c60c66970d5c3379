"""ONNX Runtime on the CPU, as a third-party runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.network.lowering.sampling import GATHER
from trtkit.network.onnx.care import NEWEST_IR_VERSION
from trtkit.sources import onnx_file

if TYPE_CHECKING:
    import onnx


def onnx_runtime_session(
    path: Path, model: onnx.ModelProto | None = None, *, optimize: bool = True, form: str = GATHER
) -> Any:
    """Return a CPU session on `path`, or on `model` read from it.

    A model with an IR version newer than ONNX Runtime supports is relabelled as its newest supported one: the versions
    differ in fields that such a model does not use. Operators that ONNX Runtime lacks but trtkit implements are
    replaced by functions, in a form that may differ from the built one; so are operators whose outputs have a fixed
    size only in an engine. Raises SourceError if ONNX Runtime refuses the model.
    """
    import onnxruntime

    from trtkit.network.onnx import custom_ops

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if model is None and onnx_file.read_graph(path).ir_version > NEWEST_IR_VERSION:
        model = onnx_file.read_model(path)
    if custom_ops.has_padded(model or onnx_file.read_graph(path)):
        model = custom_ops.pad(model or onnx_file.read_model(path))
    if model is not None:
        model.ir_version = min(model.ir_version, NEWEST_IR_VERSION)
    try:
        return _session(model or path, options)
    except Exception as error:
        replaced, detail = custom_ops.replace(model or onnx_file.read_model(path), form=form)
        if detail != "none":
            return _session(replaced, options)
        raise SourceError(f"ONNX Runtime cannot load the model: {error}", str(path)) from None


def _session(source: Path | onnx.ModelProto, options: Any) -> Any:
    import onnxruntime

    model = str(source) if isinstance(source, Path) else source.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
