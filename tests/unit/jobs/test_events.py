from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from trtkit.jobs.events import Event, Phase, Progress, Step, Verdict, event_from_json, event_to_json


@dataclass(frozen=True)
class Result:
    error: float


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (Phase("parse"), {"event": "phase", "name": "parse"}),
        (Step("fold", "3 nodes", 0.5), {"event": "step", "name": "fold", "detail": "3 nodes", "seconds": 0.5}),
        (
            Progress("measure", 1, 4, "batch 8"),
            {"event": "progress", "name": "measure", "done": 1, "total": 4, "detail": "batch 8", "rate": ""},
        ),
        (Verdict(Result(1.0)), {"event": "verdict", "report": {"error": 1.0}}),
    ],
)
def test_events_go_through_json(event: Event, data: dict[str, object]) -> None:
    assert event_to_json(event) == data
    assert event_from_json(json.loads(json.dumps(data)), Result) == event
