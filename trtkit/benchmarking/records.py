"""What was seen of one request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Record:
    """One request. Times are seconds from the start of the load.

    due_s: when it was to be sent. sent_s: when it was; later than due where the sender or the server was behind.
    token_times_s: when each output token came; several that came at once have one time. error: why it failed, in words.
    reused_tokens: of the prompt, found in a cache.
    """

    due_s: float
    sent_s: float
    ended_s: float
    token_times_s: tuple[float, ...] = ()
    input_tokens: int = 0
    error: str = ""
    reused_tokens: int = 0

    @property
    def latency_s(self) -> float:
        """From when it was due: a request that had to wait for others did wait (no coordinated omission)."""
        return self.ended_s - self.due_s

    @property
    def service_s(self) -> float:
        """From when it was sent, which hides that the sender was behind."""
        return self.ended_s - self.sent_s

    @property
    def time_to_first_token_s(self) -> float | None:
        """From when it was due; None where no token came."""
        return self.token_times_s[0] - self.due_s if self.token_times_s else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Between each output token and the one before."""
        pairs = zip(self.token_times_s, self.token_times_s[1:], strict=False)
        return tuple(after - before for before, after in pairs)

    @property
    def time_per_output_token_s(self) -> float | None:
        """The average gap; None where there are fewer than two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def shifted(record: Record, seconds: float) -> Record:
    """Return a record as of a load that began so much later."""
    times = tuple(moment + seconds for moment in record.token_times_s)
    moments = {name: getattr(record, name) + seconds for name in ("due_s", "sent_s", "ended_s")}
    return replace(record, token_times_s=times, **moments)


def joined(rounds: Sequence[Sequence[Record]]) -> list[Record]:
    """Return the records of several loads as of one, each beginning where the one before ended."""
    found: list[Record] = []
    for records in rounds:
        begin = max((record.ended_s for record in found), default=0.0)
        found += [shifted(record, begin) for record in records]
    return found


def request_json(record: Record) -> dict[str, Any]:
    """Return a request as JSON, times in ms from the start of the load."""
    return {
        "due_ms": record.due_s * 1e3,
        "sent_ms": record.sent_s * 1e3,
        "ended_ms": record.ended_s * 1e3,
        "token_ms": [moment * 1e3 for moment in record.token_times_s],
        "input_tokens": record.input_tokens,
        "error": record.error,
    }
