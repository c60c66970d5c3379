"""A `.pth` file with a plain state dict: tensors by name, mapped, without running what a pickle could hold."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.checkpoint import StoredArray

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.arrays import Array


def read_state_dict(path: Path) -> dict[str, StoredArray]:
    """Return the arrays of a file that torch saved: a state dict, or one under `state_dict` next to plain data.

    Raises SourceError where it holds anything else: code in a pickle is never run.
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
