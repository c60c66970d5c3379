"""Methods of exporting a PyTorch module to ONNX, tried in turn; each reports its limitations."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.dtypes import dtype_of
from trtkit.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from trtkit.config.schema import ModuleInput, TorchSource

# torch.export specializes on sizes 0 and 1, so dynamic dimensions are traced with at least this size.
_SMALLEST_TRACED = 2
# The newest opset that the TorchScript exporter writes.
_NEWEST_SCRIPT_OPSET = 20
_LONGEST_REASON = 300
# Tolerance of ONNX Runtime compared with torch in fp32, over a whole model.
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class ModuleExport:
    """A module to export. sizes: traced sizes of its symbolic dimensions."""

    module: torch.nn.Module
    source: TorchSource
    sizes: Mapping[str, int]
    out: Path

    @property
    def dynamic_axes(self) -> dict[str, dict[int, str]]:
        """Symbolic dimensions by input and axis."""
        return {
            name: {axis: dim for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
            for name, spec in self.source.inputs.items()
        }

    def examples(self, extra: int = 0) -> tuple[torch.Tensor, ...]:
        """Return inputs at the traced sizes, or at sizes larger by `extra`."""
        sizes = {name: size + extra for name, size in self.sizes.items()}
        return tuple(_example(spec, sizes) for spec in self.source.inputs.values())


def export(module: torch.nn.Module, source: TorchSource, dims: Mapping[str, int], out: Path) -> str:
    """Write `module` as ONNX to `out` and return a description of the method.

    dims: typical sizes of the symbolic dimensions named in the profiles. Raises SourceError if every method fails.
    """
    symbols = {dim for spec in source.inputs.values() for dim in spec.shape if isinstance(dim, str)}
    sizes = {name: max(_SMALLEST_TRACED, dims.get(name, _SMALLEST_TRACED)) for name in sorted(symbols)}
    request = ModuleExport(module, source, sizes, out)
    first = ""
    for attempt in (_exported, _scripted, _with_fixed_batch(dims), _with_plain_attention):
        try:
            detail = attempt(request)
            if first:
                _check_sizes(request)
            return f"{detail}; torch.export alone: {first}" if first else detail
        except _NotApplicableError:
            continue
        except Exception as error:  # torch and its exporters raise of all kinds
            first = first or _reason(error)
    raise SourceError(
        f"torch.export cannot trace the module: {first}",
        source.factory,
        "make the dimension static in `source.torch.inputs`, or rewrite the part that depends on data",
    )


class _NotApplicableError(Exception):
    """A method that would change nothing."""


def _exported(request: ModuleExport) -> str:
    """Export through `torch.export`."""
    import torch

    from trtkit.sources.torch.models.deform_conv import export_table

    symbols = {name: torch.export.Dim(name) for axes in request.dynamic_axes.values() for name in axes.values()}
    program = torch.onnx.export(
        request.module,
        request.examples(),
        dynamo=True,
        dynamic_shapes=tuple(
            {axis: symbols[name] for axis, name in axes.items()} for axes in request.dynamic_axes.values()
        ),
        input_names=list(request.source.inputs),
        output_names=list(request.source.outputs) or None,
        opset_version=request.source.opset,
        custom_translation_table={**export_table(), **_translations()},
        verbose=False,
    )
    assert program is not None
    program.save(str(request.out), external_data=False)
    _check_dynamic(request)
    return f"torch.export to opset {request.source.opset}"


def _check_dynamic(request: ModuleExport) -> None:
    """Raise SourceError for a dynamic dimension that torch fixed because torch.export cannot keep it dynamic."""
    import onnx

    for value in onnx.load(str(request.out), load_external_data=False).graph.input:
        for axis, name in request.dynamic_axes.get(value.name, {}).items():
            dim = value.type.tensor_type.shape.dim[axis]
            if dim.HasField("dim_value"):
                raise SourceError(f"it fixes `{name}`, axis {axis} of `{value.name}`, at {dim.dim_value}")


def _scripted(request: ModuleExport) -> str:
    """Export by tracing one run: tensor values read by Python become constants, which are reported."""
    import torch
    from torch.jit._trace import TracerWarning

    opset = min(request.source.opset, _NEWEST_SCRIPT_OPSET)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.onnx.export(
            request.module,
            request.examples(),
            str(request.out),
            dynamo=False,
            opset_version=opset,
            input_names=list(request.source.inputs),
            output_names=list(request.source.outputs) or None,
            dynamic_axes={name: axes for name, axes in request.dynamic_axes.items() if axes},
        )
    frozen = sum(issubclass(warning.category, TracerWarning) for warning in caught)
    return f"TorchScript to opset {opset}" + (f", {frozen} values that Python reads are constants" if frozen else "")


def _with_fixed_batch(dims: Mapping[str, int]) -> Callable[[ModuleExport], str]:
    """Return an export method with a static first axis, for profiles that do not name it."""

    def export_fixed(request: ModuleExport) -> str:
        specs = request.source.inputs
        batch = {spec.shape[0] for spec in specs.values() if spec.shape and isinstance(spec.shape[0], str)} - {*dims}
        if not batch:
            raise _NotApplicableError
        inputs = {
            name: spec.model_copy(update={"shape": tuple(1 if dim in batch else dim for dim in spec.shape)})
            for name, spec in specs.items()
        }
        fixed = request.source.model_copy(update={"inputs": inputs})
        return f"{_exported(replace(request, source=fixed))}, with a batch of 1"

    return export_fixed


def _with_plain_attention(request: ModuleExport) -> str:
    """Export through `torch.export`, with attention expanded into products and a softmax."""
    with _plain_attention() as calls:
        detail = _exported(request)
    if not calls:
        raise _NotApplicableError
    return f"{detail}, attention written out"


@contextlib.contextmanager
def _plain_attention() -> Iterator[list[int]]:
    """Make torch compute attention by its definition, over any number of axes; yield a list that records the calls."""
    import torch
    from torch.nn import functional

    fused, calls = functional.scaled_dot_product_attention, list[int]()

    def attention(*inputs: Any, **options: Any) -> torch.Tensor:
        calls.append(len(inputs))
        outputs: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(*inputs, **options)[0]
        return outputs

    functional.scaled_dot_product_attention = attention
    try:
        yield calls
    finally:
        functional.scaled_dot_product_attention = fused


def _check_sizes(request: ModuleExport) -> None:
    """Compare the exported file with the module at the traced sizes and, if the file accepts them, at larger ones.

    Raises SourceError if they differ: a size that became a constant gives wrong answers at any other size.
    """
    import onnx

    dims = [dim for value in onnx.load(str(request.out)).graph.input for dim in value.type.tensor_type.shape.dim]
    for extra in (0, 1) if any(dim.dim_param for dim in dims) else (0,):
        check_examples(request.module, request.examples(extra), request.out)


def check_examples(module: torch.nn.Module, inputs: Sequence[torch.Tensor], path: Path) -> None:
    """Compare an exported file with the module on inputs, at any fixed or dynamic sizes. Raises SourceError."""
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    if len(names) != len(inputs):
        what = f"the module uses {len(names)} of its {len(inputs)} inputs"
        raise SourceError(what, "example_inputs", "leave out the others")
    inputs = _matching(session, inputs)
    with torch.inference_mode():
        expected = module(*inputs)
    outputs = session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})
    _check_close(_tensors(expected), outputs)


def _matching(session: Any, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return inputs cropped to the file's fixed sizes."""
    fixed = [
        tuple(slice(size) if isinstance(size, int) else slice(None) for size in item.shape)
        for item in session.get_inputs()
    ]
    return [x[indices].contiguous() for x, indices in zip(inputs, fixed, strict=True)]


def _check_close(expected: Sequence[torch.Tensor], outputs: Sequence[np.ndarray[Any, Any]]) -> None:
    for index, (want, have) in enumerate(zip(expected, outputs, strict=True)):
        reference = want.numpy().astype(np.float64)
        if reference.shape != have.shape:
            raise SourceError(f"output {index} has shape {list(have.shape)}, in torch {list(reference.shape)}")
        if np.linalg.norm(have - reference) > _TOLERANCE * max(float(np.linalg.norm(reference)), 1e-6):
            raise SourceError(f"output {index} differs from torch's")


def _tensors(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors in a module's output, in the order in which exporters write them."""
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _example(spec: ModuleInput, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return a tensor of the spec's type at the given sizes."""
    import torch

    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
    dtype = getattr(torch, dtype_of(spec.dtype).torch)
    return torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)


def _reason(error: BaseException) -> str:
    """Return an error's root cause on one line of limited length; torch wraps it in advice for its own users."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]} ..."


def _translations() -> dict[Any, Any]:
    """Return ONNX translations that torch's exporter lacks: of a check operator that transformers compiles in."""
    import torch
    from onnx import TensorProto
    from onnxscript import opset18

    def is_all_true(x: Any) -> Any:
        smallest = opset18.ReduceMin(opset18.Cast(x, to=TensorProto.INT32), keepdims=0)
        return opset18.Cast(smallest, to=TensorProto.BOOL)

    return {torch.ops.aten._is_all_true.default: is_all_true}
