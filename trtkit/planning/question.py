"""The question that a language model's plan answers: a model with its counts, its workload, and a load to carry."""

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
    """A GPU's host machine. read_bytes_per_s, write_bytes_per_s: of its disk; 0 if the disk must not be used.

    to_device_bytes_per_s, to_host_bytes_per_s: of the link; None for the published figures of the GPU's link.
    """

    memory_bytes: int
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    to_device_bytes_per_s: float | None = None
    to_host_bytes_per_s: float | None = None


@dataclass(frozen=True)
class PlanningQuestion:
    """A model with its counts and its workload.

    grid: the ranks of its config. lora: its adapters. packed: capacity of a call shared by decoding and prompts; None
    if they use separate calls. plain: counts without copies of windows, if `counts` includes those. host: machine for
    offloading stages that run in turn; None if that is not planned. table_bytes: of embeddings kept next to an engine
    that has a copy as its head.
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
        """Return the counts of an engine whose attention reads the window of `llm.kv_window`.

        TensorRT slices a window into its own memory before attention reads it: it is read, written and read. Source:
        the layers of a detailed build, TensorRT-RTX 1.7.1.
        """
        counts = self.counts if self.plain is None else self.plain
        is_copied = window == "used" and not self.work.page_tokens
        return counts.with_copied_windows(page_copies(self.spec)) if is_copied else counts

    @cached_property
    def shares(self) -> tuple[GridShare, ...]:
        """One GPU's share in each grid that can share the model, starting with a single GPU."""
        return grid_shares(self.model, self.counts, self.spec, self.grid)


HOURS_PER_MONTH = 730
"""A twelfth of a year of 365 days."""


@dataclass(frozen=True)
class LoadPlan:
    """The smallest fleet for a load. per_gpu: requests per second. cost_per_month: None without a price."""

    requests_per_second: float
    per_gpu: float
    gpus: int
    cost_per_month: float | None


@dataclass(frozen=True)
class Demand:
    """Load in requests per second, if any, and a GPU's hourly price, if known."""

    requests_per_second: float | None = None
    price_per_hour: float | None = None

    def plan(self, per_gpu: float, *, fits: bool) -> LoadPlan | None:
        """Return the number of GPUs for the load; None without one, or if the GPU cannot hold or compute the model."""
        if self.requests_per_second is None or not fits:
            return None
        gpus = math.ceil(self.requests_per_second / per_gpu)
        cost = None if self.price_per_hour is None else gpus * self.price_per_hour * HOURS_PER_MONTH
        return LoadPlan(self.requests_per_second, per_gpu, gpus, cost)


NO_DEMAND = Demand()
"""No load and no price."""
