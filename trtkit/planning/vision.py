"""The plan of a vision network or a hybrid on one GPU model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.planning.llm import cost_per_million
from trtkit.planning.load import NO_DEMAND
from trtkit.planning.memory import LARGEST_BATCH, Need, largest
from trtkit.planning.report import VisionGpu, VisionSpeed
from trtkit.planning.roofline import floor, unfused_s

if TYPE_CHECKING:
    from trtkit.planning.count_network import CountedNetwork
    from trtkit.planning.counts import Counts
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.load import Demand


@dataclass(frozen=True)
class VisionQuestion:
    """A counted network and the images that come at once."""

    network: CountedNetwork
    batch: int

    @property
    def is_one_batch(self) -> bool:
        """Whether counts are known at one batch only."""
        low, high = self.network.batches
        return low == high


def plan_vision(question: VisionQuestion, gpu: PlannedGpu, demand: Demand = NO_DEMAND) -> VisionGpu:
    """Return everything about one GPU. Times are floors: nothing that runs this network there can be faster."""
    counts, batch = question.network.counts, question.batch
    need = memory_need(counts, batch)
    if question.is_one_batch:
        most = batch if need.total <= gpu.memory_bytes else 0
    else:
        most = largest(lambda size: memory_need(counts, size).total <= gpu.memory_bytes, LARGEST_BATCH)
    sizes = [] if question.is_one_batch else [2**power for power in range(most.bit_length()) if 2**power <= 256]
    takes = all(gpu.takes(dtype) for dtype in counts.products)
    fits, price = need.total <= gpu.memory_bytes, demand.price_per_hour
    own_speed = speed(counts, batch, gpu, price)
    return VisionGpu(
        gpu=gpu,
        memory=need,
        fits=fits,
        takes_precision=takes,
        largest_batch=most,
        speed=own_speed,
        load=demand.plan(own_speed.images_per_second, fits=fits and takes),
        curve=tuple(speed(counts, size, gpu, price) for size in sizes),
    )


def speed(counts: Counts, batch: int, gpu: PlannedGpu, price_per_hour: float | None) -> VisionSpeed:
    """Return latency and throughput of one batch."""
    latency = floor(counts, (batch, 0, 0), gpu)
    per_s = batch / latency.seconds
    unfused_ms = 1e3 * unfused_s(counts, (batch, 0, 0), gpu)
    return VisionSpeed(batch, latency, unfused_ms, per_s, cost_per_million(price_per_hour, per_s))


def memory_need(counts: Counts, batch: int) -> Need:
    """Return the bytes of weights, and of results that are alive at once, nothing fused."""
    return Need(counts.weight_bytes, 0, counts.activation_bytes((batch, 0, 0)))
