"""Memory for outputs whose sizes TensorRT knows only when it has computed them, such as those of NonZero and NMS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.runtime.device import Stream


def output_allocator(backend: Backend, stream: Stream, dtype: torch.dtype) -> Any:
    """Return an IOutputAllocator for one output; `tensor()` is the output once the stream has been waited for."""
    base: Any = backend.trt.IOutputAllocator

    class OutputAllocator(base):  # type: ignore[misc]  # TensorRT's class is known when it is loaded
        def __init__(self) -> None:
            base.__init__(self)
            self._memory = stream.empty((0,), torch.uint8)
            self._shape: tuple[int, ...] = ()

        def reallocate_output(self, _name: str, _memory: int, size: int, _alignment: int) -> int:
            """Make room for `size` bytes; called by versions without streams."""
            if size > self._memory.numel():
                self._memory = stream.empty((size,), torch.uint8)
            return self._memory.data_ptr()

        def reallocate_output_async(self, name: str, memory: int, size: int, alignment: int, _stream: int) -> int:
            """Make room for `size` bytes."""
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, _name: str, shape: Any) -> None:
            """Note the output's shape."""
            self._shape = tuple(shape)

        def tensor(self) -> torch.Tensor:
            """Return the output."""
            size = math.prod(self._shape) * dtype.itemsize
            return self._memory[:size].view(dtype).view(self._shape)

    return OutputAllocator()
