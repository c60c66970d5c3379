"""`LLM` and `AsyncLLM` on a real bundle of a tiny model: many prompts, streams, stops, samples, beams, bad input."""

from __future__ import annotations

import asyncio
import gc
import json
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests import tiny_llm
from trtkit import LLM, AsyncLLM, SamplingParams
from trtkit.config import load_config
from trtkit.engine.build import build_bundle
from trtkit.errors import BundleError, GenerationError, RequestError
from trtkit.jobs.runner import new_runner
from trtkit.runtime.llm import EngineThread
from trtkit.runtime.llm.frontend import Frontend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GREEDY = SamplingParams(temperature=0, max_tokens=12)
PROMPTS = ["the quick brown", "do not go gentle into", "1, 2, 3", "the lazy dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llm")


def build(folder: Path, name: str, **changes: int) -> Path:
    """Build a bundle that gives all logits."""
    tiny_llm.save(folder / f"{name}-hf", **changes)
    sizes = "max_batch_size: 4, max_sequence_length: 96, max_prefill_length: 16, logits: all"
    (folder / f"{name}.yaml").write_text(f"source: {{hf: {folder}/{name}-hf}}\nllm: {{{sizes}}}\n")
    return build_bundle(load_config(str(folder / f"{name}.yaml")), folder / name, new_runner()).bundle.path


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    return build(folder, "tiny")


@pytest.fixture(scope="module")
def llm(bundle: Path) -> Iterator[LLM]:
    with LLM(bundle, runtime="reference") as opened:
        yield opened


@pytest.fixture(scope="module")
def hf(folder: Path, bundle: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(f"{bundle}-hf").eval()


def test_answers_are_those_of_transformers(llm: LLM, hf: Any) -> None:
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
        ids = tiny_llm.tokenizer()(prompt, return_tensors="pt").input_ids
        expected = hf.generate(ids, do_sample=False, max_new_tokens=12, attention_mask=torch.ones_like(ids))
        answer = output.outputs[0]
        assert list(answer.token_ids) == expected[0, ids.shape[1] :].tolist()
        assert output.prompt == prompt
        assert answer.text == tiny_llm.tokenizer().decode(answer.token_ids, skip_special_tokens=True)


def test_a_stream_is_the_answer_in_pieces(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0]
    deltas = list(llm.stream(PROMPTS[0], GREEDY))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert tuple(token for delta in deltas for token in delta.token_ids) == whole.token_ids
    assert [delta.output is None for delta in deltas] == [True] * (len(deltas) - 1) + [False]
    assert deltas[-1].finish_reason == whole.finish_reason


def test_leaving_a_stream_early_ends_its_request(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    next(stream)
    stream.close()
    assert not llm.frontend.jobs
    assert not llm.frontend.engine.has_work


def test_a_stop_string_cuts_the_text_and_ends_the_answer(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    whole = llm.generate(PROMPTS[1], params)[0].outputs[0]
    stop = whole.text[5:8]
    at = whole.text.index(stop)
    cut = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=stop))[0].outputs[
        0
    ]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (whole.text[:at], "stop", stop)
    assert len(cut.token_ids) < len(whole.token_ids)
    kept = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
    assert llm.generate(PROMPTS[1], kept)[0].outputs[0].text == whole.text[: at + len(stop)]


def test_a_stop_token_ends_the_answer_without_its_text(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0].outputs[0]
    token = whole.token_ids[6]
    first = whole.token_ids.index(token)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop_token_ids=(token,))
    cut = llm.generate(PROMPTS[0], params)[0].outputs[0]
    assert (cut.token_ids, cut.stop_reason) == (whole.token_ids[: first + 1], token)
    assert cut.text == tiny_llm.tokenizer().decode(whole.token_ids[:first])


def test_samples_differ_and_a_seed_repeats_them(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=11, max_tokens=10, temperature=1.5)
    first, second = (llm.generate(PROMPTS[0], params)[0] for _ in range(2))
    assert [item.token_ids for item in first.outputs] == [item.token_ids for item in second.outputs]
    assert len({item.token_ids for item in first.outputs}) == 3
    assert [item.index for item in first.outputs] == [0, 1, 2]
    alone = llm.generate(PROMPTS[0], SamplingParams(seed=11, max_tokens=10, temperature=1.5))[0].outputs[0]
    assert alone.token_ids == first.outputs[0].token_ids


def test_beams_come_best_first_with_their_log_probability(llm: LLM, hf: Any) -> None:
    output = llm.generate(PROMPTS[2], SamplingParams(num_beams=4, n=3, max_tokens=8))[0]
    ids = list(output.prompt_token_ids)
    scores = []
    for answer in output.outputs:
        with torch.inference_mode():
            logs = hf(torch.tensor([[*ids, *answer.token_ids]])).logits[0].log_softmax(-1)
        found = sum(float(logs[len(ids) - 1 + place, token]) for place, token in enumerate(answer.token_ids))
        assert answer.cumulative_logprob == pytest.approx(found, abs=1e-3)
        scores.append(found / len(answer.token_ids))
    assert scores == sorted(scores, reverse=True)


def test_a_conversation_goes_through_the_chat_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    output = llm.chat(messages, GREEDY)[0]
    assert list(output.prompt_token_ids) == tiny_llm.tokenizer().apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    both = llm.chat([messages, [{"role": "user", "content": "the fox"}]], GREEDY)
    assert both[0].outputs[0].token_ids == output.outputs[0].token_ids
    assert len(both) == 2


def test_guided_json_is_valid(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
    schema["additionalProperties"] = False
    params = SamplingParams(temperature=1, seed=0, max_tokens=60, guided_json=schema)
    answer = llm.generate(PROMPTS[0], params)[0].outputs[0]
    assert isinstance(json.loads(answer.text)["a"], int)
    assert answer.finish_reason == "stop"


def test_metrics_count_what_was_done(llm: LLM) -> None:
    prompt = "say once more: " * 4
    first, again = (llm.generate(prompt, GREEDY)[0].metrics for _ in range(2))
    assert first.prompt_tokens == again.prompt_tokens > 16
    assert again.reused_tokens == first.prompt_tokens - 1
    assert 0 < first.ttft_s < first.e2e_s
    assert first.tpot_s == pytest.approx((first.e2e_s - first.ttft_s) / (first.output_tokens - 1))


@pytest.mark.parametrize("options", [{"lookup": 3}, {"draft": "draft", "draft_tokens": 2}], ids=["lookup", "draft"])
def test_speculation_gives_the_same_answers(options: dict[str, Any], llm: LLM, bundle: Path, folder: Path) -> None:
    if "draft" in options:
        options = {**options, "draft": build(folder, "draft", num_hidden_layers=1)}
    expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    with LLM(bundle, runtime="reference", **options) as guessing:
        assert [output.outputs[0].token_ids for output in guessing.generate(PROMPTS, GREEDY)] == expected
        assert guessing.statistics.drafted_tokens > 0


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("", {}, "the prompt has no tokens"),
        ([], {}, "the prompt has no tokens"),
        ([1.5], {}, "a prompt's tokens are whole numbers, `1.5` is not one"),
        ([True], {}, "a prompt's tokens are whole numbers, `True` is not one"),
        ({"prompt_token_ids": 5}, {}, "a prompt cannot be a int"),
        ("a \ud800 b", {}, r"prompt: character 2 is half of a surrogate pair, U\+D800: not valid text"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, {}, r"surrogate pair, U\+DFFF"),
        ("x" * 65_537, {}, "the prompt has 65537 characters; at most 65536 are read"),
        ({"messages": [{"role": "user", "content": "x" * 70_000}]}, {}, "at most 65536 are read"),
        ({"prompt": "a", "prompt_token_ids": [1]}, {}, "a prompt is one thing, 2 are given"),
        ({"messages": [{"content": 1}]}, {}, "the chat template does not take these messages"),
        ([5] * 97, {}, "the prompt has 97 tokens, a slot holds 96"),
        ("the", {"num_beams": 5}, "5 beams need as many slots, there are 4"),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "0 slots asked, the engine has 1 to 4"),
        ({"slots": 5}, "5 slots asked, the engine has 1 to 4"),
        ({"prefill_budget": 0}, "a budget of 0 tokens a step computes nothing"),
        ({"lookup": -1}, "a negative number of tokens to guess"),
        ({"lookup": 2, "draft": "x"}, "both `draft` and `lookup` are given"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str, bundle: Path) -> None:
    with pytest.raises(RequestError, match=message):
        LLM(bundle, runtime="reference", **options)


def test_tensorrt_without_a_gpu_says_so(bundle: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(GenerationError, match="no GPU is here to run the engine"):
        LLM(bundle, runtime="tensorrt")


def test_a_bundle_whose_weights_changed_is_refused(folder: Path) -> None:
    bundle = build(folder, "changing")
    tiny_llm.save(folder / "changing-hf", seed=1)
    with pytest.raises(BundleError, match="the source has changed since the bundle was built"):
        LLM(bundle, runtime="reference")


def test_an_interrupted_batch_leaves_the_engine_empty(llm: LLM) -> None:
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (2, 40, 40)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS[:3], params, on_output=interrupt)
    assert not llm.frontend.engine.has_work


async def collect(llm: AsyncLLM, prompt: str, params: SamplingParams) -> tuple[str, Any]:
    """Return the streamed text and the last delta's output."""
    text, output = "", None
    async for delta in llm.generate(prompt, params):
        text += delta.text
        output = delta.output or output
    return text, output


def test_coroutines_share_one_batch(llm: LLM, bundle: Path) -> None:
    expected = [output.outputs[0].text for output in llm.generate(PROMPTS * 3, GREEDY)]

    async def main() -> list[tuple[str, Any]]:
        running = AsyncLLM(bundle, runtime="reference")
        try:
            return await asyncio.gather(*(collect(running, prompt, GREEDY) for prompt in PROMPTS * 3))
        finally:
            running.close()

    found = asyncio.run(main())
    assert [text for text, _ in found] == expected
    assert [output.outputs[0].text for _, output in found] == expected


def test_coroutines_that_fail_or_leave_harm_nobody(llm: LLM, bundle: Path) -> None:
    expected = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    long = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)

    async def leave(running: AsyncLLM) -> None:
        async for _ in running.generate(PROMPTS[1], long):
            break

    async def main() -> list[Any]:
        running = AsyncLLM(bundle, runtime="reference")
        try:
            aborted = asyncio.create_task(collect(running, PROMPTS[2], long))
            tasks = [collect(running, PROMPTS[0], GREEDY), collect(running, "", GREEDY), leave(running), aborted]
            asyncio.get_running_loop().call_later(0.05, aborted.cancel)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            return [*found, await collect(running, PROMPTS[0], GREEDY)]
        finally:
            running.close()

    good, empty, left, aborted, after = asyncio.run(main())
    assert good[0] == after[0] == expected
    assert isinstance(empty, RequestError)
    assert left is None
    assert isinstance(aborted, asyncio.CancelledError)


def test_an_aborted_request_ends_with_what_it_has(bundle: Path) -> None:
    async def main() -> Any:
        running = AsyncLLM(bundle, runtime="reference")
        try:
            last = None
            params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
            async for delta in running.generate(PROMPTS[0], params, request_id="mine"):
                await running.abort("mine")
                last = delta
            return last
        finally:
            running.close()

    last = asyncio.run(main())
    gc.collect()
    assert last.finish_reason == "abort"
    assert 1 <= len(last.output.outputs[0].token_ids) < 90


def test_guided_beams_go_on_with_what_the_guide_allows(llm: LLM) -> None:
    params = SamplingParams(num_beams=4, n=4, max_tokens=20, guided_choice=("fox", "dog", "night"))
    output = llm.generate(PROMPTS[0], params)[0]
    texts = [answer.text for answer in output.outputs]
    assert set(texts) == {"fox", "dog", "night"}
    assert {answer.finish_reason for answer in output.outputs} == {"stop"}


def test_beams_without_any_allowed_token_end_with_the_reason(llm: LLM) -> None:
    params = SamplingParams(num_beams=2, max_tokens=8, guided_choice=("fox",), bad_words=("fox", "f", "fo"))
    answer = llm.generate(PROMPTS[0], params)[0].outputs[0]
    assert answer.finish_reason == "error"
    assert "no token is allowed" in str(answer.stop_reason)
    assert not llm.frontend.engine.has_work


def test_a_request_that_takes_long_to_prepare_delays_nobody_and_can_be_aborted(
    bundle: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    guided = SamplingParams(guided_regex="[a-z]+", max_tokens=4)
    is_free = threading.Event()
    prepare = Frontend.prepare

    def slow(self: Frontend, prompt: Any, params: SamplingParams) -> Any:
        if params.guided:
            assert is_free.wait(60)
        return prepare(self, prompt, params)

    monkeypatch.setattr(Frontend, "prepare", slow)
    engine = EngineThread(bundle, runtime="reference", max_queue=3)
    news: dict[str, queue.SimpleQueue[Any]] = {name: queue.SimpleQueue() for name in "abcde"}
    try:
        for name in "abc":
            engine.submit(PROMPTS[1], guided, name, news[name].put)
        engine.submit(PROMPTS[0], GREEDY, "d", news["d"].put)
        assert str(news["d"].get(timeout=60)).startswith("3 requests are waiting already")
        engine.abort("a")
        assert str(news["a"].get(timeout=60)).startswith("a: the request was aborted")
        engine.submit(PROMPTS[0], GREEDY, "e", news["e"].put)
        text = ""
        while (delta := news["e"].get(timeout=60)).output is None:
            text += delta.text
        assert text + delta.text == wanted
        is_free.set()
        assert news["b"].get(timeout=60).token_ids
    finally:
        is_free.set()
        engine.close()
    assert news["a"].empty()
