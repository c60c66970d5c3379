"""One table of data types: name, NumPy, torch, TensorRT and ONNX names, bits, tolerance, hardware needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trtkit.errors import TrtkitError

Precision = Literal["fp32", "fp16", "bf16"]
"""Types that a network may compute in."""


@dataclass(frozen=True)
class DType:
    """A data type under all its names.

    numpy: NumPy's name, or ml_dtypes' where NumPy has none.
    tensorrt: name in `tensorrt.DataType`.
    onnx: name in `onnx.TensorProto.DataType`.
    tolerance: relative RMS error `||a-b|| / ||b||` allowed for one op computed in this type; 0 for exact types.
    min_compute_capability: lowest SM that computes in it, as 10 * major + minor; 0 where all do.
    """

    name: str
    bits: int
    numpy: str
    torch: str
    tensorrt: str
    onnx: str
    tolerance: float = 0.0
    min_compute_capability: int = 0

    @property
    def is_float(self) -> bool:
        return self.tolerance > 0

    def size_bytes(self, volume: int) -> int:
        """Return the bytes that `volume` packed elements take."""
        return (volume * self.bits + 7) // 8

    def __str__(self) -> str:
        return self.name


# Minimum compute capabilities: measured with TensorRT-RTX 1.7.1 named targets (docs/design.md).
_TABLE = (
    DType("fp32", 32, "float32", "float32", "FLOAT", "FLOAT", 1e-5),
    DType("fp16", 16, "float16", "float16", "HALF", "FLOAT16", 2e-3),
    DType("bf16", 16, "bfloat16", "bfloat16", "BF16", "BFLOAT16", 1.6e-2),
    DType("fp8", 8, "float8_e4m3fn", "float8_e4m3fn", "FP8", "FLOAT8E4M3FN", 7e-2, 89),
    DType("e8m0", 8, "float8_e8m0fnu", "float8_e8m0fnu", "E8M0", "FLOAT8E8M0", 5e-1, 89),
    DType("fp4", 4, "float4_e2m1fn", "float4_e2m1fn_x2", "FP4", "FLOAT4E2M1", 3e-1, 120),
    DType("int64", 64, "int64", "int64", "INT64", "INT64"),
    DType("int32", 32, "int32", "int32", "INT32", "INT32"),
    DType("int8", 8, "int8", "int8", "INT8", "INT8"),
    DType("uint8", 8, "uint8", "uint8", "UINT8", "UINT8"),
    DType("int4", 4, "int4", "int8", "INT4", "INT4", 0.0, 80),
    DType("bool", 8, "bool", "bool", "BOOL", "BOOL"),
)

DTYPES = {dtype.name: dtype for dtype in _TABLE}
_BY_TENSORRT = {dtype.tensorrt: dtype for dtype in _TABLE}
_BY_ONNX = {dtype.onnx: dtype for dtype in _TABLE}

FP32, FP16, BF16, FP8, E8M0, FP4, INT64, INT32, INT8, UINT8, INT4, BOOL = _TABLE


def dtype_of(name: str) -> DType:
    """Return the type called `name` in this table. Raises TrtkitError for an unknown name."""
    if name not in DTYPES:
        raise TrtkitError(f"unknown data type `{name}`", fix=f"use one of {', '.join(DTYPES)}")
    return DTYPES[name]


def from_tensorrt(name: str) -> DType:
    """Return the type that `tensorrt.DataType` calls `name`."""
    return _BY_TENSORRT[name]


def from_onnx(name: str) -> DType | None:
    """Return the type that ONNX calls `name`, or None if TensorRT has no counterpart."""
    return _BY_ONNX.get(name)


_STATED_PRECISIONS: dict[str, Precision] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def stated_precision(fields: Mapping[str, object]) -> Precision | None:
    """Return the precision of the weights by a model's `config.json`; None if it names none of these types."""
    text = fields.get("text_config")  # of a model with other parts around its language model
    stated = fields.get("dtype") or fields.get("torch_dtype")
    if stated is None and isinstance(text, Mapping):
        return stated_precision(text)
    return _STATED_PRECISIONS.get(str(stated).removeprefix("torch."))
