"""Weights in few bits for parts that the network API writes: rounded from the checkpoint as they are read.

No data is measured: what is not weights alone scales its inputs while running, by token or by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.quantized_matrix import FIXED_BLOCKS, LARGEST, QuantizedInputs, QuantizedMatrix

if TYPE_CHECKING:
    from trtkit.config.quantize import PartOptions

Array = np.ndarray[Any, Any]
_BLOCKS = (128, 64, 32)
_LEAST = 1e-8


class RoundedWeights(Mapping[str, Any]):
    """Weights by `part.path`, those of chosen layers rounded when asked for. methods: by layer."""

    def __init__(
        self, weights: Mapping[str, Any], methods: Mapping[str, str], options: Mapping[str, PartOptions]
    ) -> None:
        self._weights, self._methods, self._options = weights, methods, options

    def __getitem__(self, path: str) -> Any:
        array = self._weights[path]
        layer = path.removesuffix(".weight")
        method = self._methods.get(layer) if layer != path else None
        return array if method is None else rounded(array, method, self._options[layer.partition(".")[0]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def block_of(columns: int, method: str, options: PartOptions) -> int | None:
    """Return how many columns share a scale, 0 for whole rows; None where no block divides them: the layer stays."""
    if method == "mxfp8":
        return None if columns % FIXED_BLOCKS["mxfp8"] else FIXED_BLOCKS["mxfp8"]
    if method != "int4_wo":
        return 0
    return next((block for block in ((options.block,) if options.block else _BLOCKS) if columns % block == 0), None)


def rounded(weight: Array, method: str, options: PartOptions) -> QuantizedMatrix:
    """Return a matrix [out, in], rounded to nearest. Its columns are those that `block_of` has a block for."""
    wide = np.array(weight, np.float32)
    if method == "int4_wo":
        return _int4(wide, options)
    if method == "mxfp8":
        return _mxfp8(wide)
    inputs = None if method == "int8_wo" else QuantizedInputs("fp8" if method == "fp8" else "int8", is_per_token=True)
    peaks = np.maximum(np.abs(wide).max(1), _LEAST)
    if method == "fp8":
        scales = peaks / np.float32(LARGEST["fp8"])
        return QuantizedMatrix("fp8", _as_fp8(wide / scales[:, None]), scales, inputs=inputs)
    scales = peaks / np.float32(127)
    codes = np.clip(np.rint(wide / scales[:, None]), -127, 127).astype(np.int8)
    return QuantizedMatrix("int8", codes, scales, inputs=inputs)


def _int4(weight: Array, options: PartOptions) -> QuantizedMatrix:
    import torch

    from trtkit.quantization.int4 import Rounding, nearest

    block = block_of(weight.shape[1], "int4_wo", options)
    assert block is not None
    return nearest(torch.from_numpy(weight), Rounding(block, options.zero_points))


def _mxfp8(weight: Array) -> QuantizedMatrix:
    """Round blocks of 32 by powers of two, the least that leave no number too large."""
    import ml_dtypes

    blocks = weight.reshape(len(weight), -1, FIXED_BLOCKS["mxfp8"])
    peaks = np.maximum(np.abs(blocks).max(-1), np.float32(2.0**-100))
    scales = np.exp2(np.ceil(np.log2(peaks / np.float32(LARGEST["fp8"])))).astype(np.float32)
    codes = _as_fp8((blocks / scales[:, :, None]).reshape(weight.shape))
    return QuantizedMatrix("mxfp8", codes, scales.astype(ml_dtypes.float8_e8m0fnu), inputs=QuantizedInputs("mxfp8"))


def _as_fp8(values: Array) -> Array:
    import ml_dtypes

    return np.clip(values, -LARGEST["fp8"], LARGEST["fp8"]).astype(ml_dtypes.float8_e4m3fn)
