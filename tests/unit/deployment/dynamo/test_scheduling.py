"""What a request's annotations say about its turn, and what a worker is told about schedules."""

from __future__ import annotations

import pytest

from trtkit.deployment.dynamo.requests import read_scheduling
from trtkit.deployment.dynamo.worker_options import worker_parser
from trtkit.errors import RequestError
from trtkit.runtime.scheduling import SchedulingParams


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (None, SchedulingParams()),
        (["token_ids", "formatted_prompt"], SchedulingParams()),
        (["user:alice:2", "priority:-1", "deadline_s:2.5", "other:7"], SchedulingParams(-1, "alice:2", 2.5)),
    ],
)
def test_annotations_are_read(annotations: list[str] | None, expected: SchedulingParams) -> None:
    assert read_scheduling({"token_ids": [1], "annotations": annotations}) == expected


@pytest.mark.parametrize(
    ("annotation", "said"),
    [("priority:high", "`high` is not a number"), ("deadline_s:0", "a deadline of 0 s has passed")],
)
def test_annotations_that_make_no_sense_are_refused(annotation: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        read_scheduling({"annotations": [annotation]})


@pytest.mark.parametrize(("text", "budget"), [("auto", "auto"), ("0.5", 0.5)])
def test_a_worker_is_told_its_weight_budget(text: str, budget: float | str) -> None:
    assert worker_parser().parse_args(["b", "--weight-budget-gib", text]).weight_budget_gib == budget


def test_a_worker_is_told_the_schedule_and_the_shares() -> None:
    options = worker_parser().parse_args(["b", "--schedule", "mlfq", "--share", "a=3", "--share=*=0.5"])
    assert (options.schedule, dict(options.shares)) == ("mlfq", {"a": 3.0, "*": 0.5})
