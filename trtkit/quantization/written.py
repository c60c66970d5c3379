"""Low-precision weights for parts written with the network API: rounded as they are read from the checkpoint.

No calibration: methods that quantize inputs scale them at run time, by token or by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.quantization_methods import FORMATS, METHODS, largest_block
from trtkit.quantized_matrix import QuantizedInputs, QuantizedMatrix

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.config.quantize import PartOptions
    from trtkit.quantization_methods import Format

_LEAST = 1e-8


class RoundedWeights(Mapping[str, Any]):
    """Weights by `part.path`; those of quantized layers are rounded when read. methods: by layer."""

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
    """Return how many columns share a scale, 0 for whole rows; None if no block divides them: it stays unquantized."""
    if METHODS[method].scales != "block":
        return 0
    block = METHODS[method].block(options.block or largest_block([columns]))
    return block if block and columns % block == 0 else None


def rounded(weight: Array, method: str, options: PartOptions) -> QuantizedMatrix:
    """Return a matrix [out, in] rounded to nearest. `block_of` must have a block for its columns."""
    wide, row = np.array(weight, np.float32), METHODS[method]
    block = block_of(wide.shape[1], method, options)
    assert block is not None
    if row.takes_block:
        return _int4(wide, block, options)
    inputs = QuantizedInputs(row.format, is_per_token=not block) if row.rounds_inputs else None
    codes, scales = _mxfp8(wide) if block else _rows(wide, row.format)
    return QuantizedMatrix(row.format, codes, scales, inputs=inputs)


def _rows(weight: Array, kind: Format) -> tuple[Array, Array]:
    largest = FORMATS[kind].largest
    scales = np.maximum(np.abs(weight).max(1), _LEAST) / np.float32(largest)
    numbers = weight / scales[:, None]
    if FORMATS[kind].dtype.is_float:
        return _as_fp8(numbers), scales
    return np.clip(np.rint(numbers), -largest, largest).astype(np.int8), scales


def _int4(weight: Array, block: int, options: PartOptions) -> QuantizedMatrix:
    import torch

    from trtkit.quantization.int4 import Rounding, nearest

    return nearest(torch.from_numpy(weight), Rounding(block, options.zero_points))


def _mxfp8(weight: Array) -> tuple[Array, Array]:
    """Round blocks of 32 by the smallest power of two that does not overflow; return codes and scales."""
    import ml_dtypes

    blocks = weight.reshape(len(weight), -1, FORMATS["mxfp8"].block)
    peaks = np.maximum(np.abs(blocks).max(-1), np.float32(2.0**-100))
    scales = np.exp2(np.ceil(np.log2(peaks / np.float32(FORMATS["fp8"].largest)))).astype(np.float32)
    codes = _as_fp8((blocks / scales[:, :, None]).reshape(weight.shape))
    return codes, scales.astype(ml_dtypes.float8_e8m0fnu)


def _as_fp8(values: Array) -> Array:
    import ml_dtypes

    return np.clip(values, -FORMATS["fp8"].largest, FORMATS["fp8"].largest).astype(ml_dtypes.float8_e4m3fn)
