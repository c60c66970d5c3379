"""Carries out a scheduler's cache transfers: copies, saves to host memory and files, and loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache.transfers import (
    AwaitBlocks,
    Copy,
    DropSequence,
    FillRows,
    LoadBlocks,
    LoadSequence,
    SaveBlocks,
    SaveSequence,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trtkit.llm.cache.transfers import HostTransfer
    from trtkit.llm.engine.request import Request
    from trtkit.llm.execution.execution import SequenceCache
    from trtkit.llm.scheduler.batch import Batch
    from trtkit.llm.scheduler.scheduler import Scheduler


class TransferRunner:
    """Owns the host memory whose rows a scheduler numbers. waited_s: seconds spent on copies to and from it."""

    def __init__(self, cache: SequenceCache, scheduler: Scheduler[Request], clock: Callable[[], float]) -> None:
        self._cache, self._scheduler, self._host, self._clock = cache, scheduler, scheduler.memory.host, clock
        self.waited_s = 0.0
        self._sequences = self._host.saved.data
        self._arrivals: dict[int, Callable[[], None]] = {}
        tier = self._host.blocks
        if tier is not None:
            blocks = cache.blocks(tier.tokens)
            assert blocks is not None
            assert blocks.size_bytes == tier.size_bytes
            self._tier, self._blocks, self._memory = tier, blocks, blocks.memory(tier.rows)

    def run(self, batch: Batch) -> None:
        """Carry out a batch's transfers and page changes, before its calls."""
        copies: list[Copy] = []  # consecutive copies, sent to other ranks in one message
        for transfer in batch.transfers:
            if isinstance(transfer, Copy):
                copies.append(transfer)
                continue
            if copies:
                self._cache.carry_out(copies)
                copies = []
            self._run(transfer)
        if copies:
            self._cache.carry_out(copies)
        if batch.pages:
            self._cache.set_pages(np.array(batch.pages))

    def end_step(self) -> None:
        """Record the duration of copies, and write blocks that have reached the host to files."""
        if self._host.blocks is not None:
            if (measured := self._blocks.last_copy()) is not None:
                self._tier.rate.note(*measured)
            self._tier.write(lambda row: self._memory[row].numpy().tobytes())

    def close(self) -> None:
        """Wait for copies. With a cache folder, also write the caches of ended sequences, then release the folder."""
        files, self._host.files = self._host.files, None
        if files is None:
            self._flush()
            return
        try:
            for _ in self._host.keep_all():
                self.run(self._scheduler.copies())
                self._flush()
        finally:
            files.close()

    def _flush(self) -> None:
        if self._host.blocks is not None:
            self._blocks.settle()
            self.end_step()

    def _run(self, transfer: HostTransfer) -> None:
        match transfer:
            case FillRows(rows):
                self._blocks.settle()
                for row in rows:
                    self._memory[row].numpy()[:] = np.frombuffer(self._tier.filled.pop(row), np.uint8)
            case DropSequence(number):
                del self._sequences[number]
            case _:
                started_s = self._clock()
                size = self._copy(transfer)
                seconds = self._clock() - started_s
                self.waited_s += seconds
                self._note_rate(transfer, seconds, size)

    def _copy(self, transfer: SaveBlocks | LoadBlocks | AwaitBlocks | SaveSequence | LoadSequence) -> int:
        """Copy to or from the host; return the number of bytes."""
        match transfer:
            case SaveBlocks(places, rows):
                self._tier.note_saved(transfer, self._blocks.save(places, self._rows(rows)))
                return len(rows) * self._tier.size_bytes
            case LoadBlocks(rows, places, number):
                self._arrivals[number] = self._blocks.load(places, self._rows(rows))
                if not number:
                    self._arrivals.pop(number)()
                return len(rows) * self._tier.size_bytes
            case AwaitBlocks(number):
                self._arrivals[number]()
                self._arrivals = {later: arrive for later, arrive in self._arrivals.items() if later > number}
                return 0
            case SaveSequence(number, slot, tokens, pages):
                self._cache.tell(slot, pages)
                saved = self._cache.save(slot, tokens)
                self._host.sequences.note_saved(number, saved)
                return saved.data.nbytes
            case LoadSequence(number, slot, _, pages):
                self._cache.tell(slot, pages)
                self._cache.load(slot, self._sequences[number])
                return self._sequences[number].data.nbytes

    def _note_rate(self, transfer: HostTransfer, seconds: float, size_bytes: int) -> None:
        """Record a save's rate; block saves in the background are measured where they run."""
        if isinstance(transfer, SaveSequence):
            self._host.sequences.rate.note(seconds, size_bytes)
        elif isinstance(transfer, SaveBlocks) and self._blocks.is_waited_for:
            self._tier.rate.note(seconds, size_bytes)

    def _rows(self, rows: Sequence[int]) -> list[torch.Tensor]:
        return [self._memory[row] for row in rows]
