"""What a call puts on an engine's stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.llm.execution.execution import Draw
    from trtkit.network.input_spec import Role


@dataclass(frozen=True)
class StreamStep:
    """What a call puts on the stream after its inputs, by which CUDA graphs are kept. Draws differ if they are others.

    rows: R, from slot `first` on, of `size` new tokens. window: cached tokens that attention reads. row_pages: n, pages
    that hold them, if caches are paged. ranks: of adapters, that are resident.
    """

    first: int
    rows: int
    size: int
    window: int
    row_pages: int
    ranks: int
    draw: Draw | None

    @property
    def sizes(self) -> Mapping[Role, int]:
        """The sizes of the dynamic axes."""
        sizes: dict[Role, int] = {"batch": self.rows, "new_tokens": self.size, "kv_window": self.window}
        return sizes | {"row_pages": self.row_pages, "adapter_rank": self.ranks}
