"""The adapters of all ranks as one: every rank writes its share of what rank 0 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.llm.distributed.messages import Message
from trtkit.network.input_spec import LORA_ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.execution.adapters import AdapterMemory, Matrices


class GroupAdapters:
    """AdapterSlots of all ranks.

    local: rank 0's. run: sends the other ranks a message and does rank 0's share of it.
    """

    def __init__(self, local: AdapterMemory, run: Callable[[Message, Callable[[], None]], None]) -> None:
        self._own, self._run = local, run
        self.most, self.dtype = local.most, local.dtype

    def write(self, rows: Sequence[int], adapter: int, matrices: Matrices) -> None:
        """Write an adapter into `rows` on every rank."""
        tensors = {
            path + end: matrix for path, pair in matrices.items() for end, matrix in zip(LORA_ENDS, pair, strict=True)
        }
        message = Message("write_adapter", {"adapter": adapter, "rows": rows}, tensors)
        self._run(message, lambda: self._own.write(rows, adapter, matrices))

    def erase(self, rows: Sequence[int]) -> None:
        """Clear `rows` on every rank."""
        self._run(Message("erase_adapter", {"rows": rows}), lambda: self._own.erase(rows))


def write_own(memory: AdapterMemory, message: Message) -> None:
    """Write this rank's share of an adapter from rank 0's message."""
    first, second = LORA_ENDS
    paths = [name.removesuffix(first) for name in message.tensors if name.endswith(first)]
    rows, adapter = message.numbers("rows"), message.number("adapter")
    memory.write(
        rows, adapter, {path: (message.tensors[path + first], message.tensors[path + second]) for path in paths}
    )
