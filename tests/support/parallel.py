"""Runs the networks of several ranks in this process; those of a pipeline stage are threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.support.decoders import Model, Runner, T, rtx
from trtkit.dtypes import FP32, DType
from trtkit.models.parallel import Grid, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.weights import find_weights
from trtkit.network.decoder import HIDDEN_STATES, NEXT_HIDDEN_STATES, build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.reference import ThreadGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class Ranks:
    """A model on the ranks of a grid, with caches for some slots.

    changed: replacements of weights, by (rank, path).
    """

    def __init__(
        self, model: Model, grid: Grid, dtype: DType = FP32, changed: Mapping[tuple[int, str], Any] | None = None
    ) -> None:
        self.grid = grid
        self.specs = [rank_spec(model.spec, grid, rank) for rank in range(grid.ranks)]
        groups = [ThreadGroup(grid.stage_ranks) for _ in range(grid.pipeline)]
        whole = find_weights(model.spec, model.checkpoint)
        self.weights: list[dict[str, Any]] = []
        self.graphs, self._runners = [], []
        for rank, spec in enumerate(self.specs):
            weights = dict(RankWeights(model.spec, spec, whole) if grid.ranks > 1 else whole)
            self.weights.append(weights)
            weights |= {path: array for (other, path), array in (changed or {}).items() if other == rank}
            graph = Graph(rtx())
            options = DecoderOptions(dtype, T, has_all_logits=True, experts="auto")
            build_decoder(graph, spec, weights, options)
            stage, number = divmod(rank, grid.stage_ranks)
            self.graphs.append(graph)
            self._runners.append(Runner(graph, groups[stage].member(number)))

    def reset(self, slots: int) -> None:
        """Empty the caches."""
        for runner in self._runners:
            runner.reset(slots)

    def step(self, ids: torch.Tensor, counts: list[int] | None = None) -> list[torch.Tensor]:
        """Run ids [B, S] in the slots; return the logits [B, S, V] of every rank of the last stage."""
        given: dict[str, torch.Tensor] = {}
        size = self.grid.stage_ranks
        with ThreadPoolExecutor(size) as pool:
            for first in range(0, self.grid.ranks, size):
                runners = self._runners[first : first + size]
                outputs = list(pool.map(lambda runner, given=given: runner.step(ids, counts, **given), runners))
                if first + size < self.grid.ranks:
                    given = {HIDDEN_STATES: outputs[0][NEXT_HIDDEN_STATES]}
        return [output["logits"] for output in outputs]
