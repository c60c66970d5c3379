"""Weights in host memory: NumPy arrays or torch tensors, handed to TensorRT without a copy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.dtypes import BF16, DTYPES, FP16, FP32, DType
from trtkit.errors import NetworkError

_FP16_INFINITE = 65520.0  # numbers from here on overflow to infinity

Array = Any
"""A NumPy array (bf16 through ml_dtypes) or a torch tensor on the CPU."""


@dataclass(frozen=True, eq=False)
class HostArray:
    """Contiguous memory of a known type and shape. owner: what keeps the memory alive."""

    dtype: DType
    shape: tuple[int, ...]
    address: int
    owner: Array

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def raw_bytes(self) -> np.ndarray[Any, Any]:
        """Return the memory as a view of bytes."""
        if isinstance(self.owner, np.ndarray):
            return self.owner.reshape(-1).view(np.uint8)
        import torch

        view: np.ndarray[Any, Any] = self.owner.reshape(-1).view(torch.uint8).numpy()
        return view


def array_dtype(array: Array) -> DType:
    """Return an array's element type. Raises NetworkError if TensorRT has no such type."""
    name = str(array.dtype).removeprefix("torch.")
    for dtype in DTYPES.values():
        if name == dtype.numpy:
            return dtype
    raise NetworkError(f"arrays of type {name} have no counterpart in TensorRT", fix="convert it to float32")


def host_array(array: Array, dtype: DType | None = None) -> HostArray:
    """Return an array's memory, converted only if it is not contiguous, fp64, or not of type `dtype`."""
    if str(array.dtype).endswith("float64"):
        array = array.astype(np.float32) if isinstance(array, np.ndarray) else array.float()
    have = array_dtype(array)
    want = dtype or have
    if isinstance(array, np.ndarray):
        converted = _numpy_to(array, want) if have != want else array
        array = np.ascontiguousarray(converted).reshape(array.shape)
        return HostArray(want, array.shape, array.ctypes.data, array)
    import torch

    array = array.detach().to("cpu", getattr(torch, want.torch)).contiguous()
    return HostArray(want, tuple(array.shape), array.data_ptr(), array)


def overflow(array: Array) -> float:
    """Return the finite value of largest magnitude that overflows in fp16; 0 if there is none."""
    if not str(array.dtype).endswith(("float64", "float32", "bfloat16")) or not math.prod(array.shape):
        return 0.0
    largest = max(float(array.max()), float(array.min()), key=abs)
    return largest if _FP16_INFINITE <= abs(largest) < math.inf else 0.0


def _numpy_to(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Return an array converted to another type; bf16, which NumPy lacks, as its 16 bits, rounded to even."""
    if dtype != BF16:
        return array.astype(dtype.numpy)
    bits = array.astype(np.float32, copy=False).view(np.uint32)
    rounded = (bits >> 16) & 1  # in place from here on: weights are large
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= 16
    return np.where(np.isnan(array), np.uint16(0x7FC0), rounded.astype(np.uint16))


COMPUTE_TYPES = (FP32, FP16, BF16)
"""Types that a network can be written in."""
