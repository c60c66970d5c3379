"""gpt-oss as it is stored: experts in MXFP4, dequantized as each is read.

A block of 32 is 16 bytes of 4-bit floats, the first element in the low half, and a power of two. bf16 and fp32 hold all
products exactly. TensorRT takes 4-bit floats with fp8 scales of 16 elements only, so that the codes are not kept.
Source: https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.huggingface.stacked_experts import GATE_UP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.arrays import Array

METHOD = "mxfp4"
NOTE = "experts dequantized from MXFP4, exactly in bf16 and fp32"
BLOCK = 32
_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_CODES = np.concatenate([_VALUES, -_VALUES])
_BIAS, _NAN = 127, 255
_PARTS = {"mlp.experts.gate_up_proj": GATE_UP, "mlp.experts.down_proj": ("mlp.experts.{e}.down_proj.weight",)}


def mxfp4_experts(stored: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """Return a checkpoint's tensors, each expert's matrices in bf16 by their own names, read when asked for.

    Raises ProblemsError for arrays that do not fit one another.
    """
    arrays, problems = dict(stored), []
    for name in [name.removesuffix("_blocks") for name in stored if name.endswith("_blocks")]:
        blocks, scales = arrays.pop(f"{name}_blocks"), arrays.pop(f"{name}_scales", None)
        kind = next((kind for kind in _PARTS if name.endswith(f".{kind}")), None)
        if kind is None or scales is None or not _fit(blocks, scales, len(_PARTS[kind])):
            shapes = f"{list(blocks.shape)} and {None if scales is None else list(scales.shape)}"
            problems.append(Problem(f"blocks and scales have shapes {shapes}", name))
            continue
        arrays |= _experts(name.removesuffix(kind), (blocks, scales), _PARTS[kind])
    if problems:
        raise ProblemsError("MXFP4 weights that cannot be read", problems, "copy the checkpoint's files again")
    return arrays


def _fit(blocks: StoredArray, scales: StoredArray, parts: int) -> bool:
    """Whether blocks [E, out, in / 32, 16] and scales [E, out, in / 32] are of the same rows."""
    is_whole = len(blocks.shape) == 4 and blocks.shape[1] % parts == 0 and blocks.shape[3] * 2 == BLOCK
    return is_whole and blocks.shape[:3] == scales.shape


def _experts(
    start: str, stored: tuple[StoredArray, StoredArray], parts: tuple[str, ...]
) -> Iterator[tuple[str, StoredArray]]:
    """Yield each expert's matrices [out, in]; rows of the parts take turns."""
    experts, rows, blocks, _ = stored[0].shape
    for expert in range(experts):
        for index, part in enumerate(parts):
            read = _Matrix(*stored, expert, slice(index, None, len(parts)))
            yield start + part.format(e=expert), StoredArray((rows // len(parts), blocks * BLOCK), read)


@dataclass(frozen=True)
class _Matrix:
    """Reads one expert's matrix. rows: which of the stored ones it has."""

    blocks: StoredArray
    scales: StoredArray
    expert: int
    rows: slice

    def __call__(self) -> Array:
        import ml_dtypes

        scales = self.scales.read()[self.expert][self.rows]
        if np.any(scales == _NAN):
            raise SourceError("a scale is not a number", fix="copy the checkpoint's files again")
        packed = self.blocks.read()[self.expert][self.rows]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*scales.shape, BLOCK)
        values = np.ldexp(_CODES[codes], scales[..., None].astype(np.int32) - _BIAS)
        matrix: Array = values.reshape(len(scales), -1).astype(ml_dtypes.bfloat16)
        return matrix
