"""Torch types of TensorRT tensors, for storage and for arithmetic, and conversion between arrays and torch tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.errors import ExecutionError

if TYPE_CHECKING:
    from trtkit.dtypes import DType

# Four-bit values take one element each: int4 in int8, fp4 as the numbers themselves in fp16.
_STORAGE = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "e8m0": torch.float8_e8m0fnu,
    "fp4": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int4": torch.int8,
    "bool": torch.bool,
}
_WIDENED = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Precision:
    """The types a network is computed in.

    widen: None for the network's own types; "fp32" or "fp64" holds and computes fp16, bf16 and fp32 tensors in it.
    """

    widen: str | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def storage(self, dtype: DType) -> torch.dtype:
        """Return the torch type that holds tensors of `dtype`."""
        if self.widen and dtype.name in ("fp32", "fp16", "bf16"):
            wide = _WIDENED[self.widen]
            return wide if wide.itemsize > _STORAGE[dtype.name].itemsize else _STORAGE["fp32"]
        return _STORAGE[dtype.name]

    def are_alike(self, first: DType, second: DType) -> bool:
        """Whether casting between two types changes nothing because both are widened to the same type."""
        floats = ("fp32", "fp16", "bf16")
        return first.name in floats and second.name in floats and self.storage(first) == self.storage(second)

    def accumulation(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type in which products of `dtype` are accumulated.

        TensorRT's kernels accumulate fp16 and bf16 in fp32. torch's CPU kernels do so for bf16; for fp16 they are up to
        30 times slower than converting to fp32, which is therefore done here.
        """
        return torch.float32 if dtype == torch.float16 and self.device.type == "cpu" else dtype


def packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes convolutions and products of a type on this processor, with weights in its own layout."""
    if not torch._C._has_mkldnn or dtype not in (torch.float32, torch.bfloat16):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


_ML_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
}
_UNPACKED = {"int4": np.int8, "float4_e2m1fn": np.float16}


def to_tensor(value: Any, name: str) -> torch.Tensor:
    """Return an array, tensor or number as a tensor that shares its memory if possible.

    Raises ExecutionError for a type that torch lacks.
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
