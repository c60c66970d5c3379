"""The caches of all stages: on the device, in host memory, or on disk.

Off the device, a stage has device buffers for a few micro-batches. A micro-batch's caches are copied to a buffer before
it is computed, and back afterwards.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.errors import GenerationError
from trtkit.llm.execution.saved import CacheForm, SavedSequence, check_saved, check_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.cache.transfers import Copy
    from trtkit.llm.execution.call import Call
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.llm.sequences import Ints
    from trtkit.runtime.device import Event, Stream


class HostMemory:
    """Host memory for caches; pinned if a device's stream copies it."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __call__(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros."""
        size = math.prod(shape) * dtype.itemsize
        if self._stream is None:
            return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(*shape)
        return self._stream.host_memory(size).zero_().view(dtype).view(*shape)

    def drop_pages(self) -> None:
        """Do nothing: the memory stays."""


class DiskMemory:
    """Mapped files for caches in the folder for temporary files; they vanish with the process."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def __call__(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return zeros. Raises GenerationError if they do not fit the disk."""
        size = math.prod(shape) * dtype.itemsize
        try:
            with tempfile.TemporaryFile(prefix="trtkit-caches-") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # writing to a mapping on a full disk would end the process
                memory = mmap.mmap(file.fileno(), size)
        except OSError as error:
            what = f"no room for {size / 2**20:.0f} MiB of caches: {(error.strerror or str(error)).lower()}"
            fix = "set TMPDIR to a folder on a disk with room, or use fewer slots"
            raise GenerationError(what, tempfile.gettempdir(), fix) from None
        self._maps.append(memory)
        return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(*shape)

    def drop_pages(self) -> None:
        """Let the system write changed pages to the files and reclaim their memory."""
        for memory in self._maps:
            memory.madvise(mmap.MADV_DONTNEED)


@dataclass(eq=False)
class StageCaches:
    """The caches of one stage. held: those of all slots. buffers: on the device; `held` itself if that is there.

    memory: that of `held`, if it is another. link: the stream that copies between the two, of all stages; None on a
    CPU.
    """

    held: KvCache
    buffers: KvCache
    memory: HostMemory | DiskMemory | None = None
    link: Stream | None = None
    _fetched: dict[int, Event] = field(default_factory=dict)
    _computed: dict[int, Event] = field(default_factory=dict)

    def fetch(self, call: Call, first: int) -> int:
        """Copy the caches that a call reads to the buffer from slot `first` on; return bytes.

        New prompts read nothing.
        """
        target, copied = slice(first, first + len(call.starts)), 0
        if call.starts.any() or not call.counts.all():
            copied = self.buffers.copy_rows(self.held, (call.rows, target), slice(0, _end(call)), self._run)
        else:
            self.buffers.positions[target] = self.held.positions[call.rows]
        if self.link is not None:  # for new prompts, too: the buffer's old contents may still be on their way back
            self._fetched[first] = self.link.record()
        return copied

    def begin(self, first: int) -> None:
        """Make the stage's next work wait for what was fetched to the buffer at slot `first`."""
        if (event := self._fetched.pop(first, None)) is not None:
            assert self.buffers.stream is not None
            self.buffers.stream.wait(event)

    def end(self, first: int) -> None:
        """Record that the stage's work on the buffer at slot `first` has been enqueued."""
        if self.link is not None:
            assert self.buffers.stream is not None
            self._computed[first] = self.buffers.stream.record()

    def store(self, call: Call, first: int) -> int:
        """Copy what a call has written back from the buffer at slot `first`; return bytes."""
        assert self.memory is not None
        if self.link is not None:
            self.link.wait(self._computed.pop(first))
        source, tokens = slice(first, first + len(call.starts)), slice(int(call.starts.min()), _end(call))
        copied = self.held.copy_rows(self.buffers, (source, call.rows), tokens, self._run)
        if self.link is None:
            self.memory.drop_pages()
        return copied

    def settle(self) -> None:
        """Wait until all copies are done, so that the host may read the caches."""
        if self.link is not None and self.memory is not None:
            self.link.synchronize()
            self.memory.drop_pages()

    def close(self) -> None:
        """Free the memory."""
        self.held.close()
        self.buffers.close()

    def _run(self, work: Callable[[], object]) -> None:
        if self.link is None:
            work()
        else:
            self.link.run(work)


class OffloadedCache:
    """A SequenceCache of all stages: an operation on a slot is applied to every stage's caches."""

    pages = None

    def __init__(self, parts: Sequence[KvCache]) -> None:
        self._parts = parts
        self.model = ""
        self.positions = parts[0].positions
        self.has_slot_memory = any(part.has_slot_memory for part in parts)
        self.has_states = any(part.has_states for part in parts)
        self.block_multiple = 1

    def carry_out(self, copies: Sequence[Copy]) -> None:
        """Carry out a batch's copies within the caches, in order."""
        for part in self._parts:
            part.carry_out(copies)

    def tell(self, slot: int, pages: Sequence[int]) -> None:
        """Do nothing: there are no pages."""

    def set_pages(self, changes: Ints) -> None:
        """Do nothing: there are no pages."""

    def move(self, slots: Ints, sources: Ints, targets: Ints) -> None:
        """Copy one cached token within each slot: slots [R], source and target positions [R]."""
        for part in self._parts:
            part.move(slots, sources, targets)

    def mark(self, rows: slice) -> None:
        """Save the recurrent states of consecutive slots, for `rewind`."""
        for part in self._parts:
            part.mark(rows)

    def rewind(self, slots: Sequence[int]) -> None:
        """Restore the recurrent states of slots to those saved by `mark`."""
        for part in self._parts:
            part.rewind(slots)

    def form(self, tokens: int) -> CacheForm:
        """Return the layout of a saved sequence of `tokens` tokens: that of each stage, in order."""
        return CacheForm(self.model, tokens, tuple(array for part in self._parts for array in part.form(tokens).arrays))

    def save(self, slot: int, count: int) -> SavedSequence:
        """Copy the first `count` tokens of a slot to the host."""
        check_tokens(count, self._parts[0].max_length)
        return SavedSequence(self.form(count), torch.cat([part.save(slot, count).data.cpu() for part in self._parts]))

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Load a saved sequence into a slot. Raises ExecutionError for what `check` refuses."""
        self.check(saved)
        start = 0
        for part in self._parts:
            form = part.form(saved.tokens)
            part.load(slot, SavedSequence(form, saved.data[start : start + form.size_bytes].clone()))
            start += form.size_bytes

    def blocks(self, tokens: int) -> None:
        """Return None: a slot's tokens are saved together."""

    def check(self, saved: SavedSequence) -> None:
        """Raise ExecutionError if a sequence is of another model or other caches, is too long, or lacks bytes."""
        check_saved(saved, self.form(saved.tokens), self._parts[0].max_length)

    def close(self) -> None:
        """Free the memory."""
        for part in self._parts:
            part.close()


def _end(call: Call) -> int:
    """Return the end of the positions that a call writes."""
    size: int = call.ids.shape[1]
    return int(call.starts.max()) + size
