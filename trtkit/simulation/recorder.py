"""Who is told what happens in a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from trtkit.llm.scheduler.batch import Chunk
    from trtkit.simulation.requests import SimulatedRequest


class Passed(NamedTuple):
    """A replica while `steps` that are alike ran. decoding, reading, waiting: requests. cached_tokens: of who ran.

    unread_tokens: of prompts that had begun, those that were not computed yet. reserved_tokens: that its caches had
    places for, on average. All but these are as the steps began.
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
    """Told what happens."""

    def begin(self, request: SimulatedRequest, now_s: float, shared: int, restored: int) -> None:
        """A request has a slot; `shared` of its tokens were cached already, `restored` of them on the host."""

    def match(self, request: SimulatedRequest, shared: int) -> None:
        """A request that has read nothing yet shares so many tokens more."""

    def read(self, request: SimulatedRequest, chunk: Chunk, now_s: float) -> None:
        """A piece of a prompt is computed."""

    def finish(self, request: SimulatedRequest, now_s: float) -> None:
        """A request is complete."""

    def drop(self, request: SimulatedRequest, now_s: float) -> None:
        """A request's deadline passed before it began, or it fits no replica."""

    def pass_time(self, passed: Passed) -> None:
        """Steps are over; what they change has not changed yet."""
