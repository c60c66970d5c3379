"""Mistakes planted into the code that drives engines: each causes an error or wrong tokens, so tests notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.engines.planted import is_seen
from tests.support import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.llm.execution import KvCache
from trtkit.runtime.host_device import HostStream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated

ENGINE, CACHE = "trtkit.llm.execution.engine", "trtkit.llm.execution.kv_cache"
LOADED, ARRAYS = "trtkit.runtime.loaded_engine", "trtkit.runtime.host_device"
MISTAKES = {
    "swapped profiles": (ENGINE, "_PREFILL, _DECODE = 0, 1", "_PREFILL, _DECODE = 1, 0"),
    "a slot too far": (CACHE, "array[rows] for", "array[slice(rows.start + 1, rows.stop + 1)] for"),
    "a missing wait": (ENGINE, "self._stream.hold_current()", "pass"),
    "a graph of other rows": (
        ENGINE,
        "graph = self._graphs.get(step)",
        "graph = self._graphs.get(step) or next(iter(self._graphs.values()), None)",
    ),
    "a missing input": (ENGINE, "if not spec.is_kept and", 'if not spec.is_kept and spec.name != "kv_lengths" and'),
    "a copy from the end": (CACHE, "array[source][:, tokens]", "array[source][:, tokens].flip(0)"),
    "an output of its own": (ENGINE, "self._new.get(spec.name, cache)", "cache.clone()"),
    "a buffer too small": (ENGINE, "self._room = 1 << (tokens - 1).bit_length()", "self._room = max(tokens // 2, 1)"),
    "a replay of nothing": (ARRAYS, "self.stream.replay(self.calls)", "self.stream.replay([])"),
    "inputs that are not copied": (ENGINE, "self._inputs[name][: value.numel()], value", "value.clone(), value"),
    "the last profile's context": (
        LOADED,
        "key = profile, is_captured",
        "key = next(iter(self._contexts), (profile, is_captured))",
    ),
}
PACKED = "trtkit.llm.execution.packed_engine"
MISTAKES_OF_PACKED_CALLS = {
    "a missing wait": (PACKED, "self._stream.hold_current()", "pass"),
    "inputs that are not copied": (
        PACKED,
        "self._inputs[name][start : start + values.numel()], values",
        "values.clone(), values",
    ),
    "prompts that are not kept": (PACKED, "self._stream.run(partial(self._append_prompts, packed))", "pass"),
    "logits of another row": (
        PACKED,
        "self._inputs[LOGIT_INDEX][: step.rows].copy_(self._numbers[: step.rows])",
        "self._inputs[LOGIT_INDEX][: step.rows].zero_()",
    ),
    "logits of another token": (PACKED, "logit_index=packed.logit_index + 1", "logit_index=packed.logit_index"),
}
LOOP, FEED = "trtkit.llm.engine.decoding", "trtkit.llm.execution.packed"
MISTAKES_OF_GUESSES = {
    "positions that are not copied": (PACKED, "if on_device and name in _BY_ROW:", "if name in _BY_ROW:"),
    "tokens that are not copied": (PACKED, "by_token.get(name, 0) if on_device else 0", "by_token.get(name, 0)"),
    "logits of one token": (PACKED, "np.arange(packed.decoding_tokens)", "np.zeros(packed.decoding_tokens, np.int64)"),
    "a row of prompts without a token": (PACKED, "missing = missing or self.token_tile", "missing = 0"),
    "room for a token a row": (PACKED, "super().reserve(self.slots * self.row_tokens)", "super().reserve(self.slots)"),
    "prompts a token a row after others": (FEED, "self.decoding_tokens + np.arange", "self.rows + np.arange"),
    "logits of the next row": (LOOP, "at.repeat(counts) * width + columns", "at.repeat(counts) + columns"),
    "logits of other rows for prompts": (LOOP, "[], rows * width, len(columns)", "[], rows, len(columns)"),
    "guesses that check themselves": (LOOP, "guessed.firsts[rows] + columns + 1", "guessed.firsts[rows] + columns"),
}
PARAMS = [
    tiny_llm.GREEDY,
    SamplingParams(temperature=1.3, top_p=0.9, seed=3, max_tokens=9),
    SamplingParams(num_beams=3, temperature=0, max_tokens=8),
    tiny_llm.GREEDY,
]
PROMPTS = ["the quick brown fox jumps", "do not", "1, 2, 3!", "the quick brown fox jumps over the lazy"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp("mistakes"), "m", "batching: separate"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp("mistakes"), "m", "batching: packed"))


@pytest.fixture(scope="module")
def expected(bundle: Bundle) -> list[list[int]]:
    return tokens(bundle, "reference")


def tokens(bundle: Bundle, runtime: str) -> list[list[int]]:
    """Return the tokens of a short request, and twice of all requests, which run beside each other."""
    llm = LLM(bundle, runtime=runtime)
    outputs = llm.generate(PROMPTS[1:2], tiny_llm.GREEDY)
    for _ in range(2):
        outputs += llm.generate(PROMPTS, PARAMS)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_without_a_mistake_engines_generate_the_same(
    bundle: Bundle, packed: Bundle, expected: list[list[int]], gpu: Simulated
) -> None:
    for each in (bundle, packed):
        gpu.plans.add(each)
        assert tokens(each, "tensorrt") == expected


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_seen(name: str, bundle: Bundle, expected: list[list[int]], gpu: Simulated) -> None:
    gpu.plans.add(bundle)
    assert is_seen(MISTAKES[name], lambda: tokens(bundle, "tensorrt"), expected)


@pytest.mark.parametrize("name", MISTAKES_OF_PACKED_CALLS)
def test_a_mistake_in_packed_calls_is_seen(
    name: str, packed: Bundle, expected: list[list[int]], gpu: Simulated
) -> None:
    gpu.plans.add(packed)
    assert is_seen(MISTAKES_OF_PACKED_CALLS[name], lambda: tokens(packed, "tensorrt"), expected)


@pytest.fixture(scope="module", params=["linear", "paged"])
def guessing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    options = f"batching: packed, kv: {request.param}" + (", page_tokens: 16" if request.param == "paged" else "")
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp("mistakes"), "m", options))


def with_guesses(bundle: Bundle, runtime: str, draft: Path | None = None) -> tuple[list[tuple[int, ...]], bool]:
    """Return the tokens of requests, some of which are read while others decode, and whether steps have one call.

    draft: the model itself, whose guesses come true.
    """
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(bundle, runtime=runtime, slots=4, draft=draft, prefill_budget=12) as llm:
        prompts = ["1, 2, 3! 1, 2, 3! 1, 2,", "go go go", "the lazy dog, the lazy", "do not", "not not not not"]
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        return found, llm.statistics.network_calls <= llm.statistics.steps


def test_without_a_mistake_guesses_change_no_token(guessing: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(guessing)
    assert with_guesses(guessing, "tensorrt", guessing.path) == with_guesses(guessing, "reference")


@pytest.mark.parametrize("name", MISTAKES_OF_GUESSES)
def test_a_mistake_with_guesses_is_seen(name: str, guessing: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(guessing)
    expected = with_guesses(guessing, "reference")
    assert is_seen(MISTAKES_OF_GUESSES[name], lambda: with_guesses(guessing, "tensorrt", guessing.path), expected)


def test_graphs_that_hold_the_addresses_of_smaller_buffers_are_seen(bundle: Bundle, gpu: Simulated) -> None:
    """With one slot the short prompt's graphs are asked for again, after the long one has made the buffers grow."""

    def answers(runtime: str) -> list[tuple[int, ...]]:
        llm = LLM(bundle, runtime=runtime, slots=1)
        prompts = ["a", "a " * 24, "b"]
        return [llm.generate([each], tiny_llm.GREEDY)[0].outputs[0].token_ids for each in prompts]

    gpu.plans.add(bundle)
    wanted = answers("reference")
    assert answers("tensorrt") == wanted
    mistake = (ENGINE, "self._graphs.clear()  # graphs hold the addresses", "pass")
    assert is_seen(mistake, lambda: answers("tensorrt"), wanted)


def test_a_call_waits_for_its_callers_work_before_it_touches_caches(
    bundle: Bundle, gpu: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.plans.add(bundle)
    events: list[str] = []
    monkeypatch.setattr(HostStream, "wait_for_current", lambda _: events.append("wait"))
    monkeypatch.setattr(KvCache, "prepare", lambda _, call: (events.append("place"), call)[1])
    LLM(bundle, runtime="tensorrt").generate(PROMPTS[:1], tiny_llm.GREEDY)
    assert events[:2] == ["wait", "place"]
    assert events == ["wait", "place"] * (len(events) // 2)
