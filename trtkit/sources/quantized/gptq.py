"""Checkpoints that AutoGPTQ and GPTQModel write, of 4 and 8 bits.

A linear layer is `qweight` int32 [in * bits / 32, out], `qzeros` int32 [groups, out * bits / 32], `scales`
[groups, out] and `g_idx` [in], each column's group. Format `gptq` stores zero points less one, `gptq_v2` as they are.
Source: `qlinear_cuda_old.py`, https://github.com/AutoGPTQ/AutoGPTQ, and https://github.com/ModelCloud/GPTQModel
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.quantized.integers import check_group, integer_matrix, unsigned
from trtkit.sources.quantized.layers import Parts, layers, part, replaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.quantized_matrix import QuantizedMatrix
    from trtkit.sources.quantized.layers import Stored

_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_LESS = {"gptq": 1, "gptq_v2": 0}
"""What zero points are stored less by."""


def gptq_layers(stored: Stored, quantization: Mapping[str, Any]) -> Parts:
    """Return a checkpoint's tensors, each quantized layer as one matrix. quantization: its `quantization_config`.

    Raises SourceError for formats and bits that are not known, ProblemsError naming layers that cannot be read.
    """
    kind, bits = str(quantization.get("checkpoint_format") or "gptq"), int(quantization.get("bits", 4))
    if kind not in _LESS:
        known = "quantize again with `gptq` or `gptq_v2`"
        raise SourceError(f"GPTQ's format `{kind}` is not known", "quantization_config.checkpoint_format", known)
    if bits not in (4, 8):
        fix = "quantize again with 4 or 8"
        raise SourceError(f"TensorRT does not support {bits}-bit weights", "quantization_config.bits", fix)
    group, less = int(quantization.get("group_size", 128)), _LESS[kind]
    return replaced(stored, layers(stored, "qweight", _PARTS), lambda _, parts: _matrix(parts, bits, group, less))


def _matrix(parts: Parts, bits: int, group: int, less: int) -> QuantizedMatrix:
    """Return one layer's matrix. bits, group: if it has no `g_idx`, by which layers' own may be told."""
    words, scales = part(parts, "qweight"), part(parts, "scales")
    groups = np.asarray(part(parts, "g_idx")) if "g_idx" in parts else None
    if groups is not None and groups.size and len(words) * 32 % groups.size == 0:
        bits = len(words) * 32 // groups.size
    numbers = unsigned(words.T, bits)
    if groups is None:
        check_group(scales.T, numbers.shape[1], group)
    elif groups.shape != (numbers.shape[1],):
        what = f"`g_idx` has {groups.size} columns, `qweight` {numbers.shape[1]}"
        raise SourceError(what, fix="copy the checkpoint's files again")
    zeros = (unsigned(part(parts, "qzeros"), bits) + np.uint8(less)) & np.uint8((1 << bits) - 1)
    return integer_matrix(numbers, bits, scales.T, zeros.T, groups)
