"""`LLM` refuses invalid prompts, settings, options and bundles without harming other requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support import tiny_llm
from tests.support.tiny_llm import GREEDY, PROMPTS
from trtkit import LLM, SamplingParams
from trtkit.errors import BundleError, GenerationError, RequestError
from trtkit.llm import PromptsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", {}, "the prompt has no tokens"),
        ([], {}, "the prompt has no tokens"),
        ([1.5], {}, "`1.5` is not a token id: prompts are whole numbers"),
        ([True], {}, "`True` is not a token id: prompts are whole numbers"),
        ({"prompt_token_ids": 5}, {}, "a prompt cannot be a int"),
        ("a \ud800 b", {}, r"prompt: character 2 is half of a surrogate pair, U\+D800: not valid text"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, {}, r"surrogate pair, U\+DFFF"),
        ("x" * 65_537, {}, "the prompt has 65537 characters; at most 65536 are read"),
        ({"messages": [{"role": "user", "content": "x" * 70_000}]}, {}, "at most 65536 are read"),
        ({"prompt": "a", "prompt_token_ids": [1]}, {}, "a prompt takes exactly one kind of input; got 2"),
        ({"messages": [{"content": 1}]}, {}, "the chat template does not take these messages"),
        ([5] * 97, {}, "the prompt has 97 tokens; a slot holds 96"),
        ("the", {"num_beams": 5}, "5 beams need 5 slots; the engine has 4"),
        ("the", {"stop_token_ids": (320,)}, "token 320 is not in the vocabulary"),
        ("the", {"guided_json": {"type": "nonsense"}}, "guided_json"),
        (
            "the",
            {"guided_json": {"type": "object", "properties": {"a": False}, "required": ["a"]}},
            "no JSON value satisfies it",
        ),
    ],
)
def test_bad_requests_are_refused_and_harm_nobody(prompt: Any, params: dict[str, Any], message: str, llm: LLM) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate([PROMPTS[0], prompt], SamplingParams(max_tokens=4, **params))
    assert not llm.frontend.jobs
    assert not llm.frontend.engine.has_work
    assert llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].finish_reason


def test_every_problem_of_every_prompt_is_told_before_anything_runs(llm: LLM) -> None:
    outputs: list[Any] = []
    params = [GREEDY, GREEDY, SamplingParams(stop_token_ids=(320,), bad_words=((320,),)), SamplingParams(num_beams=5)]
    with pytest.raises(PromptsError) as raised:
        llm.generate([PROMPTS[0], [1, 320], PROMPTS[1], PROMPTS[2]], params, on_output=outputs.append)
    assert str(raised.value) == (
        "the prompts cannot be used; nothing was run\n"
        "  prompt 1: token 320 is not in the vocabulary\n"
        "    fix: use 0 to 319\n"
        "  prompt 2: stop_token_ids: token 320 is not in the vocabulary, which ends at 319\n"
        "    fix: give token ids of this model's tokenizer\n"
        "  prompt 2: bad_words: token 320 is not in the vocabulary, which ends at 319\n"
        "    fix: give token ids of this model's tokenizer\n"
        "  prompt 3: num_beams: 5 beams need 5 slots; the engine has 4\n"
        "    fix: use fewer beams, or open the bundle with more slots"
    )
    assert not outputs
    assert not llm.frontend.jobs
    assert not llm.frontend.engine.has_work


def test_a_single_prompt_has_an_error_of_its_own(llm: LLM) -> None:
    for ask in (llm.generate, llm.stream):
        with pytest.raises(RequestError) as raised:
            ask([1, 320], GREEDY)
        assert not isinstance(raised.value, PromptsError)
        assert str(raised.value) == "token 320 is not in the vocabulary\nfix: use 0 to 319"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "0 slots requested; the engine takes 1 to 4"),
        ({"slots": 5}, "5 slots requested; the engine takes 1 to 4"),
        ({"prefill_budget": 0}, "a budget of 0 tokens per step computes nothing"),
        ({"lookup": -1}, "a negative number of tokens to guess"),
        ({"lookup": 2, "draft": "x"}, "`draft` and `lookup` cannot be combined"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str, llm_bundle: Path) -> None:
    with pytest.raises(RequestError, match=message):
        LLM(llm_bundle, runtime="reference", **options)


def test_tensorrt_without_a_gpu_says_so(llm_bundle: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(GenerationError, match="no GPU to run the engine"):
        LLM(llm_bundle, runtime="tensorrt")


def test_a_bundle_whose_weights_changed_is_refused(tmp_path: Path) -> None:
    bundle = tiny_llm.build(tmp_path, "changing")
    tiny_llm.save(tmp_path / "changing-hf", seed=1)
    with pytest.raises(BundleError, match="the source has changed since the bundle was built"):
        LLM(bundle, runtime="reference")
