"""Read the weights that a TensorRT network holds, without copying them."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch

from trtkit.dtypes import DType, from_tensorrt
from trtkit.errors import ExecutionError
from trtkit.reference.arrays import to_tensor

Tensor = torch.Tensor

_BYTE_TYPES = {
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "e8m0": torch.float8_e8m0fnu,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
# e2m1: sign, two exponent bits, one mantissa bit (OCP Microscaling Formats specification 1.0, section 5.3.3)
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def read_weights(weights: Any, side: Any, key: str, dtype: DType | None = None) -> Tensor | None:
    """Return weights as a flat tensor that shares their memory; four-bit types are unpacked.

    side: the value of `key` in the side table, which comes first; None where it has none.
    dtype: what a side table entry holds; bf16, fp8 and four-bit data may be given there as raw bytes.
    Returns None for empty weights. Raises ExecutionError where the API gives no access to the data.
    """
    if side is not None:
        return _from_side_table(to_tensor(side, key), dtype)
    if isinstance(weights, np.ndarray):
        return torch.from_numpy(weights.reshape(-1)) if weights.size else None
    if weights is None or weights.size == 0:
        return None
    held = from_tensorrt(weights.dtype.name)
    address = _address(weights)
    if address is None:
        raise ExecutionError(
            f"TensorRT does not let {held} weights be read back", key, f"pass them as constants[`{key}`]"
        )
    raw = (ctypes.c_uint8 * held.size_bytes(weights.size)).from_address(address)
    return _decode(torch.frombuffer(raw, dtype=torch.uint8), held, weights.size)


def _from_side_table(side: Tensor, dtype: DType | None) -> Tensor:
    """Return a side table entry as a flat tensor."""
    flat = side.reshape(-1)
    if dtype is None or flat.dtype == torch.uint8:
        return flat if dtype is None or dtype.name == "uint8" else _decode(flat, dtype, flat.numel() * 8 // dtype.bits)
    return flat


def _decode(raw: Tensor, dtype: DType, count: int) -> Tensor:
    """Return bytes as values: a view, or unpacked for four-bit types (low nibble first)."""
    if dtype.bits != 4:
        return raw.view(_BYTE_TYPES[dtype.name])
    nibbles = torch.stack((raw & 15, raw >> 4), dim=1).reshape(-1)[:count]
    if dtype.name == "int4":
        return ((nibbles ^ 8).to(torch.int8) - 8).contiguous()
    return torch.tensor(FP4_VALUES, dtype=torch.float16)[nibbles.long()]


def _address(weights: Any) -> int | None:
    """Return the address of opaque weights' data.

    The Python API hides it for types that NumPy lacks. The object wraps `nvinfer1::Weights {type, values, count}`;
    its layout is proved on weights of known address before it is trusted.
    """
    weights_class: Any = type(weights)
    if not _layout_is_known(weights_class):
        return None
    values, count = _struct(weights)
    return values if count == weights.size else None


@cache
def _layout_is_known(weights_class: Any) -> bool:
    """Whether a probe of this class holds its array's address and size where they are expected."""
    probe = np.arange(3, dtype=np.float32)
    if getattr(weights_class, "__basicsize__", 0) < _POINTER_OFFSET + 8:
        return False
    return _struct(weights_class(probe)) == (probe.ctypes.data, probe.size)


_POINTER_OFFSET = 16  # after CPython's object header


def _struct(weights: Any) -> tuple[int | None, int]:
    """Return `values` and `count` of the wrapped struct."""
    struct = ctypes.c_void_p.from_address(id(weights) + _POINTER_OFFSET).value
    assert struct
    return ctypes.c_void_p.from_address(struct + 8).value, ctypes.c_int64.from_address(struct + 16).value
