"""How ranks talk: rank 0's messages to all, and tensors from one rank to another. No wait here has a limit of its own:
`watch.py` ends a process whose peers are gone.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

import torch

from trtkit.errors import RankError
from trtkit.llm.distributed.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch._C._distributed_c10d import Work

    from trtkit.reference.ranks import GlooGroup

_FIRST_BYTES = 4096  # a decode step fits, so that it takes one broadcast
_SIZE_BYTES = 8
_FOREVER = timedelta(days=3650)


class Channel:
    """The group of all ranks."""

    def __init__(self, group: GlooGroup) -> None:
        self._group = group

    def tell(self, message: Message) -> None:
        """Send a message from rank 0 to every other rank; return once all have received it."""
        data = message.data()
        first = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        first[:_SIZE_BYTES] = torch.tensor([len(data)]).view(torch.uint8)
        room = _FIRST_BYTES - _SIZE_BYTES
        first[_SIZE_BYTES : _SIZE_BYTES + len(data)] = data[:room]
        self._broadcast(first)
        if len(data) > room:
            self._broadcast(data[room:].clone())

    def hear(self) -> Message:
        """Wait for rank 0's next message."""
        first = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        self._broadcast(first)
        size = int(first[:_SIZE_BYTES].view(torch.int64))
        data, missing = first[_SIZE_BYTES : _SIZE_BYTES + size], size - (_FIRST_BYTES - _SIZE_BYTES)
        if missing > 0:
            rest = torch.empty(missing, dtype=torch.uint8)
            self._broadcast(rest)
            data = torch.cat([data, rest])
        return Message.read(data)

    def send(self, rank: int, tensor: torch.Tensor, tag: int = 0) -> Work:
        """Start sending a tensor, which must not change before the returned work is done."""
        with _connected():
            return self._group.send([_bytes(tensor)], rank, tag)

    def receive(self, rank: int, shape: Sequence[int], dtype: torch.dtype, tag: int = 0) -> torch.Tensor:
        """Wait for a tensor that `rank` sends."""
        tensor = torch.empty(tuple(shape), dtype=dtype)
        if tensor.numel():
            with _connected():
                self._group.recv([_bytes(tensor)], rank, tag).wait(_FOREVER)
        return tensor

    def finish(self, sends: Iterable[Work]) -> None:
        """Wait until tensors have been sent."""
        for send in sends:
            with _connected():
                send.wait()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        with _connected():
            self._group.broadcast(tensor, 0, _FOREVER).wait()


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Turn gloo's errors into RankError; the watch knows the cause."""
    try:
        yield
    except RuntimeError as error:
        what = f"the connection between the ranks is lost: {str(error).splitlines()[0][:200]}"
        raise RankError(what, "ranks") from error


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a contiguous tensor's bytes: gloo does not support every type."""
    return tensor.view(-1).view(torch.uint8)
