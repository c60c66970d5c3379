"""A custom decoder in trtkit's network API: parallel attention and gated MLP, RMS norms, attention sinks."""

from __future__ import annotations

import math

import numpy as np

from trtkit.backends import load_backend
from trtkit.dtypes import FP32, INT32
from trtkit.network.graph import Graph, Tensor
from trtkit.network.ops.activation import silu
from trtkit.network.ops.attention import attention_from_primitives, scale_query
from trtkit.network.ops.gather import embedding
from trtkit.network.ops.kv_cache import update_cache
from trtkit.network.ops.linear import linear
from trtkit.network.ops.mask import causal_mask
from trtkit.network.ops.norm import rms_norm
from trtkit.network.ops.shape import merge_heads, split_heads

V, D, F, N, K, H, T, LAYERS = 96, 32, 80, 4, 2, 8, 64, 2  # letters as in trtkit.network.graph


def layer(g: Graph, x: Tensor, w: dict[str, np.ndarray], io: tuple[Tensor, Tensor, Tensor], i: int) -> Tensor:
    """Add layer i; return its output. x: [B, S, D]."""
    position_ids, write_indices, kv_lengths = io
    weight = {name: g.constant(array[None] if array.ndim == 2 else array, name) for name, array in w.items()}
    y = rms_norm(x, weight["norm"], eps=1e-6)
    q, k, v = (split_heads(linear(y, weight[name]), heads) for name, heads in (("q", N), ("k", K), ("v", K)))
    past = [g.input(f"past_{name}_{i}", FP32, (-1, K, T, H)) for name in ("key", "value")]
    k, v = (update_cache(cache, new, write_indices) for cache, new in zip(past, (k, v), strict=True))
    mask = causal_mask(position_ids, kv_lengths, T)
    attended = attention_from_primitives((scale_query(q, H**-0.5), k, v), mask, sinks=weight["sinks"])
    g.output(k, f"present_key_{i}")
    g.output(v, f"present_value_{i}")
    fed = linear(silu(linear(y, weight["gate"])) * linear(y, weight["up"]), weight["down"])
    return x + linear(merge_heads(attended), weight["o"]) + fed


def decoder(g: Graph, weights: list[dict[str, np.ndarray]], ends: tuple[np.ndarray, np.ndarray]) -> None:
    """Add the whole model, with trtkit's standard inputs and outputs of language models."""
    table, head = ends
    x = embedding(g.input("input_ids", INT32, (-1, -1)), g.constant(table, "embedding"))
    names = {"position_ids": (-1, -1), "write_indices": (-1,), "kv_lengths": (-1,)}
    position_ids, write_indices, kv_lengths = (g.input(name, INT32, shape) for name, shape in names.items())
    for i, w in enumerate(weights):
        with g.scope(f"layers.{i}"):
            x = layer(g, x, w, (position_ids, write_indices, kv_lengths), i)
    g.output(linear(rms_norm(x, None, eps=1e-6), g.constant(head[None], "lm_head")), "logits")


def random_weights(seed: int = 0) -> tuple[list[dict[str, np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """Return the layers' weights; and the embedding and the LM head."""
    random = np.random.default_rng(seed)
    shapes = {"q": (N * H, D), "k": (K * H, D), "v": (K * H, D), "o": (D, N * H), "norm": (D,), "sinks": (N,)}
    shapes |= {"gate": (F, D), "up": (F, D), "down": (D, F)}
    layers = [
        {name: random.normal(0, 1 / math.sqrt(shape[-1]), shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(LAYERS)
    ]
    table, head = random.normal(0, 1, (2, V, D)).astype(np.float32)
    return layers, (table, head)


def new_graph() -> Graph:
    """Return the finished network."""
    graph = Graph(load_backend("tensorrt_rtx"))
    decoder(graph, *random_weights())
    return graph
