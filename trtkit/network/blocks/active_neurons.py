"""A feed-forward block that reads only the rows of active neurons, for activations that are zero for negative inputs.

The gate is computed for all neurons. Blocks of neurons are ranked by their largest activation, and the rows of `up` and
`down` are gathered for the best: the kept number for each new token, all together. A step whose tokens need more than
the limit reads all rows. Sources: LLM in a flash (https://arxiv.org/abs/2312.11514), Deja Vu
(https://arxiv.org/abs/2310.17157).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import FP32, INT32
from trtkit.errors import NetworkError
from trtkit.network.blocks.mlp import gate_of
from trtkit.network.ops.activation import activation
from trtkit.network.ops.arithmetic import cast, max_over, select, sum_over
from trtkit.network.ops.gather import entries
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.moe import top_k
from trtkit.network.ops.shape import concat, padded_to, reshape, reshape_like, size_of, slice_of, take
from trtkit.quantized_matrix import QuantizedMatrix

if TYPE_CHECKING:
    from trtkit.models.feed_forward import ActiveBlocks, MlpSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor
    from trtkit.network.host_array import Array


def active_mlp_block(weights: Weights, name: str, x: Tensor, spec: MlpSpec) -> Tensor:
    """Compute `mlp_block` from the rows of the best blocks of neurons; x [B, S, D].

    Appends the counts of active and of read blocks to the weights' `block_counts`.
    """
    active = spec.active
    assert active is not None
    with x.graph.scope(name):
        rows = reshape(x, (1, -1, x.shape[-1]))  # [1, T, D]
        first = weights.linear("gate" if spec.is_gated else "up", rows, has_bias=spec.has_bias)
        inner = gate_of(first, spec) if spec.is_gated else activation(first, spec.activation)
        inner = _in_blocks(inner, active.block, active.count_of(spec.intermediate_size))
        read = _read_blocks(weights, inner, active)
        both = entries(_joined_rows(weights, spec, active.block), 0, read)  # [K, up and down, block, D]
        inner = reshape(entries(inner, 2, read), (0, 0, -1))
        if spec.is_gated:
            up = matmul(rows, _part(both, 0), transpose_b=True)
            inner = inner * (up + _up_bias(weights, active.block, read) if spec.has_bias else up)
        y = matmul(inner, _part(both, int(spec.is_gated)))
        with x.graph.scope("down"):
            y = y + weights.get("bias", y.rank) if spec.has_bias else y
        y = y * spec.factor if spec.factor != 1 else y
        return reshape_like(y, x)


def _in_blocks(inner: Tensor, block: int, count: int) -> Tensor:
    """Return activations [1, T, F] as [1, T, blocks, block], with zeros after the last neuron."""
    if count * block != inner.shape[-1]:
        inner = padded_to(inner, -1, inner.graph.constant(np.array([count * block], np.int64)))
    return reshape(inner, (0, 0, count, block))


def _read_blocks(weights: Weights, inner: Tensor, active: ActiveBlocks) -> Tensor:
    """Return the indices of the blocks to read [K]: the best `kept` per token, or all in order."""
    graph, count = inner.graph, inner.shape[2]
    with graph.scope("blocks"):
        best = cast(reshape(max_over(max_over(inner, 3), 1), (1, -1)), FP32)
        most = active.most_tokens(count) * active.kept
        _, chosen = top_k(best, most)
        numbers = graph.constant(np.arange(count, dtype=np.int32), "numbers")
        zero, rest, kept, limit = (
            graph.constant(np.array([size], np.int64)) for size in (0, most, active.kept, most + 1)
        )
        wanted = take(size_of(inner), 0, 1, 1) * kept
        are_few = wanted < limit
        whole = graph.constant(np.array([count], np.int64))
        both = concat([reshape(chosen, (-1,)), numbers], 0)
        read = slice_of(both, select(are_few, zero, rest), select(are_few, wanted, whole))
        is_active = cast(sum_over(cast(best > 0.0, FP32), 1), INT32)  # [1]
        weights.block_counts.append(reshape(concat([is_active, cast(size_of(read), INT32)], 0), (1, 2)))
        return read


def _joined_rows(weights: Weights, spec: MlpSpec, block: int) -> Tensor:
    """Return the rows of `up` and `down` by neuron, [blocks, 2 or 1, block, D]: each block is contiguous."""
    names = ("up", "down") if spec.is_gated else ("down",)
    parts = [_by_block(_rows(weights, name), block) for name in names]
    with weights.graph.scope("rows"):
        return weights.graph.constant(np.stack(parts, axis=1), "weight", weights.dtype)


def _rows(weights: Weights, name: str) -> Array:
    """Return a matrix with one row per neuron, [F, D]."""
    with weights.graph.scope(name):
        array, path = weights.array("weight"), weights.graph.path()
    if isinstance(array, QuantizedMatrix):
        fix = "remove `llm.sparse_ffn`, or use weights that are not quantized"
        raise NetworkError("rows of a quantized matrix are not gathered", path, fix)
    rows = _numbers(array)
    return rows if (name == "down") == weights.is_in_out else rows.T


def _numbers(array: Array) -> Array:
    return array if isinstance(array, np.ndarray) else np.asarray(array.float())


def _by_block(rows: Array, block: int) -> Array:
    """Return rows [F, ...] as [blocks, block, ...], with zeros after the last."""
    missing = -len(rows) % block
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
    return rows.reshape(-1, block, *rows.shape[1:])


def _part(both: Tensor, index: int) -> Tensor:
    """Return one matrix of gathered blocks [K, n, block, D] as rows [1, K * block, D]."""
    return reshape(take(both, 1, index, 1), (1, -1, both.shape[-1]))


def _up_bias(weights: Weights, block: int, read: Tensor) -> Tensor:
    """Return the bias of the neurons in the blocks `read`, [1, 1, K * block]."""
    with weights.graph.scope("up"):
        bias = weights.graph.constant(_by_block(_numbers(weights.array("bias")), block), "bias", weights.dtype)
        return reshape(entries(bias, 0, read), (1, 1, -1))
