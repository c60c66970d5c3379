"""`LLM` on a real bundle of a tiny model: many prompts, streams, stops, samples, beams, guides."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support import tiny_llm
from tests.support.tiny_llm import GREEDY, PROMPTS
from trtkit import LLM, SamplingParams
from trtkit.errors import GenerationError
from trtkit.llm import PromptsError, prepare_prompts, read_prompts, read_text_bundle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def hf(llm_bundle: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(f"{llm_bundle}-hf").eval()


def test_answers_are_those_of_transformers(llm: LLM, hf: Any) -> None:
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
        ids = tiny_llm.tokenizer()(prompt, return_tensors="pt").input_ids
        expected = hf.generate(ids, do_sample=False, max_new_tokens=12, attention_mask=torch.ones_like(ids))
        answer = output.outputs[0]
        assert list(answer.token_ids) == expected[0, ids.shape[1] :].tolist()
        assert output.prompt == prompt
        assert answer.text == tiny_llm.tokenizer().decode(answer.token_ids, skip_special_tokens=True)


def test_answers_without_settings_are_greedy_as_those_of_the_command(llm: LLM) -> None:
    plain = llm.generate(PROMPTS[0])[0].outputs[0]
    greedy = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=128))[0].outputs[0]
    assert plain.token_ids == greedy.token_ids


def test_prompts_of_a_file_are_answered_by_their_own_settings(llm: LLM, llm_bundle: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": PROMPTS[0], "id": "a", "max_tokens": 3}, {"prompt": PROMPTS[1]}, {"prompt_token_ids": [5, 6]}]
    file.write_text("\n".join(map(json.dumps, lines)))
    prompts = prepare_prompts(read_prompts(file), read_text_bundle(llm_bundle), {"max_tokens": 5}, is_chat=False)
    outputs = llm.generate(prompts)
    assert [output.request_id for output in outputs] == ["0", "1", "2"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5, 5]
    alone = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=5))[0]
    assert outputs[1].outputs[0].token_ids == alone.outputs[0].token_ids


def test_a_problem_of_a_prepared_prompt_names_its_line(llm_bundle: Path, tmp_path: Path) -> None:
    file, model = tmp_path / "prompts.jsonl", read_text_bundle(llm_bundle)
    file.write_text('{"prompt": "the"}\n{"prompt": "the", "num_beams": 3}')
    prompts = prepare_prompts(read_prompts(file), model, {})
    with LLM(model, runtime="reference", slots=2) as llm:
        for answer in (lambda: llm.generate(prompts), lambda: llm.stream(prompts[1])):
            with pytest.raises(PromptsError) as raised:
                answer()
            assert [problem.where for problem in raised.value.problems] == [f"{file}:2: num_beams"]
        assert not llm.frontend.engine.has_work
    file.write_text('{"prompt": "the", "num_beams": 5}\n{"prompt": "the", "guided_regex": "("}')
    with pytest.raises(PromptsError) as raised:
        prepare_prompts(read_prompts(file), model, {})
    assert [problem.where for problem in raised.value.problems] == [f"{file}:1: num_beams", f"{file}:2: guided_regex"]


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


def test_streams_in_turn_with_each_other_and_with_batches_lose_nothing(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = ["Gravity", "The capital of France"]
    expected = [output.outputs[0].text for output in llm.generate(prompts, params)]
    texts = ["", ""]
    for deltas in itertools.zip_longest(*(llm.stream(prompt, params) for prompt in prompts)):
        for number, delta in enumerate(deltas):
            texts[number] += delta.text if delta is not None else ""
    assert texts == expected
    pieces = llm.stream(prompts[0], params)
    text = next(pieces).text
    assert llm.generate(prompts[1], params)[0].outputs[0].text == expected[1]
    assert text + "".join(delta.text for delta in pieces) == expected[0]


def test_answers_in_turn_with_each_other_are_each_callers_own(llm: LLM) -> None:
    prompts = [
        [llm.frontend.text.prepare(f"{word} {number}", replace(GREEDY, max_tokens=4 + number)) for number in range(3)]
        for word in ("a", "b")
    ]
    first, second = (llm.answers(some) for some in prompts)
    outputs = [[next(first)], list(second)]
    outputs[0] += first
    assert [sorted(str(output.prompt) for output in some) for some in outputs] == [
        ["a 0", "a 1", "a 2"],
        ["b 0", "b 1", "b 2"],
    ]


def test_threads_share_a_model(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [f"number {number}" for number in range(8)]
    expected = [llm.generate(prompt, params)[0].outputs[0].token_ids for prompt in prompts]
    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda prompt: llm.generate(prompt, params)[0].outputs[0].token_ids, prompts * 3))
    assert got == expected * 3


def test_a_closed_model_says_so(llm_bundle: Path) -> None:
    with LLM(llm_bundle) as closed:
        pieces = closed.stream("Gravity")
        next(pieces)
    closed.close()
    with pytest.raises(GenerationError, match="the model is closed"):
        closed.generate("Gravity")
    with pytest.raises(GenerationError, match="closed before its answers were complete"):
        list(pieces)
    assert repr(closed) == f"LLM('{llm_bundle}': closed)"


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
def test_speculation_gives_the_same_answers(
    options: dict[str, Any], llm: LLM, llm_bundle: Path, tmp_path: Path
) -> None:
    if "draft" in options:
        options = {**options, "draft": tiny_llm.build(tmp_path, "draft", num_hidden_layers=1)}
    expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]
    with LLM(llm_bundle, runtime="reference", **options) as guessing:
        assert [output.outputs[0].token_ids for output in guessing.generate(PROMPTS, GREEDY)] == expected
        assert guessing.statistics.drafted_tokens > 0


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
