"""Low-rank adapters as inputs: those of all resident adapters side by side, each row reading its own only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.dtypes import INT32
from trtkit.network.input_spec import (
    ADAPTER_IDS,
    ADAPTER_RANK,
    BATCH,
    LORA_ENDS,
    RANK_OWNERS,
    Axis,
    InputSpec,
)
from trtkit.network.ops.arithmetic import equal, select
from trtkit.network.ops.linear import matmul
from trtkit.network.ops.shape import unsqueeze

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.network.graph import Graph, Tensor


class LowRankInputs:
    """Writes what adapters add to linear layers.

    `adapter_ids` [B] is each row's adapter, `rank_owners` [R] whose each resident rank is; R may be 0. A layer at PATH
    takes `PATH.lora_a` [R, in] and `PATH.lora_b` [R, out].
    paths: of the layers that can be adapted.
    """

    def __init__(self, graph: Graph, dtype: DType, paths: frozenset[str]) -> None:
        self._graph, self._dtype, self._paths = graph, dtype, paths
        ids = graph.take(InputSpec(ADAPTER_IDS, INT32.name, (BATCH,), "scheduler"))
        owners = graph.take(InputSpec(RANK_OWNERS, INT32.name, (ADAPTER_RANK,), "adapter"))
        with graph.scope("adapters"):
            self._is_own = equal(unsqueeze(ids, 1, 2), unsqueeze(owners, 0, 1))  # [B, 1, R]

    def added_to(self, y: Tensor, x: Tensor) -> Tensor:
        """Return y [B, S, out], the output of the current scope's layer for x [B, S, in], with the rows' adapters.

        Another adapter's product is left out, not multiplied by 0: it may overflow in fp16.
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
