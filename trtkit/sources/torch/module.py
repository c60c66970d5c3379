"""Export of an in-memory module: input names from `forward`, types and sizes from examples."""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trtkit.config.schema import ModuleInput, TorchSource
from trtkit.errors import SourceError
from trtkit.files import replace_file, scratch_folder
from trtkit.sources.torch.attempts import check_examples, export

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    ExampleInputs = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]

_DTYPES = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.int32": "int32",
    "torch.int64": "int64",
    "torch.bool": "bool",
}
_BY_HAND = "export it by `torch.onnx.export` and build the .onnx file"


def export_module(
    module: torch.nn.Module,
    examples: ExampleInputs,
    shapes: Mapping[str, Sequence[int | str]],
    out: Path,
) -> None:
    """Write a copy of `module`, in evaluation mode and on the CPU, as an ONNX file.

    shapes: by input, sizes with names for dynamic ones, as in a config's `source.torch.inputs`; the examples' sizes for
    missing inputs. Raises SourceError for inputs that do not fit, a module that cannot be exported, and a file whose
    outputs for the examples differ from the module's.
    """
    import torch

    tensors = {name: tensor.detach().cpu() for name, tensor in _by_name(module, examples).items()}
    specs = {name: _spec(name, tensor, shapes.get(name)) for name, tensor in tensors.items()}
    unknown = [name for name in shapes if name not in specs]
    if unknown:
        raise SourceError(f"`{unknown[0]}` is not an input", "shapes", f"the inputs are {', '.join(specs)}")
    kind = type(module)
    source = TorchSource(factory=f"{kind.__module__}:{kind.__name__}", inputs=specs)
    dims = {
        dim: size
        for name, spec in specs.items()
        for dim, size in zip(spec.shape, tensors[name].shape, strict=True)
        if isinstance(dim, str)
    }
    with scratch_folder() as folder, torch.random.fork_rng(devices=[]), _without_warnings():
        plain = copy.deepcopy(module).cpu().eval()
        export(plain, source, dims, folder / "model.onnx")
        check_examples(plain, list(tensors.values()), folder / "model.onnx")
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, (folder / "model.onnx").read_bytes())


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the exporter's warnings about torch itself and about packages that the module does not need."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _by_name(module: torch.nn.Module, examples: ExampleInputs) -> dict[str, torch.Tensor]:
    """Return the examples by their names in `forward`, in its order."""
    import torch

    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [item.name for item in inspect.signature(module.forward).parameters.values() if item.kind in kinds]
    if isinstance(examples, torch.Tensor):
        examples = [examples]
    values = list(examples.values() if isinstance(examples, Mapping) else examples)
    wrong = next((value for value in values if not isinstance(value, torch.Tensor)), None)
    if wrong is not None or not values:
        what = "there is no example" if not values else f"an example is a {type(wrong).__name__}, not a tensor"
        raise SourceError(what, "example_inputs", "give a tensor for each input of the module")
    if isinstance(examples, Mapping):
        if set(examples) != set(names[: len(examples)]):
            what = f"the inputs {', '.join(examples)} are not the first of `forward`: {', '.join(names) or 'none'}"
            raise SourceError(what, "example_inputs", _BY_HAND)
        return {name: examples[name] for name in names if name in examples}
    if len(values) > len(names):
        what = f"{len(values)} examples; `forward` takes {', '.join(names) or 'no tensor by name'}"
        raise SourceError(what, "example_inputs", _BY_HAND)
    return dict(zip(names, values, strict=False))


def _spec(name: str, tensor: torch.Tensor, shape: Sequence[int | str] | None) -> ModuleInput:
    """Return an input's type and sizes. Raises SourceError for a type or sizes that do not fit."""
    if str(tensor.dtype) not in _DTYPES:
        fix = f"give one of {', '.join(kind.removeprefix('torch.') for kind in _DTYPES)}"
        raise SourceError(f"`{name}` has type {str(tensor.dtype).removeprefix('torch.')}", "example_inputs", fix)
    sizes = tuple(tensor.shape) if shape is None else tuple(shape)
    fits = len(sizes) == tensor.ndim and all(
        isinstance(dim, str) or dim == size for dim, size in zip(sizes, tensor.shape, strict=True)
    )
    if not fits:
        what = f"`{name}` is {list(sizes)}, and its example {list(tensor.shape)}"
        raise SourceError(what, "shapes", "give sizes of the example, with names for those that are dynamic")
    return ModuleInput.model_validate({"shape": sizes, "dtype": _DTYPES[str(tensor.dtype)]})
