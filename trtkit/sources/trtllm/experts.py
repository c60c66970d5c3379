"""Take apart the experts of a TensorRT-LLM checkpoint, which one tensor holds for a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.joined_array import joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def expert_weights(ranks: Sequence[Mapping[str, StoredArray]], name: str) -> dict[str, StoredArray]:
    """Return Mixtral's matrices of each expert by HF module: of [E, up then gate, H] and [E, H, down].

    Nothing where the tensor has no experts, or is quantized.
    """
    parts = [rank[name] for rank in ranks]
    if any(part.is_quantized or len(part.shape) != 3 for part in parts):
        return {}
    weights = {}
    for expert in range(parts[0].shape[0]):
        module = f"block_sparse_moe.experts.{expert}"
        if name.endswith("proj.weight"):
            weights[f"{module}.w2"] = joined([_slice(part, expert, 0, part.shape[1]) for part in parts], 1)
            continue
        half = parts[0].shape[1] // 2
        weights[f"{module}.w3"] = joined([_slice(part, expert, 0, half) for part in parts], 0)
        weights[f"{module}.w1"] = joined([_slice(part, expert, half, half) for part in parts], 0)
    return weights


def _slice(stored: StoredArray, expert: int, start: int, count: int) -> StoredArray:
    rows = slice(start, start + count)
    return StoredArray((count, stored.shape[2]), lambda: stored.read()[expert, rows])
