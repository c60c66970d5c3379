"""A decoder on a virtual clock, so that schedules that measure time behave alike on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.generation import PAGE_TOKENS, case_of, network_of
from trtkit.llm.engine import EngineOptions, LLMEngine
from trtkit.llm.execution import ReferenceDecoder
from trtkit.llm.execution.pool_size import PoolSize

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from trtkit.llm.execution import Call
    from trtkit.llm.execution.execution import Draw


class ClockedDecoder(ReferenceDecoder):
    """A tiny Llama in fp64. Its clock advances by `seconds_of(call)` per call, and not otherwise.

    pages: number of pages; None for slots.
    """

    def __init__(
        self, slots: int, seconds_of: Callable[[Call], float], length: int = 64, pages: int | None = None
    ) -> None:
        page_tokens = None if pages is None else PAGE_TOKENS
        network = network_of(case_of("llama"), length=length, page_tokens=page_tokens)
        super().__init__(network, slots, widen="fp64", pool=PoolSize(pages))
        self._seconds_of = seconds_of
        self.now_s = 0.0

    def clock(self) -> float:
        """Return the time."""
        return self.now_s

    def forward(self, call: Call, draw: Draw | None = None) -> torch.Tensor:
        """Run new tokens, and advance the clock."""
        self.now_s += self._seconds_of(call)
        return super().forward(call, draw)


def clocked_engine(slots: int, seconds_of: Callable[[Call], float] = lambda _: 1.0, **options: object) -> LLMEngine:
    """Return an engine on a ClockedDecoder."""
    decoder = ClockedDecoder(slots, seconds_of)
    return LLMEngine(decoder, EngineOptions(clock=decoder.clock, **options))  # type: ignore[arg-type]
