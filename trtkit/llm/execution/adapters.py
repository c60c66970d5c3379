"""Matrices of resident LoRA adapters, in memory that the network reads as inputs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.network.input_spec import LORA_ENDS, RANK_OWNERS, rank_window
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trtkit.models.rank_weights import MatrixShare
    from trtkit.network.input_spec import InputSpec
    from trtkit.runtime.device import Stream

    Matrices = Mapping[str, tuple[torch.Tensor, torch.Tensor]]

NOBODY = -1
"""`AdapterMemory` rows that no adapter owns."""


class AdapterMemory:
    """Rows shared by all adapters, `most` of them, allocated once; an adapter may own any rows.

    arrays: [most, ...] by the input that reads their first rows. stream: of a device; operations run on it in order.
    None for the caller's own memory and time. share_of: this rank's share of a layer's matrices in a grid; None for all
    of them.
    """

    share_of: Callable[[str], MatrixShare] | None = None

    def __init__(
        self,
        specs: Iterable[InputSpec],
        most: int,
        dtype_of: Callable[[InputSpec], torch.dtype],
        stream: Stream | None = None,
    ) -> None:
        self.specs = [spec for spec in specs if spec.feeder == "adapter"]
        self.most = most
        self._stream, empty = stream, _empty if stream is None else stream.empty
        self.arrays = {spec.name: empty((most, *spec.shape[1:]), dtype_of(spec)) for spec in self.specs}
        self._owners = np.full(most, NOBODY, np.int32)
        for name, array in self.arrays.items():
            self._run(partial(array.fill_, NOBODY if name == RANK_OWNERS else 0))

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the matrices."""
        return next(array.dtype for name, array in self.arrays.items() if name != RANK_OWNERS)

    @property
    def size_bytes(self) -> int:
        """Bytes of the memory."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def ranks(self) -> int:
        """Number of rows that a call reads."""
        used = np.flatnonzero(self._owners != NOBODY)
        return rank_window(int(used[-1]) + 1, self.most) if used.size else 0

    def view(self, ranks: int) -> dict[str, torch.Tensor]:
        """Return the first rows of each input, by name."""
        return {name: array[:ranks] for name, array in self.arrays.items()}

    def write(self, rows: Sequence[int], adapter: int, matrices: Matrices) -> None:
        """Write an adapter into `rows`. matrices: a [r, in] and b [r, out] by layer, of at most `len(rows)` ranks."""
        index = torch.tensor(rows)
        for spec in self.specs:
            end = next((end for end in LORA_ENDS if spec.name.endswith(end)), None)
            if end is None:
                continue
            path, array = spec.name.removesuffix(end), self.arrays[spec.name]
            values = torch.zeros((len(rows), spec.shape[1]), dtype=array.dtype)
            if path in matrices:
                share = self._share(path, matrices[path][LORA_ENDS.index(end)], is_input=end == LORA_ENDS[0])
                values[: len(share)] = share
            self._put(array, index, values)
        self._own(rows, adapter)

    def erase(self, rows: Sequence[int]) -> None:
        """Clear `rows`."""
        self._own(rows, NOBODY)

    def _own(self, rows: Sequence[int], owner: int) -> None:
        self._owners[list(rows)] = owner
        self._put(self.arrays[RANK_OWNERS], torch.tensor(rows), torch.full((len(rows),), owner, dtype=torch.int32))

    def _share(self, path: str, matrix: torch.Tensor, *, is_input: bool) -> torch.Tensor:
        """Return this rank's share of a matrix [r, in] or [r, out]."""
        if self.share_of is None:
            return matrix
        outputs, inputs = self.share_of(path)
        columns = inputs if is_input else outputs
        return matrix if columns is None else matrix[:, torch.from_numpy(np.asarray(columns))]

    def _put(self, array: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
        self._run(lambda: array.index_copy_(0, to_device(rows, array.device), to_device(values, array.device)))

    def _run(self, work: Callable[[], object]) -> None:
        if self._stream is None:
            work()
        else:
            self._stream.run(work)


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def adapter_memory(
    specs: Iterable[InputSpec], most: int, dtype_of: Callable[[InputSpec], torch.dtype], stream: Stream | None = None
) -> AdapterMemory | None:
    """Return the memory of a network's adapters; None if it takes none."""
    specs = list(specs)
    return AdapterMemory(specs, most, dtype_of, stream) if any(spec.feeder == "adapter" for spec in specs) else None
