"""One rank's share of a call: its pipeline stage, part by part, between the previous stage and the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trtkit.dtypes import DTYPES
from trtkit.errors import RankError
from trtkit.llm.distributed.micro_batches import join, parts_of, split, split_packed
from trtkit.reference.ranks import COLLECTIVE_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._C._distributed_c10d import Work

    from trtkit.llm.distributed.channel import Channel
    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.execution import RankExecution
    from trtkit.llm.execution.packed import AnyCall, PackedCall
    from trtkit.models.parallel import Grid
    from trtkit.reference import GlooRank, Rank


COMPARE_EVERY = 64
"""Number of calls between two comparisons of the ranks' greedy choices."""
_TICK = 1  # tag of the pipeline's clock; hidden states have tag 0


@dataclass
class PipelineSteps:
    """A pipeline's clock: in each step, a stage runs one part of a call or is idle.

    total: steps until the last stage was done. busy: steps in which a stage worked.
    """

    total: int = 0
    busy: int = 0


@dataclass(frozen=True, eq=False)
class GridPosition:
    """A process's position in the grid; see `Grid.engine_of`.

    members: its stage's processes, to compare logits; None if there is only one. parts: number of parts per call; None
    for automatic.
    """

    rank: int
    grid: Grid
    members: GlooRank | None
    parts: int | None = None

    @property
    def stage(self) -> int:
        """Index of the pipeline stage."""
        return self.grid.stage(self.grid.engine_of(self.rank)).index

    @property
    def is_last(self) -> bool:
        """Whether the stage outputs logits."""
        return self.stage == self.grid.pipeline - 1

    def neighbor(self, stages: int) -> int:
        """Return the process with the same share of the layers that many stages later."""
        return (self.rank + stages * self.grid.stage_ranks) % self.grid.ranks


class StageRunner:
    """Runs a rank's share of every call."""

    def __init__(self, execution: RankExecution, channel: Channel, position: GridPosition) -> None:
        self.execution, self._channel, self._position = execution, channel, position
        self._calls = 0
        self.steps = PipelineSteps()

    def forward(self, call: Call) -> torch.Tensor | None:
        """Run the stage; return fp32 logits on the last one. Raises RankError if ranks choose different tokens."""
        return self._compared(lambda: self._run(call))

    def forward_packed(self, packed: PackedCall) -> torch.Tensor | None:
        """Run a packed call; see `forward`."""
        return self._compared(lambda: self._run_packed(packed))

    def _compared(self, run: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        """Return the logits of a call, compared with the other ranks' at intervals."""
        members = self._position.members
        if members is not None and self._calls == 0:
            members.timeout_s = COLLECTIVE_TIMEOUT_S  # the first calls may take longer, as weights are read then
        logits = run()
        if logits is not None and members is not None and self._calls % COMPARE_EVERY == 0:
            check_choices(logits, members, self._first_rank)
        self._calls += 1
        return logits

    def check(self, call: Call) -> torch.Tensor | None:
        """Run a call when the bundle opens. Raises RankError if the ranks' logits differ or are not finite."""
        logits = self._run(call)
        if logits is not None and self._position.members is not None:
            check_values(logits, self._position.members, self._first_rank)
        return logits

    @property
    def is_pipeline(self) -> bool:
        """Whether there are several stages."""
        return self._position.grid.pipeline > 1

    @property
    def _first_rank(self) -> int:
        return self._position.grid.stage_members(self._position.rank).start

    def _run(self, call: Call) -> torch.Tensor | None:
        """Run the stage on a plain call; return the logits on the last stage."""
        parts = split(call, self._parts(call.ids.shape[1] > 1, call.ids.size))
        outputs = self._run_parts(parts, self.execution.forward)
        return join(call, parts, outputs, has_all_logits=self.execution.has_all_logits) if outputs else None

    def _run_packed(self, packed: PackedCall) -> torch.Tensor | None:
        """Run the stage on a packed call; return the logits on the last stage."""
        runs = self.execution.packed
        assert runs is not None
        count = self._parts(packed.places.size > 0, packed.tokens)
        parts = split_packed(packed, count, self.execution.max_length)
        outputs = self._run_parts(parts, runs.forward_packed)
        return torch.cat(outputs) if outputs else None

    def _parts(self, reads_prompts: bool, tokens: int) -> int:
        """Return the number of parts for a call of `tokens` new tokens."""
        stages, parts = self._position.grid.pipeline, self._position.parts
        if stages == 1:
            return 1
        return parts_of(reads_prompts, tokens, stages) if parts is None else parts

    def _run_parts(self, parts: Sequence[AnyCall], run: Callable[[AnyCall], torch.Tensor]) -> list[torch.Tensor]:
        """Run the stage on each part in turn; return the logits of the parts on the last stage."""
        outputs: list[torch.Tensor] = []
        sends: list[Work] = []
        tick = 0
        for part in parts:
            ready, tick = self._with_hidden(part, tick)
            output, tick = run(ready), tick + 1
            if self._position.is_last:
                outputs.append(output if len(parts) == 1 else output.clone())
            else:
                sends += self._send_hidden(output, tick)
        self._channel.finish(sends)
        self.steps.total, self.steps.busy = self.steps.total + tick, self.steps.busy + len(parts)
        return outputs

    def _with_hidden(self, part: AnyCall, tick: int) -> tuple[AnyCall, int]:
        """Return a part with the previous stage's output, and the pipeline's clock."""
        spec = self.execution.hidden
        if spec is None:
            return part, tick
        source = self._position.neighbor(-1)
        shape = (*part.token_shape, spec.shape[-1])
        hidden = self._channel.receive(source, shape, getattr(torch, DTYPES[spec.dtype].torch))
        sent = int(self._channel.receive(source, (1,), torch.int64, _TICK))
        return replace(part, hidden=hidden), max(tick, sent)

    def _send_hidden(self, output: torch.Tensor, tick: int) -> list[Work]:
        """Start sending the next stage a copy of the hidden states, whose memory the next part will overwrite."""
        target = self._position.neighbor(1)
        state = output.to("cpu", copy=True).contiguous()
        return [self._channel.send(target, state), self._channel.send(target, torch.tensor([tick]), _TICK)]


_TOLERANCE = 0.02
"""Relative RMS tolerance of logits between ranks when they open.

Kernels may differ by GPU; a broken collective differs by more.
"""
_FIX = "restart; if it happens again, see whether every rank has the same engine files, GPU and NCCL"


def check_choices(logits: torch.Tensor, members: Rank, first_rank: int) -> None:
    """Raise RankError if another rank's logits [..., V] choose another token. Every rank of the stage calls this.

    first_rank: the first rank of the stage.
    """
    every = members.exchange("logits", logits.argmax(-1).reshape(-1).cpu())
    for rank, choices in enumerate(every):
        rows = (choices != every[0]).nonzero()
        if len(rows):
            row = int(rows[0])
            what = (
                f"rank {first_rank + rank} has drifted: row {row} of its logits chooses token {int(choices[row])}, "
                f"that of rank {first_rank} chooses {int(every[0][row])}"
            )
            raise RankError(what, "ranks", _FIX)


def check_values(logits: torch.Tensor, members: Rank, first_rank: int) -> None:
    """Raise RankError if the ranks' logits differ or are not finite. Every rank of the stage calls this."""
    every = members.exchange("logits", logits.cpu())
    for rank, other in enumerate(every):
        if not other.isfinite().all():
            raise RankError(f"rank {first_rank + rank} gives logits that are not finite", "ranks", _FIX)
        error = float((other - every[0]).norm() / every[0].norm().clamp(min=1e-30))
        if error > _TOLERANCE:
            what = f"the logits of rank {first_rank + rank} differ from those of rank {first_rank} by {error:.2g}"
            raise RankError(f"{what}, relative RMS; at most {_TOLERANCE} is allowed", "ranks", _FIX)
