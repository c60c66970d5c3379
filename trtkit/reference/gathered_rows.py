"""Rows of constants that a network gathers by computed indices, such as those of active neurons.

They may stay in the file that the network's weights are mapped from: rows that the latest calls read are kept in
memory, others are read again. Source: LLM in a flash (https://arxiv.org/abs/2312.11514), sections 3.1 and 3.2.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.errors import ExecutionError
from trtkit.network.layer_graph import MISSING
from trtkit.reference.layer import weights_tensor

if TYPE_CHECKING:
    from trtkit.network.layer_graph import LayerWeights
    from trtkit.reference.layer import Layer, RowReads, Tensor
    from trtkit.reference.program import Instruction

_LEAST_AXES = 3
"""Minimum rank: tables of vectors, such as embeddings and biases, have fewer axes and are not handled here."""


def gathering_rows(step: Instruction, layer: Layer, reads: RowReads) -> Instruction:
    """Convert a gather of a constant's rows to a step that reads only those; other steps are unchanged.

    Raises ExecutionError if rows should be read from a file but are in none.
    """
    held = layer.held[0] if step.kind == "GATHER" else None
    if held is None or layer.number("num_elementwise_dims") or layer.option("mode") != "DEFAULT":
        return step
    shape = layer.input_shape(0)
    is_by_rows = layer.number("axis") == 0 and len(shape) >= _LEAST_AXES and len(layer.input_shape(1)) == 1
    if not is_by_rows or layer.known_input(1) is not None or layer.precision.widen:
        return step
    rows = _MappedRows(held, shape, reads) if reads.kept_calls is None else _KeptRows(held, shape, reads, layer.name)
    return replace(step, run=rows, fast=rows, inputs=(MISSING, step.inputs[1]))


class _MappedRows:
    """Rows in memory, or in a mapped file."""

    def __init__(self, held: LayerWeights, shape: tuple[int, ...], reads: RowReads) -> None:
        self._reads, self._shape, self._held = reads, shape, held
        self._all = np.arange(shape[0])
        self._row_bytes = held.raw.nbytes // shape[0]

    def __call__(self, _unread: None, index: Tensor) -> Tensor:
        """Return the rows at indices [K]; all rows in order are read as a whole."""
        numbers = index.long()
        if len(numbers) == len(self._all) and np.array_equal(numbers.numpy(), self._all):
            return self._whole()
        return self._some(numbers)

    def _whole(self) -> Tensor:
        self._reads.read_bytes += self._held.raw.nbytes
        return weights_tensor(self._held).view(self._shape)

    def _some(self, numbers: Tensor) -> Tensor:
        self._reads.read_bytes += len(numbers) * self._row_bytes
        return weights_tensor(self._held).view(self._shape)[numbers]


class _KeptRows(_MappedRows):
    """Rows in a file, of which those read by the latest calls are in memory."""

    def __init__(self, held: LayerWeights, shape: tuple[int, ...], reads: RowReads, name: str) -> None:
        super().__init__(held, shape, reads)
        location = reads.files.find(held.raw)
        if location is None:
            what = "its rows are to be read from a file, and lie in memory alone"
            raise ExecutionError(what, name, "remove `resident_tokens`")
        self._file, self._offset = Path(location[0]).open("rb", buffering=0), location[1]  # noqa: SIM115  # as long as the rows
        self._calls = 0
        self._place = np.full(shape[0], -1)  # of each row in `_memory`
        self._used = np.full(shape[0], -1)  # the last call that read it
        self._memory = torch.empty((0, self._row_bytes), dtype=torch.uint8)
        self._free: list[int] = []

    def _whole(self) -> Tensor:
        memory = torch.empty(self._held.raw.nbytes, dtype=torch.uint8)
        self._read(memory.numpy(), 0)
        return self._typed(memory)

    def _some(self, numbers: Tensor) -> Tensor:
        rows = numbers.numpy()
        self._calls += 1
        self._used[rows] = self._calls
        missing = np.unique(rows[self._place[rows] < 0])
        if len(missing):
            self._load(missing)
        return self._typed(self._memory[torch.from_numpy(self._place[rows])])

    def _load(self, missing: np.ndarray) -> None:
        """Read sorted rows into the places of rows unused for `kept_calls` calls, or into added memory."""
        assert self._reads.kept_calls is not None
        old = np.flatnonzero((self._place >= 0) & (self._used <= self._calls - self._reads.kept_calls))
        self._free += self._place[old].tolist()
        self._place[old] = -1
        if (lacking := len(missing) - len(self._free)) > 0:
            size = len(self._memory)
            grown = torch.empty((size + lacking, self._row_bytes), dtype=torch.uint8)
            grown[:size] = self._memory
            self._memory = grown
            self._free += range(size, size + lacking)
        new = np.empty((len(missing), self._row_bytes), np.uint8)
        for run in np.split(np.arange(len(missing)), np.flatnonzero(np.diff(missing) != 1) + 1):
            self._read(new[run[0] : run[-1] + 1].reshape(-1), int(missing[run[0]]) * self._row_bytes)
        places = [self._free.pop() for _ in range(len(missing))]
        self._memory[places] = torch.from_numpy(new)
        self._place[missing] = places

    def _read(self, memory: np.ndarray, offset: int) -> None:
        """Fill memory with bytes of the constant, starting at `offset`.

        Raises ExecutionError if the file is too short.
        """
        done = 0
        while done < memory.nbytes:
            count = os.preadv(self._file.fileno(), [memory[done:].data], self._offset + offset + done)
            if not count:
                raise ExecutionError("the file of the network's weights is shorter than it was", self._file.name)
            done += count
        self._reads.read_bytes += memory.nbytes

    def _typed(self, memory: Tensor) -> Tensor:
        dtype = getattr(torch, self._held.dtype.torch)
        return memory.reshape(-1).view(dtype).view(-1, *self._shape[1:])
