"""Every rank but the first: do what rank 0 says until it says that it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.distributed.adapters import write_own
from trtkit.llm.distributed.blocks import load_part as load_part_of_blocks
from trtkit.llm.distributed.blocks import part_of
from trtkit.llm.distributed.cache import load_part
from trtkit.llm.distributed.messages import CallReader, Command

if TYPE_CHECKING:
    from trtkit.llm.distributed.group import RankGroup
    from trtkit.llm.distributed.messages import Message
    from trtkit.llm.distributed.stage import StageRunner
    from trtkit.llm.execution.host_blocks import CacheBlocks


def serve(group: RankGroup, runner: StageRunner) -> None:
    """Do what rank 0 says. The engine is released before the group ends. Raises the fault of a rank that failed."""
    server = _Server(group, runner)
    try:
        message = None
        while message is None or message.command != Command.CLOSE:
            with group.guarded():
                message = group.channel.hear()
                server.do(message)
    finally:
        runner.execution.close()
        group.close()


class _Server:
    def __init__(self, group: RankGroup, runner: StageRunner) -> None:
        self._group, self._runner = group, runner
        self._reader = CallReader()
        self._blocks: CacheBlocks | None = None

    def do(self, message: Message) -> None:
        """Do this rank's share of a message."""
        execution, numbers = self._runner.execution, message.numbers
        match message.command:
            case Command.FORWARD | Command.CHECK:
                self._run(message)
            case Command.TIME:
                execution.layer_seconds(self._reader.call(message))
            case Command.COPY | Command.MOVE | Command.MARK | Command.REWIND | Command.TABLE:
                self._change_cache(message)
            case Command.SAVE:
                slot, count = numbers
                data = execution.cache.save(slot, count).data
                self._group.channel.finish([self._group.channel.send(0, data)])
            case Command.LOAD:
                load_part(execution.cache, self._group.world.rank, message)
            case Command.SAVE_BLOCKS | Command.LOAD_BLOCKS:
                self._copy_blocks(message)
            case Command.ADAPT if execution.adapters is not None:
                write_own(execution.adapters, message)
            case Command.FORGET if execution.adapters is not None:
                execution.adapters.erase(numbers)
            case _:
                pass

    def _change_cache(self, message: Message) -> None:
        """Do with this rank's caches what rank 0 does with its own."""
        cache, numbers = self._runner.execution.cache, message.numbers
        match message.command:
            case Command.COPY:
                source, target, start, stop = numbers
                cache.copy(source, target, slice(start, stop))
            case Command.MOVE:
                cache.move(*np.array(numbers).reshape(3, -1))
            case Command.MARK:
                cache.mark(slice(*numbers))
            case Command.REWIND:
                cache.rewind(numbers)
            case _:
                slot, *pages = numbers
                cache.tell(slot, pages)

    def _copy_blocks(self, message: Message) -> None:
        """Send this rank's part of blocks to rank 0, or take it from there."""
        tokens, *positions = message.numbers
        if not self._runner.execution.cache.specs:  # layers without attention have nothing to copy
            return
        if self._blocks is None:
            self._blocks = self._runner.execution.cache.blocks(tokens)
        assert self._blocks is not None
        if message.command == Command.LOAD_BLOCKS:
            load_part_of_blocks(self._blocks, self._group.world.rank, message)
        else:
            self._group.channel.finish([self._group.channel.send(0, part_of(self._blocks, positions))])

    def _run(self, message: Message) -> None:
        run = self._runner.check if message.command == Command.CHECK else self._runner.forward
        logits = run(self._reader.call(message))
        if logits is not None and self._runner.is_pipeline:
            self._runner.send_logits(logits)
