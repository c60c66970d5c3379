"""Requests that are invalid, too long or fail do not harm the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.generation import SLOTS, Asked, alone, engine, is_clean, run, settings
from trtkit.errors import GenerationError, RequestError
from trtkit.llm.engine import Request


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "r: the prompt has no tokens"),
        ([5] * 65, {}, "r: the prompt has 65 tokens; a slot holds 64"),
        ([5, 67], {}, "r: token 67 is not in the vocabulary"),
        ([-1], {}, "r: token -1 is not in the vocabulary"),
        ([5], {"num_beams": 5}, "num_beams: 5 beams need 5 slots; the engine has 4"),
        ([5], {"prompt_logprobs": 1}, "prompt_logprobs: the engine outputs logits of the last token only"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(prompt: list[int], params: dict[str, Any], message: str) -> None:
    tested = engine(SLOTS)
    with pytest.raises(RequestError) as caught:
        tested.submit(Request("r", prompt, settings(**params)))
    assert message in str(caught.value)
    assert is_clean(tested)


def test_a_full_queue_refuses_and_keeps_what_waits() -> None:
    tested = engine(1, max_queue=2)
    for index in range(2):
        tested.submit(Request(str(index), [5], settings(max_tokens=2, temperature=0)))
    with pytest.raises(GenerationError, match="2 requests are already waiting"):
        tested.submit(Request("more", [5], settings(max_tokens=2)))
    assert run(tested, []).keys() == {"0", "1"}


def test_a_failing_request_leaves_the_others_unharmed() -> None:
    def broken(input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] > 5:
            raise ValueError("no more")
        return scores

    tested = engine(SLOTS)
    good = Asked((5, 6, 7), (("max_tokens", 10), ("temperature", 1.0), ("seed", 1)))
    bad = Request("bad", [8, 9], settings(max_tokens=10, temperature=0, logits_processors=(broken,), ignore_eos=True))
    found = run(tested, [good.request("good"), bad])
    assert tuple(found["good"].token_ids) == alone(good)
    assert (found["bad"].reason, len(found["bad"].token_ids)) == ("error", 4)
    assert "no more" in str(found["bad"].stop_reason)
    assert is_clean(tested)


def test_a_prompt_fills_the_cache_to_its_last_place() -> None:
    tested = engine(2)
    prompt = [3 + index % 60 for index in range(64)]
    found = run(tested, [Request("full", prompt, settings(max_tokens=5, temperature=0, ignore_eos=True))])["full"]
    assert (len(found.token_ids), found.reason) == (1, "length")
