"""What a job reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtkit.jobs.json_form import from_json, to_json


@dataclass(frozen=True)
class Phase:
    """A phase of the work has begun."""

    name: str


@dataclass(frozen=True)
class Step:
    """A step that was applied to a model; the manifest records them."""

    name: str
    detail: str
    seconds: float


@dataclass(frozen=True)
class Progress:
    """How much of the current phase is done. total: 0 if unknown. detail: what is under way, for people.

    rate: how fast it goes, for people.
    """

    name: str
    done: int
    total: int
    detail: str = ""
    rate: str = ""


@dataclass(frozen=True)
class Verdict:
    """The result of a job so far, of the job's own type; it stands even if the job then dies."""

    report: object


Event = Phase | Step | Progress | Verdict
Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Take an event and do nothing."""


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
