"""Feed-forward blocks: dense, or a mixture of experts, whose matrices may be low-bit.

A step reads no more experts' matrices than it has choices: one token of Qwen3-30B-A3B takes 8 of 128. TensorRT also
accepts a conditional between the two forms, but then a plan holds all matrices twice. Quantized experts are all read,
unless they are computed from their codes as in `packed_experts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from trtkit.dtypes import FP32, INT32
from trtkit.models.feed_forward import MlpSpec, MoeSpec
from trtkit.network.blocks.active_neurons import active_mlp_block
from trtkit.network.blocks.mlp import gate_of, is_bias_added, limited, mlp_block
from trtkit.network.blocks.norm import norm_block
from trtkit.network.ops.activation import activation, sigmoid
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.gather import embedding, entries
from trtkit.network.ops.linear import linear
from trtkit.network.ops.moe import (
    Choice,
    choose_experts,
    combine_experts,
    own_choice,
    read_experts,
    scale_inputs,
    scaled_choice,
    weight_of_each,
)
from trtkit.network.ops.norm import rms_norm
from trtkit.network.ops.shape import concat, reshape, reshape_like, split, unsqueeze
from trtkit.quantized_matrix import QuantizedMatrix, numbers_of_bytes
from trtkit.quantized_model import form_of, reads_chosen_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.models.feed_forward import RoutingSpec
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor
    from trtkit.network.host_array import Array
    from trtkit.quantization_methods import Format


_Form = Literal["plain", "packed", "each"]
"""How experts are computed: stacked with plain weights, stacked with the packed codes of those read, or one by one."""


def feed_forward_block(weights: Weights, x: Tensor, spec: MlpSpec | MoeSpec, hidden: Tensor | None = None) -> Tensor:
    """Apply a layer's feed-forward part to x [B, S, D], the normalized `hidden`."""
    if not isinstance(spec, MoeSpec):
        return (mlp_block if spec.active is None else active_mlp_block)(weights, "mlp", x, spec)
    if spec.separate_norm is not None and spec.shared is not None and hidden is not None:
        return _apart_block(weights, x, hidden, spec)
    return moe_block(weights, x, spec)


def moe_block(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Apply each token's top-k experts, and the shared expert if there is one; x [B, S, D]."""
    with x.graph.scope("moe"):
        y = _routed_and_shared(weights, x, spec)
        return y if spec.norm is None else norm_block(weights, "norm", y, spec.norm)


def _routed_and_shared(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Return the sum of the chosen experts' and the shared expert's outputs for x [B, S, D]."""
    # One matrix of all rows per expert: a batched product would read the expert once per sequence.
    rows = reshape(x, (1, -1, x.shape[-1]))
    choice = _choice(weights, rows, spec)
    if spec.latent_size is not None:
        rows = weights.linear("latent/in", rows, has_bias=spec.has_latent_bias)
    y = _experts(weights, rows, choice, spec)
    y = y if spec.joins_shared else weights.tokens.leave(y, spec.ranks)
    if spec.latent_size is not None:
        y = weights.linear("latent/out", y, has_bias=spec.has_latent_bias)
    summed = x if spec.joins_shared else weights.tokens.own(x)
    y = reshape_like(y, summed)
    if spec.shared is None:
        return y
    shared = mlp_block(weights, "shared", x, spec.shared, 1 if spec.joins_shared else None)
    if spec.is_shared_gated:
        router = weights if spec.joins_shared else weights.of_share
        shared = sigmoid(router.linear("shared_router", summed)) * shared
    return weights.tokens.leave(y + shared, spec.ranks) if spec.joins_shared else y + shared


def _apart_block(weights: Weights, x: Tensor, hidden: Tensor, spec: MoeSpec) -> Tensor:
    """Apply the shared expert to x [B, S, D] and the others to the hidden states [B, S, D]; normalize and add both."""
    assert spec.separate_norm is not None
    assert spec.shared is not None
    norm = spec.separate_norm
    with x.graph.scope("moe"):
        shared = norm_block(weights, "shared_norm", mlp_block(weights, "shared", x, spec.shared), norm)
        hidden = weights.tokens.enter(hidden)
        rows = reshape(hidden, (1, -1, hidden.shape[-1]))
        routed = rms_norm(rows, weights.get("router_scale", 3), norm.eps) * hidden.shape[-1] ** -0.5
        choice = scaled_choice(_choice(weights, routed, spec), cast(weights.get("expert_scale", 3), FP32))
        y = _experts(weights, norm_block(weights, "input_norm", rows, norm), choice, spec)
        y = weights.tokens.leave(reshape_like(y, hidden), spec.ranks)
        return shared + norm_block(weights, "output_norm", y, norm)


def _choice(weights: Weights, x: Tensor, spec: MoeSpec) -> Choice:
    """Return each token's experts and their weights for x [B, S, D]."""
    bias = None
    if spec.routing.choice_bias_axes:
        array = weights.array("choice_bias")
        bias = weights.graph.constant(array.reshape(1, 1, -1), "choice_bias", FP32)
    return choose_experts(_router_logits(weights, x, spec.routing), spec.routing, bias)


def _router_logits(weights: Weights, x: Tensor, routing: RoutingSpec) -> Tensor:
    """Return the router's score of each expert [B, S, E]."""
    if not routing.is_fp32 or weights.is_quantized("router"):
        return weights.linear("router", x, has_bias=routing.has_bias)
    with x.graph.scope("router"):
        array = weights.array("weight")
        bias = cast(weights.get("bias", x.rank), FP32) if routing.has_bias else None
        return linear(cast(x, FP32), x.graph.constant(array.reshape(1, *array.shape), "weight", FP32), bias)


def _experts(weights: Weights, x: Tensor, choice: Choice, spec: MoeSpec) -> Tensor:
    """Return the rank's experts' outputs for x [B, S, D], summed with each token's weights."""
    chosen = choice if spec.share.count == 1 else own_choice(choice, spec.experts)
    form, read = _form_of(weights, spec), None
    if form != "each" and spec.reads_chosen and weights.experts != "all":
        read, weight = read_experts(chosen, len(spec.experts))
    else:
        weight = weight_of_each(chosen, len(spec.experts))
    x = scale_inputs(x, weight) if spec.routing.scales_inputs else unsqueeze(x, 1)
    outputs = _each_expert(weights, x, spec) if form == "each" else _Stacked(weights, spec, read, form).outputs(x)
    return combine_experts(outputs, None if spec.routing.scales_inputs else weight)


def _each_expert(weights: Weights, x: Tensor, spec: MoeSpec) -> Tensor:
    """Compute all experts one by one: x [1, 1 or E, S, D] -> [1, E, S, D]."""
    parts = split(x, 1, (1,) * int(x.shape[1]))
    flat = [reshape(part, (1, -1, x.shape[-1])) for part in parts]  # TensorRT's block quantization takes three axes
    inputs = flat if len(flat) > 1 else flat * len(spec.experts)
    outputs = [
        mlp_block(weights, f"experts/{index}", tokens, spec.expert, ranks=1)
        for index, tokens in zip(spec.experts, inputs, strict=True)
    ]
    return concat([unsqueeze(y, 1) for y in outputs], axis=1)


@dataclass(frozen=True)
class _Stacked:
    """Experts whose matrices are stacked in one tensor. read: indices [M] of those that a step reads; None for all."""

    weights: Weights
    spec: MoeSpec
    read: Tensor | None
    form: _Form

    def outputs(self, x: Tensor) -> Tensor:
        """Compute experts' MLPs: x [B, 1 or M, S, D] -> [B, M, S, D]."""
        expert = self.spec.expert
        if expert.is_gated:
            gate = self._linear("gate", x)
            with x.graph.scope("experts"):
                gate = gate_of(gate, expert)
            up = self._linear("up", x)
            with x.graph.scope("experts"):
                inner = gate * limited(up, expert)
        else:
            up = self._linear("up", x)
            with x.graph.scope("experts"):
                inner = activation(up, expert.activation)
        return self._linear("down", inner)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        """Apply experts' linear layers `name` to x [1, 1 or M, S, in] -> [1, M, S, out]."""
        has_bias = self.spec.expert.has_bias and (name != "down" or is_bias_added(self.spec.expert))
        if self.form == "packed" and self.read is not None:
            matrices = packed_matrices(self.weights, name, self.spec.experts, self.read)
        else:
            matrices = self._joined(name, "weight")
        biases = self._joined(name, "bias") if has_bias else None
        with x.graph.scope("experts"):
            return linear(x, matrices, biases)

    def _joined(self, module: str, role: str) -> Tensor:
        """Return experts' weights stacked as [1, M, out or 1, in or out], by TensorRT rather than in memory."""
        graph, parts = self.weights.graph, []
        for index in self.spec.experts:
            with graph.scope(f"experts/{index}/{module}"):
                parts.append(self.weights.get(role, 4))
        with graph.scope(f"experts/{module}"):
            joined = concat(parts, axis=1)
            return joined if self.read is None else entries(joined, 1, self.read)


def _form_of(weights: Weights, spec: MoeSpec) -> _Form:
    """Return how experts are computed: quantized ones one by one, as each may scale its inputs differently."""
    if not weights.is_quantized(f"experts/{spec.experts.start}/up"):
        return "plain"
    graph = weights.graph
    for name in ("gate", "up", "down") if spec.expert.is_gated else ("up", "down"):
        matrices = []
        for index in spec.experts:
            with graph.scope(f"experts/{index}/{name}"):
                matrices.append(weights.array("weight"))
        if not spec.reads_chosen or not is_packed(weights, matrices):
            return "each" if matrices[0].has_type else "plain"
    return "packed"


_WORD_BYTES, _VALUES = 4, 256


def is_packed(weights: Weights, matrices: Sequence[Array]) -> bool:
    """Whether the codes of a layer's experts, [out, in] each, are read as words: all have one form and fill words."""
    first = matrices[0]
    if not isinstance(first, QuantizedMatrix) or first.shape[1] * first.dtype.bits % (8 * _WORD_BYTES):
        return False
    if not all(isinstance(matrix, QuantizedMatrix) and form_of(matrix) == form_of(first) for matrix in matrices):
        return False
    return all(
        reads_chosen_codes(weights.experts, matrix.format, changes_inputs=matrix.changes_inputs) for matrix in matrices
    )


def packed_matrices(weights: Weights, module: str, experts: range, read: Tensor) -> Tensor:
    """Return the matrices `module` of experts [1, M, out, in]. read: their indices [M]."""

    def of_each(role: str, parts: Callable[[QuantizedMatrix], Array]) -> Tensor:
        return entries(concat([_constant(weights, f"{module}/{role}", index, parts) for index in experts], 1), 1, read)

    with weights.graph.scope(f"experts/{experts.start}/{module}"):
        first = weights.array("weight")
    codes, scales = of_each("weight", _words), of_each("scale", QuantizedMatrix.block_scales)
    offsets = None if first.offsets is None else of_each("offsets", lambda matrix: matrix.offsets)
    with weights.graph.scope(f"experts/{module}"):
        blocks = reshape(_numbers(weights, codes, first.format), (0, 0, 0, scales.shape[-1], -1))
        blocks = blocks * unsqueeze(scales, 4)
        blocks = blocks if offsets is None else blocks + unsqueeze(offsets, 4)
        return reshape(blocks, (0, 0, 0, first.shape[1]))


def _constant(weights: Weights, path: str, index: int, part: Callable[[QuantizedMatrix], Array]) -> Tensor:
    """Return a part of one expert's matrix as a constant [1, 1, out, n]."""
    graph = weights.graph
    module, _, role = path.partition("/")
    with graph.scope(f"experts/{index}/{module}"):
        matrix = weights.array("weight")
        graph.quantized[graph.path().replace("/", ".")] = replace(form_of(matrix), is_packed=True)
        array = part(matrix)
        if array.dtype == np.int32:
            return graph.packed(array, INT32, (1, 1, *array.shape), role)
        return weights.quantized.checked(array.reshape(1, 1, *array.shape), role)


def _words(matrix: QuantizedMatrix) -> Array:
    """Return a matrix's codes as words [out, n], the first code in the lowest bits."""
    return np.ascontiguousarray(matrix.codes).view("<i4")


def _numbers(weights: Weights, words: Tensor, kind: Format) -> Tensor:
    """Return the values of the codes in words [1, M, out, n]: [1, M, out, n, bytes, codes per byte]."""
    graph = words.graph
    table = graph.constant(numbers_of_bytes(kind), "values", weights.dtype)
    parts = []
    for _ in range(_WORD_BYTES):
        rest = graph.elementwise("FLOOR_DIV", words, _VALUES)
        parts.append(unsqueeze(words - rest * _VALUES, 4))
        words = rest
    return embedding(concat(parts, 4), table)
