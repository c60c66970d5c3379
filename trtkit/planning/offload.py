"""Plans for offloading: a model's stages run in turn on one GPU, with caches and weights in host memory or on disk.

Times are those of the schedule that the decoder runs (`trtkit/llm/offload/schedule.py`), in which each step takes as
long as its slowest lane. The block is the best one found by search, as in FlexGen (https://arxiv.org/abs/2303.06865,
section 4.3), whose linear program also divides weights and caches among tiers by percent; here caches are in a single
tier, and the GPU holds the weights of two stages.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.llm.offload.schedule import FEWEST_STAGES, BlockSchedule, StepSeconds, pass_time
from trtkit.planning.gpus import known_links
from trtkit.planning.memory import RESERVE_BYTES
from trtkit.planning.roofline import floor
from trtkit.serving_options import CACHE_PLACES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.llm.offload.schedule import Lane, PassTime
    from trtkit.planning.counts import Point
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.question import Host, PlanningQuestion
    from trtkit.serving_options import CachePlace

_HOST_RESERVE_BYTES = 4 << 30
"""Host memory reserved for the system and the process: an assumption."""
_STEPS = tuple(sorted({size << bit for size in (2, 3) for bit in range(9)} | {1}))
"""Tried sizes and numbers of micro-batches: 1, powers of two, and one and a half times these."""
_MOST_MICRO_BATCHES = 32


@dataclass(frozen=True, kw_only=True)
class OffloadPlan:
    """The best block for one cache location: `micro_batches` of `micro_batch` sequences.

    disk_share: share of the weights that is read from disk in every pass. prefill_s: of all prompts. decode_s: one
    token of all sequences, at the mean length. bottleneck: the busiest lane while decoding.
    """

    caches: CachePlace
    stages: int
    micro_batch: int
    micro_batches: int
    device_bytes: int
    host_bytes: int
    disk_share: float
    prefill_s: float
    decode_s: float
    output_tokens_per_second: float
    bottleneck: Lane


def plan_offload(question: PlanningQuestion, gpu: PlannedGpu) -> tuple[OffloadPlan, ...]:
    """Return the best block for each cache location; empty without a host, or if the link is unknown."""
    host = question.host
    is_known = host is not None and (gpu.host_link or host.to_device_bytes_per_s)
    if host is None or not is_known or _stages(question) < FEWEST_STAGES:
        return ()
    best = []
    for place in CACHE_PLACES:
        plans = list(_blocks(offload_machine(question, gpu), place))
        if plans:
            best.append(max(plans, key=lambda plan: plan.output_tokens_per_second))
    return tuple(best)


def block_plan(
    question: PlanningQuestion, gpu: PlannedGpu, place: CachePlace, micro_batch: int, micro_batches: int
) -> OffloadPlan | None:
    """Return the plan of a block; None if it does not fit."""
    machine = offload_machine(question, gpu)
    return machine.plan(place, BlockSchedule(machine.stages, micro_batches), micro_batch)


def offload_machine(question: PlanningQuestion, gpu: PlannedGpu) -> OffloadMachine:
    """Return the machine of a question with a host. A model without pipeline stages has one for each layer."""
    assert question.host is not None
    return OffloadMachine(question, gpu, question.host, _stages(question))


def _stages(question: PlanningQuestion) -> int:
    return question.grid.pipeline if question.grid.pipeline > 1 else question.model.layers


def _blocks(machine: OffloadMachine, place: CachePlace) -> Iterator[OffloadPlan]:
    """Yield blocks that fit. Micro-batches larger than one that does not fit are skipped."""
    for count in itertools.takewhile(lambda count: count <= _MOST_MICRO_BATCHES, _STEPS):
        schedule = BlockSchedule(machine.stages, count)
        for size in _STEPS:
            plan = machine.plan(place, schedule, size)
            if plan is None:
                break
            yield plan


@dataclass(frozen=True)
class OffloadMachine:
    """A model, its workload and its machine; stages are assumed to be equal."""

    question: PlanningQuestion
    gpu: PlannedGpu
    host: Host
    stages: int

    def plan(self, place: CachePlace, schedule: BlockSchedule, micro_batch: int) -> OffloadPlan | None:
        """Return the plan of a block; None if it does not fit the GPU, the host or the permitted disk space."""
        work, model, block = self.question.work, self.question.model, micro_batch * schedule.micro_batches
        device = self._device_bytes(place, schedule, micro_batch)
        on_host = self._hidden_bytes(block) if place != "device" else 0
        on_host += block * self._slot_bytes if place == "host" else 0
        free = self.host.memory_bytes - _HOST_RESERVE_BYTES - on_host
        disk_share = min(1.0, max(0.0, 1 - free / model.weight_bytes))
        needs_disk = disk_share > 0 or place == "disk"
        if device > self.gpu.memory_bytes or free < 0 or (needs_disk and not self.host.read_bytes_per_s):
            return None
        chunks = math.ceil(work.input_len / work.chunk)
        prompt = work.prefill(micro_batch)
        cached = work.input_len * (chunks - 1) / (2 * chunks)  # what a chunk's pass reads, on average
        new = work.input_len / chunks
        reads_s = self.stage_seconds(prompt) / chunks
        prefill = self.pass_time(place, schedule, (micro_batch, cached, new), reads_s, disk_share)
        decode_s, moved = self.stage_seconds(work.decode(micro_batch)), (micro_batch, work.mean_length, 1)
        decode = self.pass_time(place, schedule, moved, decode_s, disk_share)
        seconds = chunks * prefill.seconds + (work.output_len - 1) * decode.seconds
        return OffloadPlan(
            caches=place,
            stages=self.stages,
            micro_batch=micro_batch,
            micro_batches=schedule.micro_batches,
            device_bytes=device,
            host_bytes=on_host + round((1 - disk_share) * model.weight_bytes),
            disk_share=disk_share,
            prefill_s=chunks * prefill.seconds,
            decode_s=decode.seconds,
            output_tokens_per_second=block * work.output_len / seconds,
            bottleneck=decode.bottleneck,
        )

    @property
    def _slot_bytes(self) -> int:
        """Bytes of a sequence's caches at its full length, over all stages."""
        model = self.question.model
        return model.kv_bytes_per_token * self.question.work.length + model.state_bytes

    def _hidden_bytes(self, sequences: int) -> int:
        """Bytes of hidden states between two stages in the largest pass."""
        model, work = self.question.model, self.question.work
        return model.dtype.size_bytes(sequences * min(work.chunk, work.input_len) * model.hidden_size)

    def _device_bytes(self, place: CachePlace, schedule: BlockSchedule, micro_batch: int) -> int:
        """Bytes of two stages' weights, of caches or buffers for them, and of a micro-batch's activations."""
        model, work = self.question.model, self.question.work
        weights = math.ceil(2 * model.weight_bytes / self.stages)
        block = micro_batch * schedule.micro_batches
        if place == "device":
            caches = block * self._slot_bytes + self._hidden_bytes(block)
        else:
            caches = schedule.buffers * micro_batch * self._slot_bytes // self.stages
        new = min(work.chunk, work.input_len)
        activations = self.question.counts.activation_bytes((micro_batch, new, work.length))
        return weights + caches + activations + RESERVE_BYTES

    def stage_seconds(self, point: Point) -> float:
        """Return the time in which a stage computes a micro-batch at (B, S, T) at best."""
        return floor(self.question.counts, point, self.gpu).seconds / self.stages

    def pass_time(
        self,
        place: CachePlace,
        schedule: BlockSchedule,
        moved: tuple[int, float, float],
        computes_s: float,
        disk_share: float,
    ) -> PassTime:
        """Return the time of a pass whose stages compute a micro-batch in `computes_s` each.

        moved: a micro-batch's sequences, the cached tokens that each reads, and those that it adds. disk_share: of the
        weights.
        """
        sequences, read, added = moved
        model, host = self.question.model, self.host
        link = 1e9 * known_links().links[self.gpu.host_link].gb_per_s if self.gpu.host_link else 0.0
        to_device, to_host = host.to_device_bytes_per_s or link, host.to_host_bytes_per_s or link
        stage = model.weight_bytes / self.stages
        loads: dict[Lane, float] = {"to_device": stage / to_device}
        if disk_share:
            loads["read"] = disk_share * stage / host.read_bytes_per_s
        fetches: dict[Lane, float] = {}
        stores: dict[Lane, float] = {}
        if place != "device":
            per_token = sequences * model.kv_bytes_per_token / self.stages
            states = sequences * model.state_bytes / self.stages
            fetched, stored = per_token * read + states, per_token * added + states
            fetches, stores = {"to_device": fetched / to_device}, {"to_host": stored / to_host}
            if place == "disk":
                fetches["read"], stores["write"] = fetched / host.read_bytes_per_s, stored / host.write_bytes_per_s
        return pass_time(schedule, StepSeconds(computes_s, loads, fetches, stores))
