"""What was seen of one request: as it was measured, and as a report has it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class RequestRecord:
    """One request. Times are seconds from the start of the load.

    due_s: when it was to be sent. sent_s: when it was; later than due where the sender or the server was late.
    token_times_s: when each output token came; several that came at once have one time. error: why it failed, in words.
    reused_tokens: of the prompt, found in a cache. restored_tokens: those of them found in host memory.
    """

    due_s: float
    sent_s: float
    ended_s: float
    token_times_s: tuple[float, ...] = ()
    input_tokens: int = 0
    error: str = ""
    reused_tokens: int = 0
    restored_tokens: int = 0

    @property
    def latency_s(self) -> float:
        """From when it was due: a request that had to wait for others did wait (no coordinated omission)."""
        return self.ended_s - self.due_s

    @property
    def service_s(self) -> float:
        """From when it was sent, which hides that the sender was late."""
        return self.ended_s - self.sent_s

    @property
    def time_to_first_token_s(self) -> float | None:
        """From when it was due; None if no token came."""
        return self.token_times_s[0] - self.due_s if self.token_times_s else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Between each output token and the one before."""
        pairs = zip(self.token_times_s, self.token_times_s[1:], strict=False)
        return tuple(after - before for before, after in pairs)

    @property
    def time_per_output_token_s(self) -> float | None:
        """The average gap; None if there are fewer than two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def shifted(record: RequestRecord, seconds: float) -> RequestRecord:
    """Return a record as of a load that began so much later."""
    times = tuple(moment + seconds for moment in record.token_times_s)
    moments = {name: getattr(record, name) + seconds for name in ("due_s", "sent_s", "ended_s")}
    return replace(record, token_times_s=times, **moments)


def joined(rounds: Sequence[Sequence[RequestRecord]]) -> list[RequestRecord]:
    """Return the records of several loads as of one, each beginning where the one before ended."""
    joined_records: list[RequestRecord] = []
    for records in rounds:
        begin = max((record.ended_s for record in joined_records), default=0.0)
        joined_records += [shifted(record, begin) for record in records]
    return joined_records


@dataclass(frozen=True)
class RequestTimes:
    """A request as a report has it. Times are ms from the start of the load. error: why it failed, in words."""

    due_ms: float
    sent_ms: float
    ended_ms: float
    token_ms: tuple[float, ...]
    input_tokens: int
    error: str


def request_times(record: RequestRecord) -> RequestTimes:
    """Return a record as a report has it."""
    tokens = tuple(moment * 1e3 for moment in record.token_times_s)
    moments = (record.due_s * 1e3, record.sent_s * 1e3, record.ended_s * 1e3)
    return RequestTimes(*moments, tokens, record.input_tokens, record.error)


def record_of(request: RequestTimes) -> RequestRecord:
    """Return the record of a report's request."""
    tokens = tuple(moment / 1e3 for moment in request.token_ms)
    moments = (request.due_ms / 1e3, request.sent_ms / 1e3, request.ended_ms / 1e3)
    return RequestRecord(*moments, tokens, request.input_tokens, request.error)
