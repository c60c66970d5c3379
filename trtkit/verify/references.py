"""References that nobody here wrote: ONNX Runtime on the source model, PyTorch on the source module."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trtkit.errors import SourceError, TrtkitError
from trtkit.runtime.onnx_runtime import onnx_runtime_session
from trtkit.sources import hf_vision, package_file, torch_export

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.config.schema import ModelConfig

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


class Reference(Protocol):
    """Something that computes the model's outputs. description: what it is, for the report."""

    description: str

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name."""
        ...


@dataclass
class OnnxRuntimeReference:
    """ONNX Runtime on CPU. Inputs are converted to the types that the model takes."""

    path: Path
    description: str

    def __post_init__(self) -> None:
        self._session = onnx_runtime_session(self.path)
        self._types = {item.name: _numpy_type(item.type) for item in self._session.get_inputs()}

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name."""
        feed = {name: inputs[name].astype(dtype) for name, dtype in self._types.items()}
        names = [item.name for item in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, feed), strict=True))


@dataclass
class TorchReference:
    """The source module in eager PyTorch on CPU, in fp32."""

    module: Any
    input_names: Sequence[str]
    output_names: Sequence[str]
    description: str

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name."""
        import torch

        tensors = [torch.from_numpy(_widened(inputs[name])) for name in self.input_names]
        with torch.inference_mode():
            outputs = self.module(*tensors)
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return {name: output.numpy() for name, output in zip(self.output_names, outputs, strict=True)}


def choose_reference(config: ModelConfig, against: str | None, onnx: Path, outputs: Sequence[str]) -> Reference:
    """Return the model's reference: by default what the source itself runs in.

    against: "onnxruntime" or "torch", or None for the default. onnx: the network's own ONNX file, the reference of
    last resort. Raises SourceError where `torch` is asked of an ONNX source.
    """
    source = config.source
    if source.onnx is not None:
        if against == "torch":
            raise SourceError("an ONNX source has no PyTorch module", "--against torch", "use --against onnxruntime")
        return _onnx_reference(source.onnx, source.requires, onnx)
    if against == "onnxruntime":
        return OnnxRuntimeReference(onnx, "ONNX Runtime on the network's own ONNX file")
    torch_source = hf_vision.folder_source(Path(source.hf)) if source.hf is not None else source.torch
    assert torch_source is not None
    module = torch_export.make_module(torch_source, source.requires)
    return TorchReference(module, list(torch_source.inputs), outputs, f"PyTorch on {torch_source.factory}")


def _onnx_reference(path: str, requires: str | None, own: Path) -> Reference:
    """Return ONNX Runtime on the source file, untouched by trtkit, or where it is gone on the network's own file."""
    try:
        source = package_file.resolve(path, requires)
    except TrtkitError:
        return OnnxRuntimeReference(own, "ONNX Runtime on the network's own ONNX file; the source file is not here")
    return OnnxRuntimeReference(source, f"ONNX Runtime on {source.name}")


def _widened(array: Array) -> Array:
    """Return floats in fp32."""
    return array.astype(np.float32) if array.dtype.kind not in "iub" else array


def _numpy_type(name: str) -> str:
    """Return NumPy's name for ONNX Runtime's `tensor(float)`."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64", "float16": "float16"}.get(inner, inner)
