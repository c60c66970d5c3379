"""What a request's annotations say about its turn, and what a worker is told about schedules."""

from __future__ import annotations

import json

import pytest

from trtkit.deployment.dynamo.options import worker_parser
from trtkit.deployment.dynamo.requests import read_scheduling
from trtkit.errors import RequestError
from trtkit.llm.scheduler import SchedulingParams
from trtkit.serving_options import ServingOptions


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


def test_a_worker_is_told_all_options_in_one_argument() -> None:
    options = ServingOptions.for_server(weight_budget_gib="auto", schedule="mlfq", shares={"a": 3.0, "*": 0.5}, slots=2)
    line = options.to_json()
    assert worker_parser().parse_args(["b", "--options", line]).serving == options
    assert json.loads(line) == {
        "max_queue": 512, "schedule": "mlfq", "shares": {"a": 3.0, "*": 0.5}, "slots": 2, "weight_budget_gib": "auto",
    }  # fmt: skip


@pytest.mark.parametrize("line", ['{"slot": 2}', "[]", "2"])
def test_a_worker_refuses_what_are_not_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        worker_parser().parse_args(["b", "--options", line])
    assert "--options: invalid" in capsys.readouterr().err
