"""Several ranks as processes give what one rank gives."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.integration.parallel.conftest import rank_processes
from tests.integration.test_in_flight_batching import KINDS
from tests.support.generation import settings
from trtkit import LLM, SamplingParams
from trtkit.bundle.bundle import open_bundle
from trtkit.bundle.known import KnownRequest, write_known
from trtkit.errors import ExecutionError, RankError
from trtkit.llm.distributed.open import open_distributed
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import Call, DecoderExecution, ExecutionOptions, open_execution
from trtkit.llm.execution.cache_size import bytes_of_page
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.execution.single import OpenOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trtkit.llm.distributed.decoder import DistributedDecoder

    BundleOf = Callable[[str], Path]

VOCABULARY = 320


def answers(execution: DecoderExecution, count: int, *, restores: bool = False) -> dict[str, list[int]]:
    """Return the tokens of requests of all settings, beams too, that come one every other step; half begin alike."""
    r, stem = random.Random(count), list(range(5, 45))
    engine = LLMEngine(execution, EngineOptions(min_shared_tokens=4, clock=lambda: 0.0))
    tokens: dict[str, list[int]] = {}
    step = 0
    while engine.has_work or step < 2 * count:
        if step % 2 == 0 and step < 2 * count:
            own = [r.randrange(3, VOCABULARY) for _ in range(r.randint(1, 40))]
            params = {"max_tokens": r.randint(2, 20), **r.choice(KINDS)(r)}
            prompt = stem[: r.randint(1, 40)] + own[:8] if r.random() < 0.5 else own
            engine.submit(Request(f"r{step // 2}", prompt, settings(VOCABULARY, **params)))
        tokens |= {each.request.id: each.token_ids for each in engine.step()}
        step += 1
    assert engine.statistics.reused_tokens > 0
    assert engine.statistics.restored_tokens > 0 or not restores
    return tokens


@pytest.mark.parametrize(
    ("grid", "count"),
    [
        ("both", 20),
        ("tensor, packed", 20),
        ("tensor, packed, paged", 20),
        ("sequence", 20),
        ("sequence, paged", 20),
        ("context", 20),
        ("context, paged", 20),
        pytest.param("context, both", 20, marks=pytest.mark.slow),
        pytest.param("tensor", 200, marks=pytest.mark.slow),
        pytest.param("pipeline", 200, marks=pytest.mark.slow),
    ],
)
def test_requests_in_flight_get_what_one_rank_gives(bundle_of: BundleOf, grid: str, count: int) -> None:
    expected = answers(open_execution(open_bundle(bundle_of("one")), "reference"), count)
    execution = open_execution(open_bundle(bundle_of(grid)), "reference")
    assert answers(execution, count) == expected
    execution.close()


@pytest.mark.parametrize("grid", ["tensor, packed", "pipeline", "both, paged", "sequence, paged"])
def test_ranks_check_guesses_in_the_calls_of_prompts(bundle_of: BundleOf, grid: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6][:size] for size in (8, 3, 6, 7, 5, 8, 4, 6)]
    expected = LLM(bundle_of("one"), runtime="reference").generate(prompts, params)
    with LLM(bundle_of(grid), runtime="reference", lookup=3, prefill_budget=9) as llm:
        outputs = llm.generate(prompts, params)
        assert llm.statistics.network_calls == llm.statistics.steps
        assert llm.statistics.accepted_tokens > 0
    assert [each.outputs[0].token_ids for each in outputs] == [each.outputs[0].token_ids for each in expected]


def test_tokens_that_fill_the_shares_of_ranks_are_counted(bundle_of: BundleOf) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    with LLM(bundle_of("sequence, paged"), runtime="reference") as llm:
        llm.generate([[5, 6, 7, 8, 9]], params)
        counts = llm.statistics
    assert (counts.network_calls, counts.computed_tokens) == (3, 8 + 4 + 4)  # of 4 ranks
    assert counts.padded_tokens == 3 + 3 + 3


@pytest.mark.parametrize("grid", ["both, paged", "context, paged"])
def test_ranks_share_pages_and_give_way_as_one_rank_does(bundle_of: BundleOf, grid: str) -> None:
    """With pages for less than half of what the slots could hold: every rank copies, saves and loads the same pages.

    Pages that give way come back from rank 0's host.
    """
    expected = answers(open_execution(open_bundle(bundle_of("one")), "reference"), 30)
    bundle = open_bundle(bundle_of(grid))
    page_bytes = max(bytes_of_page(each.spec for each in rank.inputs) for rank in bundle.manifest.stages[-1].ranks)
    how = ExecutionOptions(cache_gib=25.5 * page_bytes / 2**30)
    execution = open_execution(bundle, "reference", how=how)
    assert execution.cache.pages is not None
    assert execution.cache.pages.pages == 25
    assert answers(execution, 30, restores=True) == expected
    assert execution.cache.pages.held == 0
    execution.close()


@pytest.fixture(scope="module")
def four(bundle_of: BundleOf) -> Iterator[DistributedDecoder]:
    """Two stages of two ranks, which run a call in four parts."""
    execution = open_distributed(open_bundle(bundle_of("both")), OpenOptions("reference", 8, parts=4))
    yield execution
    execution.close()


@pytest.fixture(scope="module")
def one(bundle_of: BundleOf) -> DecoderExecution:
    return open_execution(open_bundle(bundle_of("one")), "reference")


def prompts(rows: int, size: int, counts: list[int]) -> Call:
    ids = np.random.default_rng(rows).integers(3, VOCABULARY, (rows, size))
    return Call(0, ids, np.zeros(rows, np.int64), np.array(counts))


def last_logits(execution: DecoderExecution, call: Call) -> torch.Tensor:
    """Return the logits [R, V] of each row's last token from a decoder that gives those of all tokens."""
    return execution.forward(call)[np.arange(len(call.starts)), np.maximum(call.counts - 1, 0)]


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (prompts(8, 5, [5, 4, 3, 0, 5, 1, 2, 5]), 4),
        (prompts(2, 33, [33, 9]), 4),
        (prompts(1, 3, [3]), 3),
        (prompts(5, 1, [1] * 5), 4),
    ],
    ids=["rows", "tokens of two rows", "fewer tokens than parts", "a decode step"],
)
def test_a_call_in_parts_gives_the_same_logits(
    four: DistributedDecoder, one: DecoderExecution, call: Call, parts: int
) -> None:
    before = four.pipeline_steps.total, four.pipeline_steps.busy
    logits, expected = last_logits(four, call), last_logits(one, call)
    live = call.counts > 0
    torch.testing.assert_close(logits[live], expected[live], atol=1e-4, rtol=1e-4)
    total, busy = four.pipeline_steps.total - before[0], four.pipeline_steps.busy - before[1]
    assert (total, busy) == (parts + 1, parts)  # GPipe: m parts take m + p - 1 steps in p stages


@pytest.mark.parametrize(("news", "parts"), [([20, 1, 0, 9], 4), ([2], 2), ([0, 61], 4)])
def test_a_packed_call_in_parts_gives_the_same_logits(
    four: DistributedDecoder, one: DecoderExecution, news: list[int], parts: int
) -> None:
    """Slots 0 and 2 decode, with a guess; slots from 3 on read prompts, which are cut anywhere."""
    reading = prompts(len(news), max(news), news)
    reading = replace(reading, first_slot=3, scattered=3 + np.arange(len(news)))
    decoding = replace(prompts(3, 2, [2, 0, 1]), starts=np.array([7, 0, 4]))
    call = PackedCall(decoding, reading, np.r_[0, 1, 4, 6 + np.arange(sum(news))])
    results = []
    for execution in (four, one):
        assert execution.packed is not None
        execution.forward(prompts(3, 7, [7, 0, 4]))
        before = four.pipeline_steps.busy
        results.append(execution.packed.forward_packed(call).clone())
        assert four.pipeline_steps.busy - before == (0 if execution is one else parts)
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_a_saved_sequence_holds_every_ranks_part(four: DistributedDecoder, one: DecoderExecution) -> None:
    prompt = prompts(1, 20, [20])
    four.forward(prompt)
    with pytest.raises(ExecutionError, match="a slot of 128 tokens cannot hold 129"):
        four.cache.save(0, 129)
    saved = four.cache.save(0, 20)
    names = {array.name.partition("/")[0] for array in saved.form.arrays}
    assert names == {"rank0", "rank1", "rank2", "rank3"}
    four.forward(Call(0, prompt.ids[:, ::-1].copy(), prompt.starts, prompt.counts))
    four.cache.load(5, saved)
    four.cache.copy(5, 6, slice(0, 20))
    step = Call(6, np.array([[7]]), np.array([20]), np.array([1]))
    one.forward(prompt)
    expected = last_logits(one, Call(0, step.ids, step.starts, step.counts))
    torch.testing.assert_close(last_logits(four, step), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ExecutionError, match=r"the saved sequence (is of model|has)"):
        one.cache.check(saved)


@pytest.mark.parametrize("tokens", [3, 40])
def test_saved_sequences_hold_every_ranks_positions(bundle_of: BundleOf, one: DecoderExecution, tokens: int) -> None:
    """Of 3 tokens, the second rank holds none. Blocks on the host are those of both ranks."""
    execution = open_distributed(open_bundle(bundle_of("context")), OpenOptions("reference", 8))
    prompt, step = prompts(1, tokens, [tokens]), Call(5, np.array([[7]]), np.array([tokens]), np.array([1]))
    for each in (execution, one):
        each.forward(prompt)
    execution.cache.load(5, execution.cache.save(0, tokens))
    blocks = execution.cache.blocks(32)
    assert blocks is not None
    rows = blocks.memory(1)
    blocks.save([0], list(rows))
    execution.forward(Call(0, prompt.ids[:, ::-1].copy(), prompt.starts, prompt.counts))
    blocks.load([0], list(rows))
    expected = last_logits(one, replace(step, first_slot=0))
    torch.testing.assert_close(execution.forward(step)[:, -1], expected, atol=1e-4, rtol=1e-4)
    if tokens > 32:  # the other tokens of slot 0 are those of the reversed prompt
        one.forward(replace(prompt, ids=prompt.ids[:, ::-1].copy()))
        one.forward(replace(prompt, ids=prompt.ids[:, :32], counts=np.array([32])))
        expected = last_logits(one, replace(step, first_slot=0))
        got = execution.forward(replace(step, first_slot=0))[:, -1]
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
    execution.close()


def known(text: str) -> KnownRequest:
    inputs = {
        "text_input": np.array([[b"the quick brown"]], dtype=np.object_),
        "max_tokens": np.array([[8]], dtype=np.int32),
        "temperature": np.zeros((1, 1), dtype=np.float32),
    }
    return KnownRequest(inputs, {"text_output": np.array([[text.encode()]], dtype=np.object_)}, 0.0)


def test_ranks_that_answer_the_known_request_otherwise_do_not_start(bundle_of: BundleOf, tmp_path: Path) -> None:
    with LLM(bundle_of("one"), runtime="reference") as llm:
        text = llm.generate("the quick brown", SamplingParams(temperature=0, max_tokens=8))[0].outputs[0].text
    path = shutil.copytree(bundle_of("tensor"), tmp_path / "bundle")
    write_known(open_bundle(path), [known(text)])
    with LLM(path, runtime="reference") as llm:
        assert llm.statistics.generated_tokens == 0
    write_known(open_bundle(path), [known(text + "!")])
    before = rank_processes()
    with pytest.raises(RankError) as error:
        LLM(path, runtime="reference")
    assert error.value.what == f"the ranks answer the known request with `{text}`, not `{text}!`"
    assert rank_processes() == before


def test_the_layers_of_a_pipeline_are_not_timed(four: DistributedDecoder) -> None:
    with pytest.raises(ExecutionError) as error:
        four.layer_seconds(prompts(1, 2, [2]))
    assert str(error.value) == (
        "parallel.pipeline: the layers of a pipeline's stages cannot be timed\n"
        "fix: time a bundle without pipeline stages"
    )
