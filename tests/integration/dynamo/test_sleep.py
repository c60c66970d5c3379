"""Workers sleep and wake up on requests to their own port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from openai import InternalServerError

from tests.support.dynamo import MODEL, OK, wait_until
from trtkit import SamplingParams

if TYPE_CHECKING:
    from openai import OpenAI

    from tests.support.dynamo import Served
    from trtkit import LLM

PROMPTS = ["do not go gentle", "the sky is", "Paris?"]


def test_requests_go_to_who_is_awake(served: Served, client: OpenAI, local: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=8)
    expected = [output.outputs[0].text for output in local.generate(PROMPTS, greedy)]

    def answers() -> list[str]:
        texts = client.completions.create(model=MODEL, prompt=PROMPTS, max_tokens=8, temperature=0).choices
        return [choice.text for choice in texts]

    assert answers() == expected
    assert served.update(0, "sleep") == OK
    wait_until(lambda: served.known_workers() == 1)
    assert answers() == expected
    assert served.update(1, "sleep") == OK
    assert served.metric("asleep") == 2
    with pytest.raises(InternalServerError, match="503"):
        answers()
    assert not any(member.is_hung(0.1) for member in served.fleet.workers)
    for number in range(2):
        assert served.update(number, "wake_up") == OK
    wait_until(lambda: served.known_workers() == 2)
    assert served.metric("asleep") == 0
    assert answers() == expected
    wait_until(lambda: all(member.is_healthy for member in served.fleet.workers))
