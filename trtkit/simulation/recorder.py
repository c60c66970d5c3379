"""The interface that is told the events of a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.simulation.requests import SimulatedRequest


class Passed(NamedTuple):
    """State during `steps` equal steps. decoding, reading, waiting: requests. cached_tokens: of those that run.

    unread_tokens: uncomputed tokens of prompts that had started. reserved_tokens: tokens that its caches had room for,
    on average. All others are as the steps began.
    """

    decoding: int
    reading: int
    waiting: int
    cached_tokens: int
    unread_tokens: int
    reserved_tokens: int
    begin_s: float
    end_s: float
    steps: int


class Recorder(Protocol):
    """Receives the events of a simulation."""

    def begin(self, request: SimulatedRequest, now_s: float, shared: int, restored: int) -> None:
        """A request got a slot; `shared` of its tokens were cached already, `restored` of them on the host."""

    def match(self, request: SimulatedRequest, shared: int) -> None:
        """A request that has read nothing yet shares `shared` more tokens."""

    def read(self, request: SimulatedRequest, chunk: Chunk, now_s: float) -> None:
        """A prompt chunk has been computed."""

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        """A request is complete."""

    def drop(self, request: SimulatedRequest, now_s: float) -> None:
        """A request was dropped: its deadline passed before it got a slot, or it fits no replica."""

    def pass_time(self, passed: Passed) -> None:
        """Steps are over; their effects come next."""
