"""What a plan of a language model answers: a model with its counts, and the work it is to do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trtkit.models.parallel import SINGLE
from trtkit.planning.shares import grid_shares

if TYPE_CHECKING:
    from trtkit.config.llm import LoraOptions
    from trtkit.models.parallel import Grid
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.counts import NetworkCounts
    from trtkit.planning.decoder_model import DecoderModel, Workload
    from trtkit.planning.shares import GridShare


@dataclass(frozen=True)
class PlanningQuestion:
    """A model with its counts, and the work it is to do. grid: the ranks of its config. lora: its adapters."""

    model: DecoderModel
    counts: NetworkCounts
    work: Workload
    spec: DecoderSpec
    grid: Grid = SINGLE
    lora: LoraOptions | None = None

    @cached_property
    def shares(self) -> tuple[GridShare, ...]:
        """What one GPU of each grid that can share the model holds and computes, that of one GPU first."""
        return grid_shares(self.model, self.counts, self.spec, self.grid)
