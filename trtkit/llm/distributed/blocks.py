"""Blocks of all ranks as one: rank 0 keeps every rank's part on its host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from trtkit.llm.distributed.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.distributed.channel import Channel
    from trtkit.llm.execution.host_blocks import CacheBlocks
    from trtkit.llm.execution.saved import CacheForm


class GroupBlocks:
    """A CacheBlocks of all ranks. A block holds every rank's part, by rank. Nothing is copied meanwhile.

    local: rank 0's. parts: what a block of each rank is. run: sends the other ranks a message, does its own share.
    """

    def __init__(
        self,
        local: CacheBlocks,
        parts: Sequence[CacheForm],
        channel: Channel,
        run: Callable[[Message, Callable[[], None]], None],
    ) -> None:
        self._own, self._channel, self._run = local, channel, run
        self._sizes = [replace(part, tokens=local.tokens).size_bytes for part in parts]
        self.tokens, self.size_bytes = local.tokens, sum(self._sizes)

    is_waited_for = True

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return where a slot's blocks are: the same places on every rank."""
        return self._own.places(slot, first, count)

    def save(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """Copy blocks of all ranks to host memory; see CacheBlocks."""

        def gather() -> None:
            parts = [part_of(self._own, positions)]
            for rank, size in enumerate(self._sizes[1:], 1):
                if not size:
                    continue
                parts.append(self._channel.receive(rank, (len(positions), size), torch.uint8))
            for row, data in zip(rows, torch.cat(parts, 1), strict=True):
                row.copy_(data)

        self._run(Message("save_blocks", {"tokens": self.tokens, "places": positions}), gather)
        return lambda: True

    def load(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Copy blocks of all ranks from host memory; see CacheBlocks."""
        starts = [sum(self._sizes[:rank]) for rank in range(len(self._sizes))]
        fields: dict[str, object] = {"tokens": self.tokens, "starts": starts, "places": positions}
        message = Message("load_blocks", fields, {"data": torch.stack(list(rows))})
        self._run(message, lambda: load_part(self._own, 0, message))
        return lambda: None

    def last_copy(self) -> None:
        """Return None: who calls measures."""

    def settle(self) -> None:
        """Return at once: every copy has been waited for."""

    def memory(self, count: int) -> torch.Tensor:
        """Return host memory for so many blocks."""
        return torch.empty(count, self.size_bytes, dtype=torch.uint8)


class NoBlocks:
    """A CacheBlocks of a rank whose layers have no attention: it has no part of blocks, but says where they are.

    blocks_of_slot: how many blocks a slot has on the other ranks.
    """

    size_bytes = 0
    is_waited_for = True

    def __init__(self, tokens: int, blocks_of_slot: int) -> None:
        self.tokens, self._blocks_of_slot = tokens, blocks_of_slot

    def places(self, slot: int, first: int, count: int) -> list[int]:
        """Return where a slot's blocks are: numbers over all slots."""
        start = slot * self._blocks_of_slot + first
        return list(range(start, start + count))

    def save(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:  # noqa: ARG002
        """Copy nothing; see CacheBlocks."""
        return lambda: True

    def load(self, positions: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], None]:  # noqa: ARG002
        """Copy nothing; see CacheBlocks."""
        return lambda: None

    def last_copy(self) -> None:
        """Return None: nothing is copied."""

    def settle(self) -> None:
        """Return at once."""

    def memory(self, count: int) -> torch.Tensor:
        """Return rows of no bytes."""
        return torch.empty(count, 0, dtype=torch.uint8)


def part_of(local: CacheBlocks, positions: Sequence[int]) -> torch.Tensor:
    """Return this rank's part of blocks, [N, size_bytes], on the host."""
    part = local.memory(len(positions))
    local.save(positions, list(part))
    local.settle()
    return part


def load_part(local: CacheBlocks, rank: int, message: Message) -> None:
    """Load this rank's part of blocks."""
    start, positions = message.numbers("starts")[rank], message.numbers("places")
    local.load(positions, list(message.tensors["data"][:, start : start + local.size_bytes]))()
    local.settle()
