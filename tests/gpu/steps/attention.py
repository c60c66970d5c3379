"""Attention over KV caches: what LOWER_RIGHT means with lengths, and the cost of each way to mask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tests.gpu.networks import Bound, build_plan, relative_rms
from trtkit.dtypes import BOOL, FP16, INT32
from trtkit.network.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.gpu.place import Place
    from tests.gpu.step import Answer

    Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Size:
    """B slots, N query heads, K key/value heads, S new tokens, T cached tokens, head_dim H."""

    B: int
    N: int
    K: int
    S: int
    T: int
    H: int = 64


def ask(place: Place) -> Iterator[Answer]:
    """Find where LOWER_RIGHT is anchored, then time decode steps at short and long lengths."""
    small = Size(2, 8, 2, 3, 64)
    inputs = random_inputs(place, small, [9, 40])
    plan = attention_plan(place, small, "LOWER_RIGHT")
    del inputs["mask"]
    output = Bound(place, plan, inputs).run()["y"]
    errors = {where: relative_rms(output, by_torch(inputs, small, where)) for where in ("lengths", "T")}
    anchored = min(errors, key=lambda where: errors[where])
    yield {
        "what": "LOWER_RIGHT with lengths",
        "anchored_at": anchored if errors[anchored] < 0.01 else "neither",
        **errors,
    }
    size = small if place.is_simulated else Size(32, 32, 8, 1, 2048, 128)
    for kind in ("NONE", "LOWER_RIGHT", "mask"):
        for length in (size.T // 32, size.T // 4, size.T - 1):
            yield _timed(place, kind, size, length) | {"what": f"{kind}, {length} of {size.T} tokens"}


def attention_plan(place: Place, size: Size, kind: str) -> Path:
    """Build one attention with lengths. kind: a CausalMaskKind, or `mask` for an explicit mask."""
    graph, trt = Graph(place.backend), place.backend.trt
    q = graph.input("q", FP16, (size.B, size.N, size.S, size.H))
    k, v = (graph.input(name, FP16, (size.B, size.K, size.T, size.H)) for name in ("k", "v"))
    lengths = graph.input("lengths", INT32, (size.B,))
    causal = getattr(trt.CausalMaskKind, "NONE" if kind == "mask" else kind)
    layer = graph.network.add_attention_v2(q.trt, k.trt, v.trt, trt.AttentionNormalizationOp.SOFTMAX, causal)
    if kind == "mask":
        layer.mask = graph.input("mask", BOOL, (size.B, 1, size.S, size.T)).trt
    layer.key_value_lengths = lengths.trt
    graph.output(graph.add(layer, "attention"), "y")
    return build_plan(place, graph, {})


def random_inputs(place: Place, size: Size, lengths: list[int]) -> Inputs:
    """Return q (scaled), k, v, lengths, and the mask for tokens that end at the lengths."""
    random = torch.Generator().manual_seed(0)
    ends = torch.tensor(lengths, dtype=torch.int32)
    inputs = {
        "q": (torch.randn(size.B, size.N, size.S, size.H, generator=random) * size.H**-0.5).half(),
        "k": torch.randn(size.B, size.K, size.T, size.H, generator=random).half(),
        "v": torch.randn(size.B, size.K, size.T, size.H, generator=random).half(),
        "lengths": ends,
        "mask": visible(size, ends),
    }
    return {name: value.to(place.torch_device) for name, value in inputs.items()}


def visible(size: Size, ends: torch.Tensor) -> torch.Tensor:
    """Return which keys each new token attends to, [B, 1, S, T], if the last one is at `ends`."""
    last = ends[:, None] - size.S + 1 + torch.arange(size.S)
    return (torch.arange(size.T) < last[:, :, None])[:, None]


def by_torch(inputs: Inputs, size: Size, where: str) -> torch.Tensor:
    """Return attention in fp64. where: whether the last new token is at the slot's length or at T."""
    lengths = inputs["lengths"].cpu()
    ends = lengths if where == "lengths" else torch.full_like(lengths, size.T)
    mask = visible(size, ends) & (torch.arange(size.T) < lengths[:, None, None, None])
    q, k, v = (inputs[name].cpu().double() for name in ("q", "k", "v"))
    k, v = (x.repeat_interleave(size.N // size.K, 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)


def _timed(place: Place, kind: str, size: Size, length: int) -> dict[str, Any]:
    inputs = random_inputs(place, size, [length] * size.B)
    own = inputs if kind == "mask" else {name: value for name, value in inputs.items() if name != "mask"}
    bound = Bound(place, attention_plan(place, size, kind), own)
    first = {name: value[:2] for name, value in inputs.items()}
    error = relative_rms(bound.run()["y"][:2], by_torch(first, replace(size, B=2), "lengths"))
    read = 2 * size.B * size.K * length * size.H * 2
    return {"step_ms": bound.median_ms(), "cache_bytes_in_use": read, "relative_rms_error": error}
