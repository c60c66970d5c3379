"""A decoder whose stages run in turn on one device, each loaded once for all micro-batches of a call."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trtkit.errors import ExecutionError
from trtkit.llm.distributed.micro_batches import join, split
from trtkit.llm.execution.execution import CallCounts
from trtkit.llm.offload.caches import OffloadedCache
from trtkit.llm.offload.schedule import BlockSchedule
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.execution import Draw, RankExecution
    from trtkit.llm.offload.caches import StageCaches
    from trtkit.llm.offload.schedule import Cell, Step


@dataclass
class OffloadCounts:
    """Counts of transfers. passes: through all stages. loads: of stages' weights, loaded_bytes in total.

    fetched_bytes, stored_bytes: of caches off the device. waits: computations that waited for weights, waited_s in
    total. most_resident_bytes: peak of weights that were loaded or being loaded.
    """

    passes: int = 0
    loads: int = 0
    loaded_bytes: int = 0
    fetched_bytes: int = 0
    stored_bytes: int = 0
    waits: int = 0
    waited_s: float = 0.0
    most_resident_bytes: int = 0


@dataclass(frozen=True, eq=False)
class OffloadedStage:
    """A stage whose weights are not loaded. weight_bytes: of its network."""

    execution: RankExecution
    caches: StageCaches
    weight_bytes: int


class OffloadedDecoder:
    """A DecoderExecution whose stages run by a BlockSchedule. micro_batch: slots that are computed together.

    At most two stages' weights are loaded. The host knows all tokens before each call.
    """

    is_asynchronous = takes_ids = False
    packed = adapters = speculator = next_hidden = None

    def __init__(self, stages: Sequence[OffloadedStage], slots: int, micro_batch: int, caches_on: str) -> None:
        first, last = stages[0].execution, stages[-1].execution
        self.stages, self.slots, self.micro_batch = stages, slots, micro_batch
        self.max_length, self.max_prefill_length = first.max_length, first.max_prefill_length
        self.vocab_size, self.has_all_logits = last.vocab_size, last.has_all_logits
        self.cache = OffloadedCache([stage.caches.held for stage in stages])
        self.tokens = torch.zeros(slots, dtype=torch.int64)
        self.calls, self.counts = CallCounts(), OffloadCounts()
        self.description = f"{first.description}, {len(stages)} stages in turn, caches on {caches_on}"
        self._loader = ThreadPoolExecutor(1, "trtkit-weights")
        self._loading: dict[int, Future[None]] = {}

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens through all stages; see DecoderExecution."""
        call.check(self.slots, self.max_length)
        for number in [number for number in self._loading if number]:  # left over from a call that failed
            self._unload(number)
        self._load(0)
        parts = split(call, -(-len(call.starts) // self.micro_batch))
        schedule = BlockSchedule(len(self.stages), len(parts))
        run = _Pass(self.stages, schedule, parts)
        for step in schedule.steps():
            if step.loads is not None:
                self._load(step.loads)
            self._carry_out(step, run)
            if step.unloads is not None:
                self._unload(step.unloads)
        for stage in self.stages:
            stage.caches.settle()
        self._count(call)
        logits = join(call, parts, run.logits, has_all_logits=self.has_all_logits)
        if draw is not None:
            draw(logits.view(-1, self.vocab_size), to_device(call.slots, logits.device))
        return logits

    def _carry_out(self, step: Step, run: _Pass) -> None:
        """Fetch, compute and store; on a GPU each has a stream of its own, and they overlap."""
        if step.fetches is not None:
            self.counts.fetched_bytes += run.fetch(step.fetches)
        if step.computes is not None:
            self._wait_for(step.computes.stage)
            run.compute(step.computes)
        if step.stores is not None:
            self.counts.stored_bytes += run.store(step.stores)

    def _load(self, stage: int) -> None:
        """Start loading a stage's weights, unless that has begun already."""
        if stage in self._loading:
            return
        self._loading[stage] = self._loader.submit(self.stages[stage].execution.load_weights)
        self.counts.loads += 1
        self.counts.loaded_bytes += self.stages[stage].weight_bytes
        resident = sum(self.stages[number].weight_bytes for number in self._loading)
        self.counts.most_resident_bytes = max(self.counts.most_resident_bytes, resident)

    def _wait_for(self, stage: int) -> None:
        """Wait until a stage's weights are loaded. Raises what loading them raised."""
        loading = self._loading[stage]
        if not loading.done():
            started_s = time.monotonic()
            loading.exception()
            self.counts.waits += 1
            self.counts.waited_s += time.monotonic() - started_s
        loading.result()

    def _unload(self, stage: int) -> None:
        self._loading.pop(stage).exception()  # a load that failed has nothing to unload
        self.stages[stage].execution.unload_weights()

    def _count(self, call: Call) -> None:
        self.counts.passes += 1
        self.calls.add(call.ids.size, int(call.counts.sum()))

    def slots_to_run(self, slots: slice) -> slice:
        """Return `slots`."""
        return slots

    def tokens_to_run(self, tokens: int, _most: int) -> int:
        """Return `tokens`."""
        return tokens

    def prepare(self) -> None:
        """Create execution contexts before weights are loaded."""
        for stage in self.stages:
            stage.execution.prepare()

    def warm_up(self, _draws: object, _guesses: int) -> None:
        """Do nothing: steps are not captured."""

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Raise ExecutionError: layers of stages that run in turn are not timed."""
        what = f"the layers of stages that run in turn cannot be timed ({call.ids.size} tokens)"
        raise ExecutionError(what, "offload", "time a bundle without pipeline stages")

    def close(self) -> None:
        """Free the memory."""
        for number in list(self._loading):
            self._unload(number)
        self._loader.shutdown()
        for stage in self.stages:
            stage.execution.close()
            stage.caches.close()


class _Pass:
    """One pass of a call's parts through all stages. logits: of each part, from the last stage."""

    def __init__(self, stages: Sequence[OffloadedStage], schedule: BlockSchedule, parts: Sequence[Call]) -> None:
        self._stages, self._schedule, self._parts = stages, schedule, parts
        self._hidden: list[torch.Tensor | None] = [None] * len(parts)
        self.logits: list[torch.Tensor] = []

    def fetch(self, cell: Cell) -> int:
        """Copy a cell's caches to its buffer; return bytes."""
        caches = self._stages[cell.stage].caches
        return 0 if caches.memory is None else caches.fetch(self._parts[cell.micro_batch], self._first(cell))

    def store(self, cell: Cell) -> int:
        """Copy a cell's caches back; return bytes."""
        caches = self._stages[cell.stage].caches
        return 0 if caches.memory is None else caches.store(self._parts[cell.micro_batch], self._first(cell))

    def compute(self, cell: Cell) -> None:
        """Run a stage on a micro-batch. Its output is copied, since the next micro-batch overwrites it."""
        stage, part = self._stages[cell.stage], self._parts[cell.micro_batch]
        if stage.caches.memory is not None:
            first = self._first(cell)
            part = replace(part, first_slot=first)
            stage.caches.begin(first)
        output = stage.execution.forward(replace(part, hidden=self._hidden[cell.micro_batch]))
        if cell.stage == len(self._stages) - 1:
            self.logits.append(output.to("cpu", copy=True))
        else:
            stays = stage.caches.memory is None
            self._hidden[cell.micro_batch] = output.clone() if stays else output.to("cpu", copy=True)
        if stage.caches.memory is not None:
            stage.caches.end(first)

    def _first(self, cell: Cell) -> int:
        """Return the first slot of a cell's buffer."""
        buffers = self._stages[cell.stage].caches.buffers
        return self._schedule.buffer(cell) * (buffers.slots // self._schedule.buffers)
