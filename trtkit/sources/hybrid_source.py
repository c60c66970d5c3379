"""A hybrid model's folder: config.json, and weights in safetensors or a `.pth` file with a plain state dict."""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.checkpoint import Checkpoint, StoredArray, check_finite
from trtkit.sources.safetensors_file import read_folder, read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from trtkit.arrays import Array

# TensorFlow's names of norm weights, used by the first checkpoints of BERT; transformers renames them too.
_OLD_NORM = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")


def _of_today(match: re.Match[str]) -> str:
    return {"gamma": "weight", "beta": "bias"}[match[0]]


@dataclass(frozen=True)
class HybridSource:
    """A model as saved by transformers. checkpoint: arrays by name, mapped on request."""

    config: Mapping[str, Any]
    checkpoint: Checkpoint
    folder: Path
    where: str


def hybrid_config(folder: Path) -> tuple[dict[str, Any], str]:
    """Return a folder's config.json and its path. Raises SourceError if it is missing or damaged."""
    path = folder / "config.json"
    if not path.is_file():
        raise SourceError("the folder has no `config.json`", str(folder), "give a folder that transformers saved")
    return read_json(path), str(path)


def open_hybrid_folder(folder: Path) -> HybridSource:
    """Open a folder with config.json and safetensors, or one `.pth` file with a plain state dict.

    Raises SourceError for missing or damaged files.
    """
    fields, where = hybrid_config(folder)
    states = sorted(folder.glob("*.pth"))
    is_state = len(states) == 1 and not any(folder.glob("*.safetensors"))
    arrays = read_state_dict(states[0]) if is_state else read_folder(folder)[0]
    renamed = {_OLD_NORM.sub(_of_today, name): array for name, array in arrays.items()}
    return HybridSource(fields, Checkpoint(renamed), folder, where)


@dataclass(frozen=True)
class PartFactory:
    """Creates the torch module of an ONNX part.

    factory: `package.module:callable`, called with `arguments`. prefix: of the module's names in the checkpoint; None
    if the factory gets the folder and loads the weights itself. names: their beginnings after the prefix.
    """

    factory: str
    arguments: Mapping[str, Any]
    prefix: str | None = ""
    names: tuple[str, ...] = ("",)


def part_module(part: PartFactory, source: HybridSource) -> torch.nn.Module:
    """Return a part's module with its weights. Raises SourceError for weights that are missing or do not fit."""
    factory, arguments, prefix = part.factory, part.arguments, part.prefix
    module_name, _, attribute = factory.partition(":")
    make: Any = functools.reduce(getattr, attribute.split("."), importlib.import_module(module_name))
    if prefix is None:
        loaded: torch.nn.Module = make(folder=str(source.folder), **arguments)
        check_finite({name: value.numpy() for name, value in loaded.state_dict().items()}, source.where)
        return loaded.eval()
    module: torch.nn.Module = make(**arguments)
    _load(module, prefix, part.names, source)
    return module.eval()


def _load(module: torch.nn.Module, prefix: str, beginnings: tuple[str, ...], source: HybridSource) -> None:
    """Load exactly a module's weights."""
    import numpy as np
    import torch

    names = [
        name for name in source.checkpoint if name.startswith(tuple(prefix + beginning for beginning in beginnings))
    ]
    arrays = {name: source.checkpoint[name] for name in names}
    check_finite(arrays, source.where)
    state = {name.removeprefix(prefix): torch.from_numpy(_copied(array, np)) for name, array in arrays.items()}
    try:
        missing, unexpected = module.load_state_dict(state, strict=False)
    except RuntimeError as error:
        detail = "; ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise SourceError(f"weights below `{prefix}` do not fit: {detail}", source.where) from error
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    for kind, wrong in (("are missing", missing), ("are not weights of this model", unexpected)):
        if wrong:
            listed = ", ".join(f"`{prefix}{name}`" for name in wrong[:3])
            raise SourceError(f"{len(wrong)} weights {kind}, such as {listed}", source.where)


def _copied(array: Any, np: Any) -> Any:
    """Return an array that torch may own, with floats in fp32."""
    return np.array(array) if array.dtype.kind in "iub" else np.array(array, dtype=np.float32)


def read_state_dict(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of a file saved by torch: a state dict, or one under `state_dict` next to plain data.

    Raises SourceError for any other content: code in a pickle is never run.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        what = f"the checkpoint holds more than plain tensors: {first}"
        raise SourceError(what, str(path), "save its state dict as safetensors, where you trust it") from None
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise SourceError("the checkpoint is not a state dict", str(path), "give a file that maps names to tensors")
    return {name: StoredArray(tuple(value.shape), partial(_array, value)) for name, value in state.items()}


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().contiguous().numpy()
    return array
