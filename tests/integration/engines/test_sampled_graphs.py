"""CUDA graphs of a step's engine and its sampling, and mistakes planted there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.engines.planted import is_seen
from tests.selection import slow_unless
from tests.support import tiny_llm
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import open_execution
from trtkit.llm.sampling.guides import GuideFactory
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary

if TYPE_CHECKING:
    from tests.simulated_tensorrt import Simulated
    from trtkit.llm.engine import Statistics
    from trtkit.llm.sampling.sampler import LaunchedDraw

ENGINE, STEPS = "trtkit.llm.execution.engine", "trtkit.llm.sampling.kernel.steps"
CALL = "trtkit.llm.execution.call"
SAMPLER, FLIGHT = "trtkit.llm.sampling.sampler", "trtkit.llm.engine.in_flight"
MISTAKES = {
    "a stale address": (
        ENGINE,
        "write(self._stream, self._rows[: len(rows)], rows)",
        "self._rows = self._rows.clone(); write(self._stream, self._rows[: len(rows)], rows)",
    ),
    "a missing wait": (ENGINE, "self._stream.hold_current()", "pass"),
    "a graph without its draw": (ENGINE, "if step.draw is not None:", "if False:"),
    "a graph of another draw": (
        ENGINE,
        "graph = self._graphs.get(step)",
        "graph = ({(key.first, key.rows): kept for key, kept in reversed(self._graphs.items())}"
        ".get((step.first, step.rows)) if step.size == 1 else None)",
    ),
    "a step that runs twice": (
        ENGINE,
        "self._graphs[step] = self._stream.capture(partial(self._compute, step)) if is_capturable else None",
        "self._graphs[step] = self._stream.capture(partial(self._compute, step)); self._graphs[step].replay()",
    ),
    "tokens of other slots": (CALL, "tokens[slots.long()].int()", "tokens[: len(slots)].int()"),
    "positions of the step before": (CALL, '"position_ids": starts,', '"position_ids": starts - 1,'),
    "numbers that are not copied": (STEPS, "self._draw.numbers[rows].copy_", "self._draw.numbers[rows].clone().copy_"),
    "rows of other slots": (STEPS, "slots.int().contiguous()", "torch.arange(len(logits), dtype=torch.int32)"),
    "idle rows that draw": (STEPS, "numbers[:, _UNIFORM] = _LEFT_OUT", "numbers[:, _UNIFORM] = 0.5"),
    "counts of who was there before": (STEPS, "table[slot] = neutral", "pass"),
    "tokens are counted twice": (
        SAMPLER,
        "if self._kernel is not None and not is_counted:",
        "if self._kernel is not None:",
    ),
    "ends that stay barred": (STEPS, "self._end_bars(slots[uses & int(Use.MIN_TOKENS) > 0])", "pass"),
    "the host's tokens are not told": (FLIGHT, "tokens[_place(slots, tokens)] = launched.tokens", "pass"),
    "a launch before the tokens": (FLIGHT, "state.sampler.accept(slots, tokens, is_counted=flight.is_counted)", "pass"),
    "first tokens are not counted": (FLIGHT, "state.sampler.count_drawn(step.slots, launched.tokens)", "True"),
}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 11},
    {"temperature": 1.2, "top_k": 4, "seed": 3, "max_tokens": 9},
    {"temperature": 0, "max_tokens": 7},
    {"temperature": 0, "frequency_penalty": 0.9, "logit_bias": {9: 7.0, 11: 6.5}, "max_tokens": 14},
    {
        "temperature": 0,
        "no_repeat_ngram_size": 2,
        "repetition_penalty": 0.8,
        "presence_penalty": -1.0,
        "max_tokens": 12,
    },
    {"temperature": 0.7, "seed": 1, "min_tokens": 3, "logit_bias": {tiny_llm.END: 9.0}, "max_tokens": 10},
    {"temperature": 0, "frequency_penalty": 0.9, "logit_bias": {9: 7.0, 11: 6.5}, "max_tokens": 14},
    {"temperature": 0, "repetition_penalty": 1.6, "logprobs": 2, "max_tokens": 8},
    {"temperature": 0.8, "seed": 4, "guided_choice": ("the quick brown fox", "do not go gentle"), "max_tokens": 12},
    {"temperature": 0, "frequency_penalty": 2.0, "bad_words": ((9, 9), (12,)), "logit_bias": {9: 30, 11: 30}},
    {"temperature": 0, "max_tokens": 5},
    {"temperature": 0, "frequency_penalty": 2.0, "presence_penalty": 2.0, "logit_bias": {9: 33, 11: 30}},
    {"temperature": 0, "frequency_penalty": 0.9, "logit_bias": {9: 7.0, 11: 6.5}, "max_tokens": 6},
]
LONG, LAST = (3, 6), (10, 11)  # prompts that others decode beside; requests that run alone, in one slot


def run(bundle: Bundle, runtime: Any, *, kernel: bool) -> tuple[dict[str, Any], Statistics]:
    """Return tokens and log probabilities of requests that come one after the other, and what was counted."""
    execution = open_execution(bundle, runtime, 4)
    engine = LLMEngine(execution, EngineOptions(token_budget=8, kernel=kernel, overlap=kernel))
    guides = GuideFactory(tiny_llm.tokenizer(), (tiny_llm.END,))
    vocabulary = Vocabulary(execution.vocab_size, (tiny_llm.END,), None, guides)
    answers: dict[str, Any] = {}
    left = dict(enumerate(SETTINGS))
    step = 0
    while left or engine.has_work:
        if left and step % 2 == 0 and not (min(left) in LAST and engine.has_work):
            number = min(left)
            settings = Settings.resolve(SamplingParams(**left.pop(number)), vocabulary)
            prompt = list(range(20 + number, 80)) if number in LONG else [20 + number, 30, 40 + number]
            prompt = list(range(50, 80)) if number in LAST else prompt
            engine.submit(Request(str(number), prompt, settings))
        for finished in engine.step():
            logprobs = [(each.token, round(each.logprob, 3)) for each in finished.request.logprobs]
            answers[finished.request.id] = (finished.token_ids, finished.reason, logprobs)
        step += 1
        assert step < 200
    execution.close()
    return answers, engine.statistics


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp("graphs"), "m", "batching: separate"))


@pytest.fixture(scope="module")
def expected(bundle: Bundle) -> dict[str, Any]:
    return run(bundle, "reference", kernel=False)[0]


def test_steps_in_graphs_draw_the_same_and_none_waits(bundle: Bundle, expected: dict[str, Any], gpu: Simulated) -> None:
    gpu.plans.add(bundle)
    answers, statistics = run(bundle, "tensorrt", kernel=True)
    assert answers == expected
    assert {reason for _, reason, _ in answers.values()} == {"stop", "length"}
    assert statistics.synchronous_steps == 0
    assert statistics.generated_tokens == sum(len(tokens) for tokens, _, _ in answers.values())


def test_the_step_after_a_prompt_is_launched_before_its_first_token_arrives(bundle: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(bundle)
    execution, events = open_execution(bundle, "tensorrt", 1), []
    engine = LLMEngine(execution, EngineOptions(kernel=True, overlap=True))
    forward, start = execution.forward, engine._state.sampler.launch

    def record_forward(call: Any, draw: Any = None) -> Any:
        events.append(f"run {call.ids.shape[1]}")
        return forward(call, draw)

    def record_launch(*arguments: Any) -> LaunchedDraw:
        launched = start(*arguments)
        return replace(launched, arrive=lambda: (events.append("arrived"), launched())[1])

    execution.forward, engine._state.sampler.launch = record_forward, record_launch  # type: ignore[method-assign]
    vocabulary = Vocabulary(execution.vocab_size, (tiny_llm.END,), None, None)
    engine.submit(Request("0", [20, 30, 40], Settings.resolve(SamplingParams(temperature=0, max_tokens=3), vocabulary)))
    while engine.has_work:
        engine.step()
    execution.close()
    assert events == ["run 3", "run 1", "arrived", "run 1", "arrived", "arrived"]


@pytest.mark.parametrize("name", slow_unless(lambda name: name in list(MISTAKES)[::4], MISTAKES))
def test_a_planted_mistake_is_seen(name: str, bundle: Bundle, expected: dict[str, Any], gpu: Simulated) -> None:
    gpu.plans.add(bundle)
    assert is_seen(MISTAKES[name], lambda: run(bundle, "tensorrt", kernel=True)[0], expected)
