"""Every rank but the first: carries out rank 0's messages until it closes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.jobs.json_form import from_json
from trtkit.llm.cache.transfers import Copy  # noqa: TC001 (read from JSON by its types)
from trtkit.llm.distributed.cache import blocks_part, load_blocks_part, load_part, write_own
from trtkit.llm.distributed.messages import CallReader

if TYPE_CHECKING:
    from trtkit.llm.distributed.group import RankGroup
    from trtkit.llm.distributed.messages import Message
    from trtkit.llm.distributed.stage import StageRunner
    from trtkit.llm.execution.host_blocks import CacheBlocks


def serve(group: RankGroup, runner: StageRunner) -> None:
    """Carry out rank 0's messages.

    The engine is released before the group ends. Raises the fault of a rank that failed.
    """
    server = _Server(group, runner)
    try:
        message = None
        while message is None or message.name != "close":
            with group.guarded():
                message = group.channel.hear()
                server.do(message)
    finally:
        runner.execution.close()
        group.close()


@dataclass(frozen=True)
class _Copies:
    copies: tuple[Copy, ...]


class _Server:
    def __init__(self, group: RankGroup, runner: StageRunner) -> None:
        self._group, self._runner = group, runner
        self._reader = CallReader()
        self._blocks: CacheBlocks | None = None

    def do(self, message: Message) -> None:
        """Carry out this rank's share of a message."""
        execution = self._runner.execution
        match message.name:
            case "forward":
                self._runner.forward(self._reader.call(message))
            case "check":
                self._runner.check(self._reader.call(message))
            case "packed":
                self._runner.forward_packed(self._reader.packed(message))
            case "time":
                execution.layer_seconds(self._reader.call(message))
            case "carry_out" | "move" | "mark" | "rewind" | "table":
                self._change_cache(message)
            case "save":
                data = execution.cache.save(message.number("slot"), message.number("count")).data
                if data.numel():
                    self._group.channel.finish([self._group.channel.send(0, data)])
            case "load":
                load_part(execution.cache, self._group.world.rank, message)
            case "save_blocks" | "load_blocks":
                self._copy_blocks(message)
            case "write_adapter" if execution.adapters is not None:
                write_own(execution.adapters, message)
            case "erase_adapter" if execution.adapters is not None:
                execution.adapters.erase(message.numbers("rows"))
            case _:
                pass

    def _change_cache(self, message: Message) -> None:
        """Apply a cache operation of rank 0 to this rank's caches."""
        cache = self._runner.execution.cache
        match message.name:
            case "carry_out":
                cache.carry_out(from_json(_Copies, {"copies": message.fields["copies"]}).copies)
            case "move":
                cache.move(*(np.array(message.numbers(name)) for name in ("slots", "sources", "targets")))
            case "mark":
                cache.mark(slice(message.number("start"), message.number("stop")))
            case "rewind":
                cache.rewind(message.numbers("slots"))
            case _:
                cache.tell(message.number("slot"), message.numbers("pages"))

    def _copy_blocks(self, message: Message) -> None:
        """Send this rank's part of blocks to rank 0, or receive it."""
        if not self._runner.execution.cache.specs:  # layers without attention have nothing to copy
            return
        if self._blocks is None:
            self._blocks = self._runner.execution.cache.blocks(message.number("tokens"))
        assert self._blocks is not None
        if message.name == "load_blocks":
            load_blocks_part(self._blocks, self._group.world.rank, message)
        else:
            part = blocks_part(self._blocks, message.numbers("places"))
            self._group.channel.finish([self._group.channel.send(0, part)])
