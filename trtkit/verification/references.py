"""Third-party references: ONNX Runtime on the source model and its inner tensors, PyTorch on the source module."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trtkit.errors import SourceError
from trtkit.network.lowering.sampling import GATHER, GRID_SAMPLE
from trtkit.network.onnx.quantize import is_quantized
from trtkit.runtime.onnx_runtime import onnx_runtime_session
from trtkit.sources import onnx_file, package_file
from trtkit.sources.digest import digest_source
from trtkit.sources.huggingface import vision
from trtkit.sources.torch import export

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from trtkit.arrays import Array, Arrays
    from trtkit.config.schema import ModelConfig, Source

TRUST_FIX = "add it if you trust whoever made the bundle"


class Reference(Protocol):
    """A reference implementation of the model. description: its name in the report."""

    description: str

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name."""
        ...


@dataclass
class OnnxRuntimeReference:
    """ONNX Runtime on the CPU. Inputs are converted to the types that the model takes. form: of ops that it lacks.

    A model with Q/DQ nodes runs without fusion, which would turn them into integer kernels, some of them wrongly.
    fixed_inputs: values of inputs that are constants in the engine. inside: inner tensors to return instead of the
    outputs.
    """

    path: Path
    description: str
    form: str = GATHER
    fixed_inputs: Mapping[str, Any] = field(default_factory=dict)
    inside: Sequence[str] = ()

    def __post_init__(self) -> None:
        from trtkit.network.onnx.custom_ops import METADATA_KEY

        model = _returning(self.path, self.inside) if self.inside else None
        has_qdq = is_quantized(model or onnx_file.read_graph(self.path))
        self._session = onnx_runtime_session(self.path, model, optimize=not has_qdq, form=self.form)
        self.description += ", without fusion" if has_qdq else ""
        replaced = self._session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
        if replaced:
            self.description += f", with trtkit's functions for {replaced}"
        self._types = {item.name: _numpy_type(item.type) for item in self._session.get_inputs()}
        shapes = {item.name: item.shape for item in self._session.get_inputs()}
        self._fixed = {name: _filled(value, shapes[name]) for name, value in self.fixed_inputs.items()}

    def run(self, inputs: Mapping[str, Array]) -> Arrays:
        """Return the outputs by name."""
        available = {**self._fixed, **inputs}
        feed = {name: available[name].astype(dtype) for name, dtype in self._types.items()}
        names = [item.name for item in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, feed), strict=True))


def _returning(path: Path, names: Sequence[str]) -> onnx.ModelProto:
    """Return the model with inner tensors as its outputs."""
    import onnx

    model = onnx_file.read_model(path)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model


def _filled(value: Any, shape: Sequence[int]) -> Array:
    """Return a fixed input's value; one number fills the whole input."""
    return np.full(shape, value) if np.ndim(value) == 0 else np.asarray(value)


@dataclass
class TorchReference:
    """The source module in eager PyTorch on the CPU, in fp32."""

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


@dataclass(frozen=True)
class NetworkOrigin:
    """Where a network came from.

    onnx: the network's own ONNX file, the fallback reference. outputs: the network's, in order. digests: the source
    files' SHA-256 at the build of a bundle, None if the source has just been read. trusts_source: whether a factory
    that the config names may run; a bundle is data, so its user must allow it. are_inside: whether `outputs` are inner
    tensors of the ONNX file, such as the rows before NMS.
    """

    onnx: Path
    outputs: Sequence[str]
    digests: Sequence[str] | None = None
    trusts_source: bool = True
    are_inside: bool = False


def choose_reference(config: ModelConfig, against: str | None, origin: NetworkOrigin) -> Reference:
    """Return the model's reference: by default the source in its own framework.

    against: "onnxruntime" or "torch", or None for the default. If the source is gone or differs from the one that the
    bundle was built from, the network's own ONNX file is used instead, and the description says so. Raises SourceError
    if `torch` is requested and there is no module.
    """
    source = config.source
    if source.onnx is not None and against == "torch":
        raise SourceError("an ONNX source has no PyTorch module", "--against torch", "use --against onnxruntime")
    reason, fix = unusable(source, origin)
    if reason and against == "torch":
        raise SourceError(reason, "--against torch", fix)
    if reason or (against == "onnxruntime" and source.onnx is None):
        usual = "ONNX Runtime on the network's own ONNX file"
        description = f"{usual}; {reason}" if reason else usual
        inside = origin.outputs if origin.are_inside else ()
        return OnnxRuntimeReference(origin.onnx, description, _other(config), inside=inside)
    if source.onnx is not None:
        return source_reference(config)
    torch_source = source.torch if source.hf is None else vision.folder_source(Path(source.hf), config.image_size)
    assert torch_source is not None
    module = export.make_module(torch_source, source.requires)
    return TorchReference(module, list(torch_source.inputs), origin.outputs, f"PyTorch on {torch_source.factory}")


def source_reference(config: ModelConfig) -> OnnxRuntimeReference:
    """Return ONNX Runtime on the config's own ONNX file."""
    assert config.source.onnx is not None
    path = package_file.resolve(config.source.onnx, config.source.requires)
    return OnnxRuntimeReference(path, f"ONNX Runtime on {path.name}", _other(config), fixed_inputs=config.fixed_inputs)


def unusable(source: Source, origin: NetworkOrigin) -> tuple[str, str]:
    """Return why the source cannot be a reference, and how to fix it; empty if it can."""
    if source.torch is not None and not origin.trusts_source:
        return factory_withheld(source.torch.factory), TRUST_FIX
    change = source_change(source, origin.digests)
    return (f"the source {change}", "build the bundle again, or leave out --against") if change else ("", "")


def factory_withheld(factory: str) -> str:
    """Return a text stating that the factory of a bundle's source was not run."""
    return f"the bundle's source is code, `{factory}`, which only `--trust-source` runs"


def _other(config: ModelConfig) -> str:
    """Return another form of sampling ops than the one that is built, so that the two fail differently."""
    return GRID_SAMPLE if config.custom_ops.form == GATHER else GATHER


def source_change(source: Source, digests: Sequence[str] | None) -> str:
    """Describe how the source differs from the one that a bundle was built from; empty if it does not."""
    if digests is None:
        return ""
    try:
        current = [file.sha256 for file in digest_source(source)]
    except SourceError:
        return "is not here any more"
    return "" if current == list(digests) else "has changed since the build"


def _widened(array: Array) -> Array:
    """Return floating-point arrays as fp32."""
    return array.astype(np.float32) if array.dtype.kind not in "iub" else array


def _numpy_type(name: str) -> str:
    """Return the NumPy name of an ONNX Runtime type such as `tensor(float)`."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64", "float16": "float16"}.get(inner, inner)


# A model with more weights than this is not loaded a second time only for its inner tensors.
_LARGEST_BYTES = 1 << 30


def onnx_runtime_tensors(path: Path, inputs: Mapping[str, Array], wanted: set[str]) -> dict[str, Array]:
    """Run `path` with the requested float tensors as outputs; empty if ONNX Runtime refuses."""
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
