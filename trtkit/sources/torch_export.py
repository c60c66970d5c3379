"""Export a PyTorch module to ONNX through `torch.export`."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import dtype_of
from trtkit.errors import SourceError
from trtkit.sources import package_file
from trtkit.sources.module_file import add_folder_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from trtkit.config.schema import InputSpec, TorchSource

# torch.export specializes on sizes 0 and 1, so dynamic dimensions are traced at this size at least.
_SMALLEST_TRACED = 2


def make_module(source: TorchSource, requires: str | None = None) -> torch.nn.Module:
    """Call the factory, load the checkpoint and switch to evaluation."""
    factory = _import_factory(source.factory, requires)
    try:
        module: torch.nn.Module = factory(**source.kwargs)
    except TypeError as error:
        raise SourceError(f"`{source.factory}` does not take these kwargs: {error}", "source.torch.kwargs") from error
    if source.checkpoint is not None:
        _load_checkpoint(module, package_file.resolve(source.checkpoint, requires))
    return module.eval()


def export_module(module: torch.nn.Module, source: TorchSource, dims: Mapping[str, int], out: Path) -> None:
    """Write `module` as ONNX to `out`; `dims` gives typical sizes of the symbolic dimensions."""
    import torch

    from trtkit.sources.torch_models.deform_conv import export_table

    symbols = {name: torch.export.Dim(name) for spec in source.inputs.values() for name in _symbols(spec)}
    sizes = {name: max(_SMALLEST_TRACED, dims.get(name, _SMALLEST_TRACED)) for name in symbols}
    arguments = tuple(_example(spec, sizes) for spec in source.inputs.values())
    dynamic = tuple(
        {axis: symbols[dim] for axis, dim in enumerate(spec.shape) if isinstance(dim, str)}
        for spec in source.inputs.values()
    )
    try:
        program = torch.onnx.export(
            module,
            arguments,
            dynamo=True,
            dynamic_shapes=dynamic,
            input_names=list(source.inputs),
            output_names=list(source.outputs) or None,
            opset_version=source.opset,
            custom_translation_table={**export_table(), **_translations()},
            verbose=False,
        )
    except Exception as error:
        raise SourceError(
            f"torch.export cannot trace the module: {_reason(error)}",
            source.factory,
            "make the dimension static in `source.torch.inputs`, or rewrite the part that depends on data",
        ) from error
    assert program is not None
    program.save(str(out), external_data=False)


def _reason(error: BaseException) -> str:
    """Return what began an error in a line; torch wraps it in advice for its own users."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _translations() -> dict[Any, Any]:
    """Return ONNX for what torch's exporter lacks: an operator of the checks that transformers compiles in."""
    import torch
    from onnx import TensorProto
    from onnxscript import opset18

    def is_all_true(x: Any) -> Any:
        smallest = opset18.ReduceMin(opset18.Cast(x, to=TensorProto.INT32), keepdims=0)
        return opset18.Cast(smallest, to=TensorProto.BOOL)

    return {torch.ops.aten._is_all_true.default: is_all_true}


def _import_factory(name: str, requires: str | None) -> Any:
    """Return the callable `package.module:callable`."""
    module_name, _, attribute = name.partition(":")
    install = f"pip install --no-deps {requires}" if requires else "install its package, or correct the name"
    add_folder_of(module_name)
    try:
        module = importlib.import_module(module_name)
        return functools.reduce(getattr, attribute.split("."), module)
    except ImportError as error:
        raise SourceError(f"factory module `{module_name}` does not import: {error}", name, install) from error
    except AttributeError as error:
        raise SourceError(f"`{module_name}` has no `{attribute}`", name, "correct `source.torch.factory`") from error


def _load_checkpoint(module: torch.nn.Module, path: Path) -> None:
    """Load a state dict strictly; pickled code is refused."""
    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            raise SourceError(
                "the checkpoint is not a plain state dict of tensors", str(path), "save it as safetensors"
            ) from error
    state = state.get("state_dict", state)
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        detail = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise SourceError(f"the checkpoint does not fit the module: {detail}", str(path)) from error


def _symbols(spec: InputSpec) -> list[str]:
    return [dim for dim in spec.shape if isinstance(dim, str)]


def _example(spec: InputSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return a tensor of the spec's type at the traced sizes."""
    import torch

    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
    dtype = getattr(torch, dtype_of(spec.dtype).torch)
    return torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype)
