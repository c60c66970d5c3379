"""Weights as tensors of a network, found by the current scope, and the low-rank adapters of linear layers."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trtkit.dtypes import INT32
from trtkit.errors import NetworkError
from trtkit.network.blocks.quantized import QuantizedLinears
from trtkit.network.blocks.token_share import ALL_TOKENS, TokenShare
from trtkit.network.input_spec import ADAPTER_IDS, ADAPTER_RANK, BATCH, LORA_ENDS, RANK_OWNERS, Axis, InputSpec
from trtkit.network.lowering.sampling import GRID_SAMPLE
from trtkit.network.ops.arithmetic import equal, select
from trtkit.network.ops.linear import linear, matmul
from trtkit.network.ops.shape import unsqueeze
from trtkit.quantized_matrix import QuantizedMatrix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.dtypes import DType
    from trtkit.network.graph import Graph, Tensor
    from trtkit.network.host_array import Array
    from trtkit.quantized_model import ExpertsRead


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights by path, added to a graph in one type.

    arrays: `layers.7.attention.q.weight` is `weight` in the scope `layers.7/attention/q`.
    is_in_out: matrices inside layers are stored as [in, out]. form: how sampling ops are written, one of
    `lowering.sampling.FORMS`, for the writers that use these weights. experts: whose matrices mixtures read. low_rank:
    what adapters add to linear layers, if there can be any. tokens: what a rank has of them between blocks.
    block_counts: of layers that read active neurons only, int32 [1, 2] each: blocks that are active, and that are read.
    """

    graph: Graph
    arrays: Mapping[str, Array]
    dtype: DType
    is_in_out: bool = False
    form: str = GRID_SAMPLE
    experts: ExpertsRead = "all"
    low_rank: LowRankInputs | None = None
    tokens: TokenShare = ALL_TOKENS
    block_counts: list[Tensor] = field(default_factory=list)

    @cached_property
    def quantized(self) -> QuantizedLinears:
        """The writer of quantized matrices."""
        return QuantizedLinears(self.graph, self.dtype)

    @cached_property
    def of_share(self) -> Weights:
        """The same weights, for linear layers whose inputs are this rank's share of the tokens."""
        if self.tokens.is_whole or self.low_rank is None:
            return self
        return replace(self, low_rank=self.low_rank.of_share(self.tokens))

    def get(self, role: str, rank: int = 0) -> Tensor:
        """Return weight `role` of the current scope as a tensor, with leading axes of size 1 up to `rank`.

        Raises NetworkError if it does not exist.
        """
        array = self.array(role)
        if isinstance(array, QuantizedMatrix):
            if array.changes_inputs:
                raise NetworkError("its inputs are to be changed, which only a linear layer can", self.graph.path(role))
            if array.has_type:
                return self.quantized.weight(array, max(rank, 2))
            array = array.weights()
        shape = tuple(array.shape)
        missing = max(rank - len(shape), 0)
        return self.graph.constant(array.reshape((1,) * missing + shape), role, self.dtype)

    def array(self, role: str) -> Array:
        """Return weight `role` of the current scope as stored. Raises NetworkError if it does not exist."""
        path = self.graph.path(role)
        array = self.arrays.get(path.replace("/", "."))
        if array is None:
            raise NetworkError("there is no such weight", path)
        return array

    def is_quantized(self, name: str) -> bool:
        """Whether the matrix of linear layer `name` of the current scope is quantized."""
        with self.graph.scope(name):
            return isinstance(self.array("weight"), QuantizedMatrix)

    def linear(self, name: str, x: Tensor, *, has_bias: bool = False, ranks: int = 1) -> Tensor:
        """Apply the linear layer `name` of the current scope to x [..., in] -> [..., out].

        ranks: how many hold parts of the inputs; their outputs are summed before the bias is added, and each rank keeps
        its share of the tokens.
        """
        with self.graph.scope(name):
            bias = self.get("bias", x.rank) if has_bias else None
            y = self.product(x, bias if ranks == 1 else None, is_in_out=self.is_in_out)
            y = y if self.low_rank is None else self.low_rank.added_to(y, x)
            y = y if ranks == 1 else self.tokens.leave(y, ranks)
            return y if bias is None or ranks == 1 else y + bias

    def linear_by_rows(self, name: str, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Apply equal parts of the rows of layer `name`, and of its bias, to one input [..., in] each."""
        with self.graph.scope(name):
            matrix, bias = self.array("weight"), self.array("bias")
            size = matrix.shape[0] // len(inputs)
            outputs = []
            for index, x in enumerate(inputs):
                rows = slice(index * size, (index + 1) * size)
                with self.graph.scope(str(index)):
                    share = bias[rows].reshape((1,) * (x.rank - 1) + (size,))
                    is_quantized = isinstance(matrix, QuantizedMatrix)
                    part = matrix.rows(np.arange(rows.start, rows.stop)) if is_quantized else matrix[rows]
                    outputs.append(self._multiplied(x, part, self.graph.constant(share, "bias", self.dtype)))
            return outputs

    def product(self, x: Tensor, bias: Tensor | None, *, is_in_out: bool = False) -> Tensor:
        """Multiply x [..., in] by `weight` of the current scope, quantized or not, and add a bias -> [..., out]."""
        return self._multiplied(x, self.array("weight"), bias, is_in_out=is_in_out)

    def _multiplied(self, x: Tensor, matrix: Array, bias: Tensor | None, *, is_in_out: bool = False) -> Tensor:
        """Multiply x by a matrix in the current scope and add a bias."""
        if not isinstance(matrix, QuantizedMatrix):
            weight = self.graph.constant(matrix.reshape((1,) * (x.rank - 2) + matrix.shape), "weight", self.dtype)
            return linear(x, weight, bias, is_in_out=is_in_out)
        y = self.quantized.linear(x, matrix)
        return y if bias is None else y + bias


class LowRankInputs:
    """Adds adapters' outputs to linear layers.

    `adapter_ids` [B] is each row's adapter (in a packed call, each token's), `rank_owners` [R] the adapter of each
    resident rank; R may be 0. A layer at PATH takes `PATH.lora_a` [R, in] and `PATH.lora_b` [R, out]. paths: of the
    layers that can be adapted. rows: the axis of `adapter_ids`. tokens: how a packed network pads them.
    """

    def __init__(
        self,
        graph: Graph,
        dtype: DType,
        paths: frozenset[str],
        rows: Axis = BATCH,
        tokens: TokenShare = ALL_TOKENS,
    ) -> None:
        self._graph, self._dtype, self._paths = graph, dtype, paths
        ids = tokens.padded(graph.take(InputSpec(ADAPTER_IDS, INT32.name, (rows,), "scheduler")))
        owners = graph.take(InputSpec(RANK_OWNERS, INT32.name, (ADAPTER_RANK,), "adapter"))
        with graph.scope("adapters"):
            self._is_own = equal(unsqueeze(ids, 1, 2), unsqueeze(owners, 0, 1))  # [B, 1, R]

    def of_share(self, tokens: TokenShare) -> LowRankInputs:
        """Return the writer for this rank's share of the tokens."""
        part = copy(self)
        part._is_own = tokens.own(self._is_own)
        return part

    def added_to(self, y: Tensor, x: Tensor) -> Tensor:
        """Return y [B, S, out], the output of the current scope's layer for x [B, S, in], plus the rows' adapters.

        Other adapters' products are masked, not multiplied by 0: they may overflow in fp16.
        """
        path = self._graph.path().replace("/", ".")
        if path not in self._paths:
            return y
        a, b = (
            unsqueeze(self._graph.take(InputSpec(f"{path}{end}", self._dtype.name, (ADAPTER_RANK, axis), "adapter")), 0)
            for end, axis in zip(LORA_ENDS, (Axis("inputs", x.shape[-1]), Axis("outputs", y.shape[-1])), strict=True)
        )
        with self._graph.scope("lora"):
            inner = select(self._is_own, matmul(x, a, transpose_b=True), 0.0)  # [B, S, R]
            return y + matmul(inner, b)
