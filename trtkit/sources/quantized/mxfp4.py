"""gpt-oss's storage format: experts in MXFP4.

A block of 32 is 16 bytes of 4-bit floats, the first element in the low half, and a power of two. bf16 and fp32 hold all
products exactly. Source: https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.huggingface.stacked_experts import GATE_UP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.arrays import Array

METHOD = "mxfp4"
BLOCK = 32
_BIAS, _NAN = 127, 255
_PARTS = {"mlp.experts.gate_up_proj": GATE_UP, "mlp.experts.down_proj": ("mlp.experts.{e}.down_proj.weight",)}


def mxfp4_experts(stored: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return a checkpoint's tensors, with each expert's matrices under their own names, read on request.

    Raises ProblemsError for arrays that do not match.
    """
    arrays, problems = dict(stored), []
    for name in [name.removesuffix("_blocks") for name in stored if name.endswith("_blocks")]:
        blocks, scales = arrays.pop(f"{name}_blocks"), arrays.pop(f"{name}_scales", None)
        kind = next((kind for kind in _PARTS if name.endswith(f".{kind}")), None)
        if kind is None or scales is None or not _fit(blocks, scales, len(_PARTS[kind])):
            shapes = f"{list(blocks.shape)} and {None if scales is None else list(scales.shape)}"
            problems.append(Problem(f"blocks and scales have shapes {shapes}", name))
            continue
        arrays |= _experts(name.removesuffix(kind), blocks, scales, _PARTS[kind])
    if problems:
        raise ProblemsError("MXFP4 weights that cannot be read", problems, "copy the checkpoint's files again")
    return arrays


def _fit(blocks: StoredArray, scales: StoredArray, parts: int) -> bool:
    """Whether blocks [E, out, in / 32, 16] and scales [E, out, in / 32] belong to the same rows."""
    is_whole = len(blocks.shape) == 4 and blocks.shape[1] % parts == 0 and blocks.shape[3] * 2 == BLOCK
    return is_whole and blocks.shape[:3] == scales.shape


def _experts(
    start: str, blocks: StoredArray, scales: StoredArray, parts: tuple[str, ...]
) -> Iterator[tuple[str, StoredArray]]:
    """Yield each expert's matrices [out, in]; rows of the parts alternate."""
    experts, rows, count, _ = blocks.shape
    for expert in range(experts):
        for index, part in enumerate(parts):
            read = partial(_matrix, blocks, scales, expert, slice(index, None, len(parts)))
            array = StoredArray((rows // len(parts), count * BLOCK), read, is_quantized=True)  # type: ignore[arg-type]
            yield start + part.format(e=expert), array


def _matrix(blocks: StoredArray, scales: StoredArray, expert: int, rows: slice) -> QuantizedMatrix:
    """Read one expert's matrix. rows: the matrix's rows. Raises the errors of `powers_of_two`."""
    exponents = scales.read()[expert][rows]
    codes = np.ascontiguousarray(blocks.read()[expert][rows]).reshape(len(exponents), -1)
    return QuantizedMatrix("mxfp4", codes, powers_of_two(exponents))


def powers_of_two(exponents: Array) -> Array:
    """Return scales in fp32 from their one-byte exponents. Raises SourceError for one that encodes NaN."""
    if np.any(exponents == _NAN):
        raise SourceError("a scale is not a number", fix="copy the checkpoint's files again")
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS)
