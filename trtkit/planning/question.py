"""What a plan of a language model answers: a model with its counts, the work it is to do, and a load to carry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trtkit.models.parallel import SINGLE
from trtkit.planning.paged import page_copies
from trtkit.planning.shares import grid_shares

if TYPE_CHECKING:
    from trtkit.config.llm import LoraOptions
    from trtkit.models.parallel import Grid
    from trtkit.models.spec import DecoderSpec
    from trtkit.planning.counts import NetworkCounts
    from trtkit.planning.decoder_model import DecoderModel, Workload
    from trtkit.planning.memory import PackedRoom
    from trtkit.planning.shares import GridShare


@dataclass(frozen=True)
class Host:
    """What a GPU's machine has. read_bytes_per_s, write_bytes_per_s: of its disk; 0 if nothing may be there.

    to_device_bytes_per_s, to_host_bytes_per_s: of the link; those of the GPU's link as published if None.
    """

    memory_bytes: int
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    to_device_bytes_per_s: float | None = None
    to_host_bytes_per_s: float | None = None


@dataclass(frozen=True)
class PlanningQuestion:
    """A model with its counts, and the work it is to do.

    grid: the ranks of its config. lora: its adapters. packed: the room of a call that decoding and prompts share; None
    if they have a call each. plain: counts without the copies of windows, if `counts` has those. host: what stages in
    turn are offloaded to; None if that is not planned. table_bytes: of embeddings that lie next to an engine which has
    a copy as its head.
    """

    model: DecoderModel
    counts: NetworkCounts
    work: Workload
    spec: DecoderSpec
    grid: Grid = SINGLE
    lora: LoraOptions | None = None
    packed: PackedRoom | None = None
    plain: NetworkCounts | None = None
    host: Host | None = None
    table_bytes: int = 0

    def reading(self, window: str) -> NetworkCounts:
        """Return the counts of an engine whose attention reads what `llm.kv_window` says.

        TensorRT slices a window into memory of its own before attention reads it: it is read, written and read. Source:
        the layers of a detailed build, TensorRT-RTX 1.7.1.
        """
        counts = self.counts if self.plain is None else self.plain
        is_copied = window == "used" and not self.work.page_tokens
        return counts.with_copied_windows(page_copies(self.spec)) if is_copied else counts

    @cached_property
    def shares(self) -> tuple[GridShare, ...]:
        """What one GPU of each grid that can share the model holds and computes, that of one GPU first."""
        return grid_shares(self.model, self.counts, self.spec, self.grid)


HOURS_PER_MONTH = 730
"""A twelfth of a year of 365 days."""


@dataclass(frozen=True)
class LoadPlan:
    """The smallest fleet that carries a load. per_gpu: requests a second. cost_per_month: None without a price."""

    requests_per_second: float
    per_gpu: float
    gpus: int
    cost_per_month: float | None


@dataclass(frozen=True)
class Demand:
    """The load of a GPU: requests a second, if any, at the price of an hour, if one is known."""

    requests_per_second: float | None = None
    price_per_hour: float | None = None

    def plan(self, per_gpu: float, *, fits: bool) -> LoadPlan | None:
        """Return the GPUs for the load; None without a load, or if the GPU cannot hold or compute the model."""
        if self.requests_per_second is None or not fits:
            return None
        gpus = math.ceil(self.requests_per_second / per_gpu)
        cost = None if self.price_per_hour is None else gpus * self.price_per_hour * HOURS_PER_MONTH
        return LoadPlan(self.requests_per_second, per_gpu, gpus, cost)


NO_DEMAND = Demand()
"""No load and no price."""
