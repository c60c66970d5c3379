"""Turn arrays into tensors and back, including the types that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from trtkit.errors import ExecutionError

_ML_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}
_UNPACKED = {"int4": np.int8, "float4_e2m1fn": np.float16}


def to_tensor(value: Any, name: str) -> torch.Tensor:
    """Return an array, tensor or number as a tensor that shares its memory where it can.

    Raises ExecutionError for a type that torch does not have.
    """
    if isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    type_name = array.dtype.name
    if type_name in _UNPACKED:
        array = array.astype(_UNPACKED[type_name])
    array = np.require(array, requirements=["C", "W"]).reshape(array.shape)
    if type_name in _ML_DTYPES:
        return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).view(_ML_DTYPES[type_name])
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ExecutionError(
            f"type {type_name} has no tensor counterpart", f"input `{name}`", "pass a numeric or bool array"
        ) from error


def to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as an array; bf16 and fp8 become fp32, which holds all their values."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in _ML_DTYPES.values():
        tensor = tensor.float()
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array
