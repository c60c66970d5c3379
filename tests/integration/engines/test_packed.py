"""Packed engines: decode and prefill share a call on TensorRT's simulated runtime, too."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.integration.engines.planted import is_seen
from tests.integration.engines.test_decoders import PAST_A_PAGE, assert_same
from tests.integration.test_packed_calls import GUESSES, LENGTH, SLOTS, check_steps, logits_of
from tests.selection import slow_unless
from tests.support.engine_decoders import bundle_of
from tests.support.generation import case_of
from trtkit import LLM, SamplingParams
from trtkit.llm.execution import open_execution
from trtkit.llm.execution.execution import CallCounts
from trtkit.llm.execution.packed_engine import PackedEngineDecoder
from trtkit.network.input_spec import MOST_ROW_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated
    from trtkit.bundle.bundle import Bundle

CACHES: dict[str, dict[str, Any]] = {
    "linear": {},
    "window": {"kv_window": "used"},
    "paged": {"kv": "paged", "page_tokens": 16},
}
SIZES = {"max_batch_size": SLOTS, "max_sequence_length": LENGTH, "max_prefill_length": LENGTH, "batching": "packed"}


# The windows of each family stay, as test_packed_calls has those among the slow tests; it has all pages in the others.
# `llama` has each kind of cache in the tests below.
KEPT = {
    *(("llama", "linear"), ("gpt_oss", "window"), ("gpt_oss", "paged")),
    *(("deepseek_v2", "window"), ("deepseek_v2", "paged"), ("gemma2", "window")),
    *(("mamba2", "linear"), ("falcon_h1", "linear"), ("kimi_linear", "paged")),
}
ATTENDING = itertools.product(("llama", "gpt_oss", "deepseek_v2", "gemma2"), CACHES)
RECURRENT = itertools.product(("lfm2", "qwen3_5_text", "falcon_h1", "kimi_linear"), ("linear", "paged"))
PAIRS = slow_unless(lambda *pair: pair in KEPT, [*ATTENDING, *RECURRENT, ("mamba2", "linear")])


@pytest.fixture(scope="module")
def llamas(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """Bundles by the kind of their caches, built when they are needed first."""

    @cache
    def llama(kind: str) -> Bundle:
        return bundle_of(case_of("llama"), tmp_path_factory.mktemp(kind), **SIZES, **CACHES[kind])

    return llama


@pytest.fixture(scope="module")
def falcon(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of a model whose layers both attend and keep states."""
    return bundle_of(case_of("falcon_h1"), tmp_path_factory.mktemp("falcon"), **SIZES, **CACHES["paged"], logits="all")


@pytest.mark.parametrize(("model_type", "kind"), PAIRS)
def test_mixed_steps_of_an_engine_give_what_transformers_gives(
    model_type: str, kind: str, gpu: Simulated, tmp_path: Path
) -> None:
    case = case_of(model_type)
    bundle = bundle_of(case, tmp_path, **SIZES, **CACHES[kind], logits="all")
    gpu.plans.add(bundle)
    decoder = open_execution(bundle, "tensorrt")
    decoder.tokens_to_run(1 + GUESSES, 1 + GUESSES)  # steps of as many without prompts are captured
    check_steps(decoder, logits_of(case))


@pytest.mark.parametrize("kind", CACHES)
def test_calls_of_one_kind_give_what_the_reference_decoder_gives(kind: str, gpu: Simulated, tmp_path: Path) -> None:
    """Steps that only decode, which are captured, and prompts alone."""
    bundle = bundle_of(case_of("llama"), tmp_path, batching="packed", logits="all", **CACHES[kind])
    gpu.plans.add(bundle)
    assert_same([open_execution(bundle, runtime) for runtime in ("tensorrt", "reference")], PAST_A_PAGE)


@pytest.mark.parametrize("kind", CACHES)
def test_prompts_are_cut_so_that_large_calls_have_no_idle_tokens(
    kind: str, gpu: Simulated, llamas: Callable[[str], Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles have 3 tokens instead of 64, so calls of 12 are large; three rows that decode are not run as four."""
    monkeypatch.setattr(PackedEngineDecoder, "token_tile", 3)
    calls: list[tuple[int, int]] = []
    count = CallCounts.add
    monkeypatch.setattr(CallCounts, "add", lambda self, *call: (calls.append(call), count(self, *call)))
    bundle = llamas(kind)
    gpu.plans.add(bundle)
    prompts = [np.random.default_rng(size).integers(3, 60, size).tolist() for size in (2, 3, 4, 25, 24)]
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=6, ignore_eos=True)
    found, padded = [], dict[str, list[tuple[int, int]]]()
    for runtime in ("tensorrt", "reference"):
        calls.clear()
        with LLM(bundle.path, runtime=runtime, slots=5, prefill_budget=13) as llm:
            found.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
        padded[runtime] = [(computed, used) for computed, used in calls if computed > 3]  # with tokens of prompts
    assert found[0] == found[1]
    *large, last = padded["tensorrt"]
    assert large == [(12, 11)] + [(12, 12)] * (len(large) - 1)  # one row is idle before any decodes
    assert last[0] % 3 == 0
    assert (13, 13) in padded["reference"]


@pytest.mark.parametrize("kind", CACHES)
def test_requests_get_the_tokens_of_the_reference_decoder(
    kind: str, gpu: Simulated, llamas: Callable[[str], Bundle]
) -> None:
    """Steps overlap, prompts are read in small pieces, and engines give as many logits as there are slots."""
    bundle = llamas(kind)
    gpu.plans.add(bundle)
    prompts = [np.random.default_rng(size).integers(3, 60, size).tolist() for size in (13, 2, 9, 17, 1, 6, 11, 5)]
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=7, ignore_eos=True)
    found = []
    for runtime in ("tensorrt", "reference"):
        with LLM(bundle.path, runtime=runtime, slots=3, prefill_budget=4) as llm:
            found.append([output.outputs[0].token_ids for output in llm.generate(prompts, params)])
            assert llm.statistics.network_calls <= llm.statistics.steps
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", CACHES)
def test_guesses_are_checked_in_the_calls_of_prompts(kind: str, gpu: Simulated, tmp_path: Path) -> None:
    """Tokens are those without guesses. Steps without prompts are captured, whatever is guessed, if anything is."""
    bundle = bundle_of(case_of("llama"), tmp_path, **SIZES, **CACHES[kind], logits="all")
    gpu.plans.add(bundle)
    prompts = [[5, 6, 7, 5, 6, 7, 5, size][-size:] for size in (3, 8, 5, 7, 2, 4, 6)]
    params = SamplingParams(temperature=0.5, seed=3, max_tokens=20, ignore_eos=True)
    with LLM(bundle.path, runtime="reference", slots=3) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    with LLM(bundle.path, runtime="tensorrt", slots=3, prefill_budget=6, lookup=4) as llm:
        assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected
        statistics, decoder = llm.statistics, llm.frontend.execution
        assert statistics.network_calls == statistics.steps
        assert statistics.drafted_tokens > statistics.accepted_tokens > 0
        assert isinstance(decoder, PackedEngineDecoder)
        graphs = {(step.rows, step.size): graph for step, graph in decoder._graphs.items()}
    assert {size for _, size in graphs} == {1, 5}
    assert all(graphs.values())
    with LLM(bundle.path, runtime="tensorrt", slots=3, lookup=MOST_ROW_TOKENS) as llm:
        assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected
        assert llm.statistics.network_calls > llm.statistics.steps  # no row has room for as many


def answers(bundle: Bundle, runtime: str, **options: Any) -> list[tuple[int, ...]]:
    """Return the tokens of requests that are read in small pieces while others decode."""
    prompts = [[5, 6, 7, 5, 6, 7, 5, *range(size)][-size:] for size in (13, 2, 9, 17, 1, 6, 11, 5)]
    params = SamplingParams(temperature=0.5, seed=3, max_tokens=12, ignore_eos=True)
    with LLM(bundle.path, runtime=runtime, slots=4, prefill_budget=6, **options) as llm:
        found = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        statistics = llm.statistics
        if (
            "draft" in options
        ):  # slots finish at different times, so some prompts are not in neighboring slots and get separate calls
            assert statistics.drafted_tokens == statistics.accepted_tokens > 0
        else:
            assert statistics.network_calls <= statistics.steps
            assert bool(options) == (statistics.drafted_tokens > statistics.accepted_tokens)
    return found


@pytest.mark.parametrize("guesses", ["none", "lookup", "draft"])
def test_states_share_calls_with_prompts_and_guesses(guesses: str, gpu: Simulated, falcon: Bundle) -> None:
    """Steps overlap if nothing is guessed; states that have read wrong guesses go back. The draft is the model."""
    gpu.plans.add(falcon)
    options: dict[str, dict[str, Any]] = {"none": {}, "lookup": {"lookup": 4}, "draft": {"draft": falcon.path}}
    assert answers(falcon, "tensorrt", **options[guesses]) == answers(falcon, "reference")


PACKED = "trtkit.llm.execution.packed_engine"
KEPT_STATES = "self.cache.keep(slots, {name: new[: slots.stop - slots.start] for name, new in states.items()})"
MISTAKES = {
    "states of prompts that are not kept": (PACKED, KEPT_STATES, "pass"),
    "states of prompts in the next slot": (
        PACKED,
        "self.cache.keep(slots, {",
        "self.cache.keep(slice(min(slots.start + 1, 3), min(slots.start + 1, 3) + slots.stop - slots.start), {",
    ),
    "memory of other rows for new states": (
        PACKED,
        "output_of_prompts(spec): self._stream.empty((self.slots, *spec.shape[1:]), dtype_of(spec))",
        "output_of_prompts(spec): self._new_states[spec.name]",
    ),
    "counts of tokens that are not made": (
        "trtkit.llm.execution.engine",
        "for name in inputs.keys() & self._inputs.keys():",
        'for name in inputs.keys() & self._inputs.keys() - {"token_counts"}:',
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_states_is_seen(name: str, gpu: Simulated, falcon: Bundle) -> None:
    gpu.plans.add(falcon)
    assert is_seen(MISTAKES[name], lambda: answers(falcon, "tensorrt"), answers(falcon, "reference"))


def test_an_engine_that_gives_hidden_states_answers_as_its_network(gpu: Simulated, tmp_path: Path) -> None:
    bundle = bundle_of(case_of("llama"), tmp_path, **SIZES, hidden_states=True)
    gpu.plans.add(bundle)
    assert answers(bundle, "tensorrt") == answers(bundle, "reference")
