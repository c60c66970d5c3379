"""What the inputs of a served language model say about a request's turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trtkit.deployment.triton.backend.llm_request import Defaults, read_asks
from trtkit.errors import RequestError
from trtkit.llm.scheduler import SchedulingParams

DEFAULTS = Defaults(16, lambda _: [])


def scheduling(**inputs: Any) -> SchedulingParams:
    arrays = {"text_input": np.array([[b"Hi"]], object), **inputs}
    return read_asks(arrays, DEFAULTS)[0].scheduling


def test_a_request_says_its_priority_user_and_deadline() -> None:
    assert scheduling() == SchedulingParams()
    own = {"priority": np.array([[-2]], np.int32), "user": np.array([[b"alice"]], object)}
    assert scheduling(**own, deadline_s=np.array([[2.5]], np.float32)) == SchedulingParams(-2, "alice", 2.5)


def test_a_deadline_that_has_passed_is_refused() -> None:
    with pytest.raises(RequestError, match="a deadline of -1 s has passed"):
        scheduling(deadline_s=np.array([[-1.0]], np.float32))
