"""Take apart the experts of a TensorRT-LLM checkpoint, which one tensor holds for a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.joined_array import joined, take_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.sources.trtllm.family import Experts

    Arrays = dict[str, StoredArray]

EXPERT_MODULES = ("mlp.fc", "mlp.proj", "mlp.shared_expert.fc", "mlp.shared_expert.proj")
"""TensorRT-LLM's modules that hold experts."""


def expert_weights(ranks: Sequence[Mapping[str, StoredArray]], name: str, experts: Experts) -> Arrays:
    """Return the matrices of experts by HF module: of [E, up then gate, H] and [E, H, down], or of the shared one.

    Nothing where the tensor has no experts.
    """
    parts = [rank[name] for rank in ranks]
    is_down = name.endswith("proj.weight")
    if "shared_expert" in name:
        if experts.shared is None or any(len(part.shape) != 2 for part in parts):
            return {}
        return _apart(parts, experts.shared, experts, is_down=is_down)
    if any(part.is_quantized or len(part.shape) != 3 for part in parts):
        return {}
    weights: Arrays = {}
    for expert in range(parts[0].shape[0]):
        own = [_expert(part, expert) for part in parts]
        weights |= _apart(own, f"{experts.module}.{expert}", experts, is_down=is_down)
    return weights


def _apart(parts: Sequence[StoredArray], module: str, experts: Experts, *, is_down: bool) -> Arrays:
    """Return one expert's matrices, of the parts that ranks hold."""
    if is_down:
        return {f"{module}.{experts.down}": joined(parts, 1)}
    half = parts[0].shape[0] // 2
    return {
        f"{module}.{experts.up}": joined([take_rows(part, 0, half) for part in parts], 0),
        f"{module}.{experts.gate}": joined([take_rows(part, half, half) for part in parts], 0),
    }


def _expert(stored: StoredArray, expert: int) -> StoredArray:
    return StoredArray(stored.shape[1:], lambda: stored.read()[expert])
