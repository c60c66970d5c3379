"""Matrices of linear layers, and KV caches, in low precision: as checkpoints hold them and as networks take them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.quantization_methods import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.arrays import Array
    from trtkit.dtypes import DType
    from trtkit.quantization_methods import CacheFormat, Format

FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@dataclass(frozen=True)
class QuantizedInputs:
    """How a layer's inputs are quantized before its product.

    format: int8 and fp8 by one scale, known beforehand; mxfp8 by block of 32 and fp4 by block of 16 while running.
    scale: of int8 and fp8; the outer scale of fp4's scales; unused for mxfp8.
    is_per_token: int8 and fp8 by each token's largest value while running; `scale` is unused.
    steps: of int8 and fp8 per token, what the largest value is divided by to get the scale; the format's largest if
        None.
    """

    format: Format
    scale: float = 1.0
    is_per_token: bool = False
    steps: float | None = None


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A matrix [out, in]: codes times scales, plus offsets.

    codes: int8 or fp8 [out, in]; four-bit types packed along `in` into bytes [out, in / 2], the lower half first.
    scales: fp32 [], [out] or [out, blocks]; of mxfp8 and mxfp4 (blocks of 32) powers of two, of fp4 (blocks of 16) fp8
        values.
    outer_scale: what the scales are multiplied by; 1 unless fp4.
    offsets: [out, blocks], added to a block's products; None for symmetric types.
    input_factors: [in], what inputs are multiplied by first (AWQ, SmoothQuant); None if nothing is.
    inputs: how inputs are quantized; None if they are not.
    columns: [in], which input each column is multiplied with (GPTQ's act-order); None if they are in order.
    """

    format: Format
    codes: Array
    scales: Array
    outer_scale: float = 1.0
    offsets: Array | None = None
    input_factors: Array | None = None
    inputs: QuantizedInputs | None = None
    columns: Array | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit. Raises SourceError."""
        out, size = self.shape
        blocks = self.scales.shape[1] if self.scales.ndim == 2 else 1
        if self.scales.ndim and self.scales.shape[0] != out:
            raise SourceError(f"{self.scales.shape[0]} rows of scales for {out} rows of a matrix")
        if size % blocks:
            raise SourceError(f"{blocks} blocks do not divide {size} columns")
        if self.offsets is not None and self.offsets.shape != (out, blocks):
            raise SourceError(f"offsets of shape {list(self.offsets.shape)} for {out} rows of {blocks} blocks")
        if self.columns is not None and not np.array_equal(np.sort(self.columns), np.arange(size)):
            raise SourceError(f"the columns' order is none of {size} columns")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: [out, in]."""
        out, columns = self.codes.shape
        return int(out), int(columns) * (2 if self.dtype.bits == 4 else 1)

    @property
    def dtype(self) -> DType:
        """TensorRT's type of the codes."""
        return FORMATS[self.format].dtype

    @property
    def has_type(self) -> bool:
        """Whether TensorRT has a type for the matrix, which a network can hold and dequantize."""
        return self.format != "mxfp4"

    @property
    def block(self) -> int:
        """Columns that share a scale; 0 where a whole row or the matrix does."""
        return self.shape[1] // self.scales.shape[1] if self.scales.ndim == 2 else 0

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and offsets."""
        scale_bytes = FORMATS[self.format].scale_bits // 8
        offsets = 0 if self.offsets is None else 2 * self.offsets.size
        factors = 0 if self.input_factors is None else 2 * self.input_factors.size
        return int(self.codes.nbytes + scale_bytes * self.scales.size + offsets + factors)

    def products(self) -> Array:
        """Return codes times scales plus offsets in fp32, [out, in]: what inputs in the order of `columns` meet."""
        values = self._numbers()
        out, size = values.shape
        scales = np.asarray(self.scales, np.float32) * np.float32(self.outer_scale)
        if scales.ndim < 2:
            return np.asarray(values * (scales[:, None] if scales.ndim else scales))
        blocks = values.reshape(out, scales.shape[1], -1) * scales[:, :, None]
        if self.offsets is not None:
            blocks += np.asarray(self.offsets, np.float32)[:, :, None]
        return np.asarray(blocks.reshape(out, size))

    def weights(self) -> Array:
        """Return the matrix in fp32 as the unquantized layer would hold it: input factors multiplied in."""
        matrix = self.products()
        if self.columns is not None:
            matrix = matrix[:, np.argsort(self.columns)]
        return matrix if self.input_factors is None else matrix * np.asarray(self.input_factors, np.float32)

    @property
    def changes_inputs(self) -> bool:
        """Whether inputs are multiplied, put in order or quantized before the product."""
        return not (self.input_factors is None and self.inputs is None and self.columns is None)

    def block_scales(self) -> Array:
        """Return the scale of each block of a row in fp32 [out, blocks]: one block where a row has one scale."""
        scales = np.asarray(self.scales, np.float32) * np.float32(self.outer_scale)
        return scales if scales.ndim == 2 else np.broadcast_to(scales.reshape(-1, 1), (self.shape[0], 1))

    def rows(self, order: Array | slice) -> QuantizedMatrix:
        """Return the matrix with its rows in another order, or some of them."""
        scales = self.scales[order] if self.scales.ndim else self.scales
        offsets = None if self.offsets is None else self.offsets[order]
        return replace(self, codes=self.codes[order], scales=scales, offsets=offsets)

    def column_range(self, columns: range) -> QuantizedMatrix:
        """Return the matrix of neighbouring inputs. Raises SourceError if that splits what has a scale in common."""
        size, start, stop = self.shape[1], columns.start, columns.stop
        if self.columns is not None:
            what = "its columns are ordered by activation (act-order), so neighbouring inputs share scales with others"
            raise SourceError(what, fix="quantize without act-order, or do not split the layer")
        unit = self.block or (2 if self.dtype.bits == 4 else 1)
        if not self.has_type and (finer := math.gcd(unit, start, stop)) < unit and finer > 1:
            return replace(self, scales=np.repeat(self.scales, unit // finer, axis=1)).column_range(columns)
        if start % unit or stop % unit:
            what = f"inputs {start} to {stop - 1} of {size} split a block of {unit}"
            raise SourceError(what, fix="quantize with smaller blocks, or use fewer ranks")
        factors = None if self.input_factors is None else self.input_factors[start:stop]
        blocks = slice(start // unit, stop // unit)
        scales = self.scales[:, blocks] if self.scales.ndim == 2 else self.scales
        offsets = None
        if self.offsets is not None:
            offsets = self.offsets[:, blocks] if self.scales.ndim == 2 else self.offsets
        step = 2 if self.dtype.bits == 4 else 1
        codes = self.codes[:, start // step : stop // step]
        return replace(self, codes=codes, scales=scales, offsets=offsets, input_factors=factors)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the dequantized weights, so that readers who want an array get one."""
        return self.weights().astype(dtype or np.float32, copy=False)

    def _numbers(self) -> Array:
        """Return the codes as fp32 numbers [out, in]."""
        if self.dtype.bits == 8:
            return self.codes.astype(np.float32)
        halves = unpack(self.codes)
        return FP4_VALUES[halves] if self.dtype.is_float else (halves ^ 8).astype(np.float32) - 8


def numbers_of_bytes(kind: Format) -> Array:
    """Return the numbers that each byte of a format's codes represents, in fp32 [256, codes in a byte]."""
    every = np.arange(256, dtype=np.uint8)[:, None]
    dtype = FORMATS[kind].dtype
    if dtype.bits == 4:
        return QuantizedMatrix(kind, every, np.ones((), np.float32)).products()
    import ml_dtypes

    codes = every.view(ml_dtypes.float8_e4m3fn if dtype.is_float else np.int8)
    return QuantizedMatrix(kind, codes, np.ones((), np.float32)).products()


def pack(halves: Array) -> Array:
    """Pack four-bit values (their low bits) two to a byte along the last axis, the first in the lower half."""
    low, high = halves[..., 0::2].astype(np.uint8) & 15, halves[..., 1::2].astype(np.uint8) & 15
    return np.asarray(low | high << 4)


def unpack(packed: Array) -> Array:
    """Return the four-bit values of bytes as numbers from 0 to 15, the lower half first."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)


@dataclass(frozen=True)
class KvQuantization:
    """KV caches in eight bits: they hold keys, values or latent vectors / scales[layer][cache], rounded."""

    format: CacheFormat
    scales: Mapping[int, Mapping[str, float]]


def scales_of_pairs(keys: Sequence[float], values: Sequence[float]) -> dict[int, dict[str, float]]:
    """Return the scales of a model each of whose layers caches keys and values of its own."""
    return {layer: {"key": key, "value": value} for layer, (key, value) in enumerate(zip(keys, values, strict=True))}
