"""Checkpoints that AutoAWQ writes, of its version `gemm`.

A linear layer is `qweight` int32 [in, out / 8], `qzeros` int32 [in / group, out / 8] and `scales` [in / group, out].
A word holds eight columns, from its lowest bits on in the order 0 2 4 6 1 3 5 7.
Source: `awq/modules/linear/gemm.py`, https://github.com/casper-hansen/AutoAWQ
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError
from trtkit.sources.quantized.integers import check_group, integer_matrix, unsigned
from trtkit.sources.quantized.layers import Parts, layers, part, replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.arrays import Array
    from trtkit.quantized_matrix import QuantizedMatrix
    from trtkit.sources.quantized.layers import Stored

_PARTS = ("qweight", "qzeros", "scales")
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of eight columns stands."""


def awq_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises SourceError for other versions than `gemm`, ProblemsError naming layers that cannot be read.
    """
    version = str(quantization.get("version", "gemm")).lower()
    bits = int(quantization.get("bits", quantization.get("w_bit", 4)))
    if version != "gemm":
        what = f"AWQ's version `{version}` is not supported; `gemm` is"
        raise SourceError(what, "quantization_config.version", 'quantize again with `"version": "GEMM"`')
    if bits != 4:
        raise SourceError(f"AWQ of {bits} bits is not known", "quantization_config.bits", "quantize again with 4")
    group = int(quantization.get("group_size", quantization.get("q_group_size", 128)))
    return replaced(stored, layers(stored, "qweight", _PARTS), lambda _, parts: _matrix(parts, group))


def _matrix(parts: Parts, group: int) -> QuantizedMatrix:
    """Return one layer's matrix. group: columns that share a scale; -1 for all."""
    numbers = _ordered(part(parts, "qweight")).T
    check_group(part(parts, "scales").T, numbers.shape[1], group)
    zeros = _ordered(part(parts, "qzeros")).T if "qzeros" in parts else None
    return integer_matrix(numbers, 4, part(parts, "scales").T, zeros)


def _ordered(words: Array) -> Array:
    """Return the numbers of words with eight columns each in AWQ's order."""
    numbers = unsigned(words, 4)
    return numbers.reshape(len(numbers), -1, 8)[:, :, list(_PLACES)].reshape(numbers.shape)
