"""Events of a running job, and the steps applied to a model, which the manifest records."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trtkit.jobs.json_form import from_json, to_json


@dataclass(frozen=True)
class Phase:
    """Start of a phase of the work."""

    name: str


@dataclass(frozen=True)
class Step:
    """A step that was applied to a model; the manifest records them."""

    name: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Progress:
    """Progress of the current phase. total: 0 if unknown. detail: the current item, for people.

    rate: the speed, for people.
    """

    name: str
    done: int
    total: int
    detail: str = ""
    rate: str = ""


@dataclass(frozen=True)
class Verdict:
    """A job's result so far, of the job's result type; it remains valid even if the job then dies."""

    report: object


Event = Phase | Step | Progress | Verdict
Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Ignore an event."""


_KINDS: dict[str, type[Event]] = {kind.__name__.lower(): kind for kind in (Phase, Step, Progress)}


def event_to_json(event: Event) -> dict[str, Any]:
    """Return the event as a JSON object: its kind under `event`, and its fields."""
    return {"event": type(event).__name__.lower(), **to_json(event)}


def event_from_json(data: dict[str, Any], result: type) -> Event:
    """Return the event that `event_to_json` wrote. result: the type of the job's result."""
    if data["event"] == "verdict":
        return Verdict(from_json(result, data["report"]))
    fields = dict(data)
    return _KINDS[fields.pop("event")](**fields)


T = TypeVar("T")


@dataclass
class Steps:
    """The steps so far; each is reported when it ends."""

    report: Listener
    done: list[Step] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)

    def add(self, name: str, detail: str) -> None:
        """Record the step that just ended."""
        now = time.perf_counter()
        step = Step(name, detail, round(now - self._started, 3))
        self._started = now
        self.done.append(step)
        self.report(step)

    def counted(self, name: str, total: int = 0) -> Callable[..., None]:
        """Return a function that reports how many items are done, of `total` or of its second argument."""

        def report(done: int, of: int = total) -> None:
            self.report(Progress(name, done, of))

        return report

    def track(self, name: str, items: Sequence[T]) -> Iterator[T]:
        """Yield the items and report progress."""
        report = self.counted(name, len(items))
        for index, item in enumerate(items):
            yield item
            report(index + 1)
