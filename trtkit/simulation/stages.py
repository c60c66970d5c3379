"""Stages in turn as an engine: each call is a pass through all stages, on blocks of requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import SimulationError
from trtkit.llm.offload.schedule import FEWEST_STAGES, BlockSchedule, usual_micro_batch
from trtkit.planning.offload import block_plan, offload_machine, plan_offload
from trtkit.simulation.replica_options import ReplicaOptions

if TYPE_CHECKING:
    from trtkit.llm.scheduler import ScheduleOptions
    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.offload import OffloadMachine, OffloadPlan
    from trtkit.planning.question import PlanningQuestion
    from trtkit.serving_options import CachePlace
    from trtkit.simulation.machine import MachineOptions
    from trtkit.simulation.times import Line


@dataclass(frozen=True)
class StageTimes:
    """Durations of passes through all stages, by the schedule that the decoder runs. place: where caches stay.

    micro_batch: sequences that are computed together; a call's last one may have fewer, and is timed as the others.
    disk_share: of the weights. efficiency: of what computes. overhead_s: of each micro-batch in each stage.
    """

    machine: OffloadMachine
    place: CachePlace
    micro_batch: int
    disk_share: float
    efficiency: float = 1.0
    overhead_s: float = 0.0

    def decode_lines(self, batch: int, cached: int) -> tuple[Line, Line]:
        """Return the same level line twice; see StepTimes."""
        line = self._pass_s(batch, 1, cached / batch), 0.0
        return line, line

    def prefill_s(self, rows: int, tokens: int, length: int) -> float:
        """Return the seconds of a call for prompts; see StepTimes."""
        return self._pass_s(rows, tokens, length - tokens)

    @property
    def copy_s_per_token(self) -> float:
        """Return 0: the host keeps only the caches that passes fetch."""
        return 0.0

    def _pass_s(self, rows: int, new: int, cached: float) -> float:
        """Return the seconds of a pass. cached: tokens of each row, on average."""
        machine = self.machine
        schedule = BlockSchedule(machine.stages, math.ceil(rows / self.micro_batch))
        sequences = math.ceil(rows / schedule.micro_batches)
        point = machine.question.work.call(sequences, new, math.ceil(cached) + new)
        computes_s = machine.stage_seconds(point) / self.efficiency + self.overhead_s
        return machine.pass_time(self.place, schedule, (sequences, cached, new), computes_s, self.disk_share).seconds


@dataclass(frozen=True)
class Block:
    """Sequences in turn. slots, micro_batch: None for the best of the plan. place: where caches stay."""

    place: CachePlace
    slots: int | None = None
    micro_batch: int | None = None


def replica_in_turn(
    question: PlanningQuestion, gpu: PlannedGpu, options: MachineOptions, block: Block, schedule: ScheduleOptions
) -> tuple[ReplicaOptions, OffloadPlan]:
    """Return an engine that runs stages in turn, and the plan of its blocks. Raises SimulationError if it cannot."""
    plan, slots = _plan(question, gpu, block)
    machine, chunk = offload_machine(question, gpu), question.work.chunk
    times = StageTimes(machine, block.place, plan.micro_batch, plan.disk_share, options.efficiency, options.overhead_s)
    longest = question.work.length
    return ReplicaOptions(times, slots, longest, chunk, schedule=schedule, in_blocks=True), plan


def _plan(question: PlanningQuestion, gpu: PlannedGpu, block: Block) -> tuple[OffloadPlan, int]:
    """Return the plan of a block, and its sequences."""
    machine, name = offload_machine(question, gpu), question.model.name
    if not (gpu.host_link or machine.host.to_device_bytes_per_s):
        raise SimulationError(f"the link of {gpu.name} to its host is not known", "--gpu", "choose another GPU")
    if machine.stages < FEWEST_STAGES:
        what = f"stages run in turn if there are {FEWEST_STAGES} or more; {name} has {machine.stages}"
        raise SimulationError(what, "--offload", f"use `--set parallel.pipeline={FEWEST_STAGES}` or more")
    if question.grid.stage_ranks > 1:
        what = f"stages in turn are of one rank; the grid has {question.grid.stage_ranks}"
        raise SimulationError(what, "--offload", "split the model by `parallel.pipeline` alone")
    best = next((plan for plan in plan_offload(question, gpu) if plan.caches == block.place), None)
    slots, micro_batch = block.slots, block.micro_batch
    if slots is None and micro_batch is None and best is not None:
        return best, best.micro_batch * best.micro_batches
    if slots is not None and micro_batch is None:
        micro_batch = usual_micro_batch(block.place, slots)
    if slots is None and micro_batch is not None:
        slots = micro_batch * (1 if best is None else best.micro_batches)
    plan = None
    if slots is not None and micro_batch is not None:
        if not 1 <= micro_batch <= slots:
            what = f"{micro_batch} sequences are not a micro-batch of {slots} slots"
            raise SimulationError(what, "--micro-batch", f"use 1 to {slots}")
        plan = block_plan(question, gpu, block.place, micro_batch, math.ceil(slots / micro_batch))
    if plan is None or slots is None:
        what = f"no block of {name} with caches on {block.place} fits {gpu.name} and its host"
        fix = "use fewer --slots, a smaller --micro-batch, more --host-memory, or a --disk"
        raise SimulationError(what, "--offload", fix)
    return plan, slots
