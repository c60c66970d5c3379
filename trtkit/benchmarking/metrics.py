"""Metrics from request records, with AIPerf's names and units; goodput under service-level objectives.

Latencies count from a request's due time. In a closed loop that is the time of sending, as in AIPerf; in an open loop
AIPerf's own `request_latency` counts from the time of sending, and its CO-aware `effective_latency` as here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trtkit.benchmarking.statistics import Metric, Total, distribution
from trtkit.errors import BenchError

UNITS = {
    "request_throughput": "requests/sec",
    "request_latency": "ms",
    "request_count": "requests",
    "error_request_count": "requests",
    "time_to_first_token": "ms",
    "time_to_second_token": "ms",
    "inter_token_latency": "ms",
    "inter_chunk_latency": "ms",
    "output_token_throughput": "tokens/sec",
    "output_token_throughput_per_user": "tokens/sec/user",
    "output_sequence_length": "tokens",
    "output_token_count": "tokens",
    "input_sequence_length": "tokens",
    "total_output_tokens": "tokens",
    "total_osl": "tokens",
    "total_isl": "tokens",
    "benchmark_duration": "sec",
    "goodput": "requests/sec",
    "good_request_count": "requests",
}
# Metrics that objectives may bound from above: AIPerf's name, and the value for one request; None if it has none.
OBJECTIVES: dict[str, Callable[[RequestRecord], float | None]] = {
    "request_latency": lambda record: record.latency_s * 1e3,
    "time_to_first_token": lambda record: _ms(record.time_to_first_token_s),
    "inter_token_latency": lambda record: _ms(record.time_per_output_token_s),
}
_SHORT = {"e2e": "request_latency", "ttft": "time_to_first_token", "tpot": "inter_token_latency"}


def parse_objectives(texts: Sequence[str]) -> dict[str, float]:
    """Return objectives in ms from `time_to_first_token:200`, or `ttft:200`. Raises BenchError."""
    objectives: dict[str, float] = {}
    for text in texts:
        name, _, limit = text.partition(":")
        try:
            objectives |= named_objectives({name: float(limit)}, text)
        except ValueError:
            raise _no_objective(text) from None
    return objectives


def named_objectives(limits: Mapping[str, float], text: str = "") -> dict[str, float]:
    """Return limits in ms by the metrics' names. text: as written by the user. Raises BenchError."""
    for name, limit in limits.items():
        if _SHORT.get(name, name) not in OBJECTIVES or not 0 < limit < math.inf:
            raise _no_objective(text or f"{name}:{limit:g}")
    return {_SHORT.get(name, name): float(limit) for name, limit in limits.items()}


def _no_objective(text: str) -> BenchError:
    fix = f"write NAME:MILLISECONDS with one of {', '.join([*_SHORT, *OBJECTIVES])}"
    return BenchError(f"`{text}` is not an objective", "--goodput", fix)


def is_good(record: RequestRecord, objectives: Mapping[str, float]) -> bool:
    """Whether a request succeeded and met every objective, in ms. An objective without a value counts as met."""
    values = ((OBJECTIVES[name](record), limit) for name, limit in objectives.items())
    return not record.error and all(value is None or value <= limit for value, limit in values)


def load_metrics(records: Sequence[RequestRecord], objectives: Mapping[str, float]) -> dict[str, Metric]:
    """Return the metrics of a load by name: distributions and totals.

    Failed requests are counted but excluded from all other metrics.
    """
    done = [record for record in records if not record.error]
    distributions = {name: distribution(UNITS[name], values) for name, values in _samples(done).items() if values}
    totals = _totals(records, done)
    if objectives:
        good = sum(is_good(record, objectives) for record in records)
        totals |= {"good_request_count": good, "goodput": _rate(good, totals["benchmark_duration"])}
    return {**distributions, **{name: Total(UNITS[name], float(value)) for name, value in totals.items()}}


def _samples(done: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Return the samples of each metric: one per request, except for the gaps between tokens."""
    per_token = [_ms(record.time_per_output_token_s) for record in done]
    lengths = [float(len(record.token_times_s)) for record in done if record.token_times_s]
    return {
        "request_latency": [record.latency_s * 1e3 for record in done],
        "time_to_first_token": _known(_ms(record.time_to_first_token_s) for record in done),
        "time_to_second_token": [record.gaps_s[0] * 1e3 for record in done if record.gaps_s],
        "inter_token_latency": _known(per_token),
        "inter_chunk_latency": [gap * 1e3 for record in done for gap in record.gaps_s],
        "output_token_throughput_per_user": [1e3 / value for value in per_token if value],
        "output_sequence_length": lengths,
        "output_token_count": lengths,
        "input_sequence_length": [float(record.input_tokens) for record in done if record.input_tokens],
    }


def _totals(records: Sequence[RequestRecord], done: Sequence[RequestRecord]) -> dict[str, float]:
    """Return the totals over the whole load."""
    tokens = sum(len(record.token_times_s) for record in done)
    duration = duration_s(records)
    totals = {
        "request_count": float(len(done)),
        "error_request_count": float(len(records) - len(done)),
        "benchmark_duration": duration,
        "request_throughput": _rate(len(done), duration),
    }
    if tokens:
        totals |= {"total_output_tokens": tokens, "total_osl": tokens, "total_isl": sum(r.input_tokens for r in done)}
        totals["output_token_throughput"] = _rate(tokens, duration)
    return totals


def duration_s(records: Sequence[RequestRecord]) -> float:
    """Return the seconds from the first request's due time to the last one's end."""
    if not records:
        return 0.0
    return max(record.ended_s for record in records) - min(record.due_s for record in records)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


@dataclass(frozen=True)
class RequestRecord:
    """One request. Times are seconds from the start of the load.

    due_s: when it was to be sent. sent_s: when it was sent; later than due if the sender or the server was late.
    token_times_s: when each output token arrived; tokens that arrived together share one time. error: why it failed.
    reused_tokens: prompt tokens found in a cache. restored_tokens: those of them found in host memory.
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
        """Latency from the due time, which includes waiting for other requests (no coordinated omission)."""
        return self.ended_s - self.due_s

    @property
    def service_s(self) -> float:
        """Latency from the time of sending, which hides a late sender."""
        return self.ended_s - self.sent_s

    @property
    def time_to_first_token_s(self) -> float | None:
        """Time from the due time; None if no token arrived."""
        return self.token_times_s[0] - self.due_s if self.token_times_s else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times between consecutive output tokens."""
        pairs = zip(self.token_times_s, self.token_times_s[1:], strict=False)
        return tuple(after - before for before, after in pairs)

    @property
    def time_per_output_token_s(self) -> float | None:
        """The mean gap; None for fewer than two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None


def shifted(record: RequestRecord, seconds: float) -> RequestRecord:
    """Return a record shifted to a load that started `seconds` later."""
    times = tuple(moment + seconds for moment in record.token_times_s)
    moments = {name: getattr(record, name) + seconds for name in ("due_s", "sent_s", "ended_s")}
    return replace(record, token_times_s=times, **moments)


def joined(rounds: Sequence[Sequence[RequestRecord]]) -> list[RequestRecord]:
    """Return the records of several loads as one, each starting where the previous one ended."""
    joined_records: list[RequestRecord] = []
    for records in rounds:
        begin = max((record.ended_s for record in joined_records), default=0.0)
        joined_records += [shifted(record, begin) for record in records]
    return joined_records


@dataclass(frozen=True)
class RequestTimes:
    """A request in a report. Times are ms from the start of the load. error: why it failed."""

    due_ms: float
    sent_ms: float
    ended_ms: float
    token_ms: tuple[float, ...]
    input_tokens: int
    error: str


def request_times(record: RequestRecord) -> RequestTimes:
    """Return a record in the form of a report."""
    tokens = tuple(moment * 1e3 for moment in record.token_times_s)
    moments = (record.due_s * 1e3, record.sent_s * 1e3, record.ended_s * 1e3)
    return RequestTimes(*moments, tokens, record.input_tokens, record.error)


def record_of(request: RequestTimes) -> RequestRecord:
    """Return the record of a request in a report."""
    tokens = tuple(moment / 1e3 for moment in request.token_ms)
    moments = (request.due_ms / 1e3, request.sent_ms / 1e3, request.ended_ms / 1e3)
    return RequestRecord(*moments, tokens, request.input_tokens, request.error)
