"""A decoder over several ranks, as a single DecoderExecution for the engine."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import ExecutionError
from trtkit.llm.distributed.cache import GroupAdapters, GroupCache
from trtkit.llm.distributed.messages import CallWriter
from trtkit.llm.execution.saved import CacheArray  # noqa: TC001 (read from JSON by its types)
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from trtkit.llm.distributed.group import RankGroup
    from trtkit.llm.distributed.messages import Message, MessageName
    from trtkit.llm.distributed.stage import PipelineSteps, StageRunner
    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.execution import Draw
    from trtkit.llm.execution.packed import PackedCall


@dataclass(frozen=True)
class RankFacts:
    """Facts that a rank sends the others once it has opened its network. arrays: its caches.

    row_tokens: see PackedCalls; 1 if its network is not packed.
    """

    description: str
    arrays: tuple[CacheArray, ...]
    row_tokens: int


class DistributedDecoder:
    """Rank 0 of a group. The host knows all tokens before each call, since every rank reads them.

    Raises RankError from every method once a rank has failed.
    """

    is_asynchronous = takes_ids = False
    speculator = next_hidden = None

    def __init__(self, group: RankGroup, runner: StageRunner, facts: Sequence[RankFacts]) -> None:
        local = runner.execution
        self._group, self._runner = group, runner
        self._writer = CallWriter()
        self.slots, self.max_length, self.max_prefill_length = local.slots, local.max_length, local.max_prefill_length
        self._row_tokens = min(rank_facts.row_tokens for rank_facts in facts)
        self.vocab_size, self.has_all_logits = local.vocab_size, local.has_all_logits
        self.tokens, self.calls = local.tokens, local.calls
        self.cache = GroupCache(local.cache, [rank_facts.arrays for rank_facts in facts], group.channel, self._run)
        self.adapters = None if local.adapters is None else GroupAdapters(local.adapters, self._run)
        self.description = f"{local.description}, {len(facts)} ranks"
        self._end = weakref.finalize(self, group.close)  # when dropped, and at exit

    @property
    def pipeline_steps(self) -> PipelineSteps:
        """The pipeline's steps so far, including idle ones."""
        return self._runner.steps

    @property
    def member_pids(self) -> Mapping[int, int]:
        """Process ids of the ranks that this process started, by rank."""
        return self._group.member_pids

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens on every rank; see DecoderExecution."""
        call.check(self.slots, self.max_length)
        logits = self._logits("forward", call, self._runner.forward)
        if draw is not None:
            draw(logits.view(-1, self.vocab_size), to_device(call.slots, logits.device))
        return logits

    @property
    def packed(self) -> DistributedDecoder | None:
        """This decoder, if every rank's network is packed."""
        return None if self._runner.execution.packed is None else self

    @property
    def token_tile(self) -> int:
        """Tile of every rank; see PackedCalls."""
        packed = self._runner.execution.packed
        return 1 if packed is None else packed.token_tile

    @property
    def row_tokens(self) -> int:
        """Smallest limit of all ranks; see PackedCalls."""
        return self._row_tokens

    def forward_packed(self, packed: PackedCall, draw: Draw | None = None) -> torch.Tensor:
        """Run decoding slots and slots that read prompts in one call on every rank; see PackedCalls."""
        packed = packed.placed(self._placed)
        with self._group.guarded():
            self._group.channel.tell(self._writer.packed(packed))
            logits = self._runner.forward_packed(packed)
        assert logits is not None  # rank 0 is in the last stage
        if draw is not None:
            draw(logits, to_device(packed.decode.slots, logits.device))
        return logits

    def _placed(self, call: Call) -> Call:
        call.check(self.slots, self.max_length)
        return self.cache.prepare(call)

    def check(self, call: Call) -> torch.Tensor:
        """Run a call when the bundle opens. Raises RankError if the ranks' logits differ or are not finite."""
        return self._logits("check", call, self._runner.check)

    def slots_to_run(self, slots: slice) -> slice:
        """Return the slots that rank 0's engine should run; the other ranks are alike."""
        return self._runner.execution.slots_to_run(slots)

    def tokens_to_run(self, tokens: int, most: int) -> int:
        """Return the tokens per row that rank 0's engine should run; the other ranks are alike."""
        return self._runner.execution.tokens_to_run(tokens, most)

    def prepare(self) -> None:
        """Do nothing: ranks have created and connected their contexts."""

    def warm_up(self, _draws: object, _guesses: int) -> None:
        """Do nothing: steps of several ranks are not captured, and opening has run some."""

    def layer_seconds(self, call: Call) -> dict[str, float]:
        """Run new tokens; return the time of each of rank 0's layers. Raises ExecutionError for a pipeline."""
        if self._runner.is_pipeline:
            what = "the layers of a pipeline's stages cannot be timed"
            raise ExecutionError(what, "parallel.pipeline", "time a bundle without pipeline stages")
        call.check(self.slots, self.max_length)
        call = self.cache.prepare(call)
        with self._group.guarded():
            self._group.channel.tell(self._writer.message("time", call))
            return self._runner.execution.layer_seconds(call)

    def close(self) -> None:
        """End the other ranks after every rank has released its engine."""
        self._runner.execution.close()
        self._end()

    def _logits(self, name: MessageName, call: Call, run: Callable[[Call], torch.Tensor | None]) -> torch.Tensor:
        """Run a call on every rank; return its logits."""
        call = self.cache.prepare(call)
        with self._group.guarded():
            self._group.channel.tell(self._writer.message(name, call))
            logits = run(call)
        assert logits is not None
        return logits

    def _run(self, message: Message, work: Callable[[], None]) -> None:
        """Send a message to every rank and do `work`, rank 0's share of it."""
        with self._group.guarded():
            self._group.channel.tell(message)
            work()
