from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.llm.sampling.rows import Rows, transformers_scores
from trtkit.llm.sampling.params import SamplingParams

History = tuple[list[int], list[int]]


def assert_as_transformers(logits: torch.Tensor, params: list[SamplingParams], histories: list[History]) -> None:
    got = Rows(logits.shape[1], params, histories).process(logits).softmax(-1)
    for row, (one, history) in enumerate(zip(params, histories, strict=True)):
        wanted = transformers_scores(logits[row], one, *history).softmax(-1)
        if wanted.isnan().any():  # every token barred: ours says so when it is drawn from
            assert got[row].isnan().all()
            continue
        # Sums in different orders may differ by the token at the edge of top-p or typical.
        same = (got[row] > 0) == (wanted > 0)
        assert int((~same).sum()) <= (one.top_p < 1 or one.typical_p < 1), f"{one} {history}"
        ours, theirs = (each * same / (each * same).sum() for each in (got[row], wanted))
        np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=f"{one} {history}")


ALONE: list[dict[str, Any]] = [
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 900},
    {"top_k": 10**9},
    {"top_p": 0.001},
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"typical_p": 0.2},
    {"typical_p": 0.95},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"presence_penalty": 1.5},
    {"frequency_penalty": -0.5},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 3},
    {"bad_words": ((5,), (3, 4), (3, 6), (9, 3, 2), (1,))},
    {"min_tokens": 12},
    {"min_tokens": 9},
    {"logit_bias": {0: -100.0, 7: 4.5}},
]


@pytest.mark.parametrize("vocab_size", [11, 1003, 5003])  # whole rows, and rows of candidates
@pytest.mark.parametrize("setting", ALONE, ids=str)
def test_a_setting_alone_equals_that_of_transformers(setting: dict[str, Any], vocab_size: int) -> None:
    generator = torch.manual_seed(vocab_size)
    logits = torch.randn(4, vocab_size, generator=generator) * torch.tensor([[0.3], [1], [3], [9]])
    histories = [([4, 9, 9, 3, 2], [9, 3, 2, 9, 3, 4, 8, 2, 3]), ([1], []), ([2, 2], [2, 2, 2]), ([7, 9], [9, 9, 3])]
    assert_as_transformers(logits, [SamplingParams(**setting, max_tokens=99)] * 4, histories)


@pytest.mark.parametrize("vocab_size", [10, 4099])
def test_what_one_row_uses_changes_no_other(vocab_size: int) -> None:
    params = [SamplingParams(**setting, max_tokens=99) for setting in ALONE]
    logits = torch.randn(len(ALONE), vocab_size, generator=torch.manual_seed(0)) * 2
    rng = np.random.default_rng(0)
    histories = [(rng.integers(0, 10, 5).tolist(), rng.integers(0, 10, row).tolist()) for row in range(len(ALONE))]
    assert_as_transformers(logits, params, histories)


def numbers(low: float, high: float, neutral: float) -> st.SearchStrategy[float]:
    return st.one_of(st.just(neutral), st.floats(low, high))


@st.composite
def any_params(draw: st.DrawFn, vocab_size: int) -> SamplingParams:
    token = st.integers(0, vocab_size - 1)
    return SamplingParams(
        temperature=draw(numbers(0.1, 3, 1)),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 3, 50, vocab_size, vocab_size + 5])),
        top_p=draw(numbers(0.01, 0.99, 1)),
        min_p=draw(numbers(0.01, 0.99, 0)),
        typical_p=draw(numbers(0.01, 0.99, 1)),
        repetition_penalty=draw(numbers(0.5, 2, 1)),
        presence_penalty=draw(numbers(-2, 2, 0)),
        frequency_penalty=draw(numbers(-2, 2, 0)),
        no_repeat_ngram_size=draw(st.integers(0, 4)),
        bad_words=tuple(draw(st.lists(st.lists(token, min_size=1, max_size=3).map(tuple), max_size=3))),
        min_tokens=draw(st.integers(0, 5)),
        logit_bias=draw(st.dictionaries(token, st.floats(-5, 5), max_size=3)),
    )


@st.composite
def any_rows(draw: st.DrawFn) -> tuple[torch.Tensor, list[SamplingParams], list[History]]:
    vocab_size = draw(st.sampled_from([2, 3, 5, 8, 17, 63, 1500, 3001]))
    count = draw(st.integers(1, 4))
    ids = st.lists(st.integers(0, vocab_size - 1), max_size=12)
    histories = [(draw(ids.filter(bool)), draw(ids)) for _ in range(count)]
    generator = torch.manual_seed(draw(st.integers(0, 2**32)))
    logits = torch.randn(count, vocab_size, generator=generator) * draw(st.sampled_from([0.1, 1.0, 4.0]))
    if draw(st.booleans()):
        logits = (logits * 2).round() / 2  # many ties
    return logits, [draw(any_params(vocab_size)) for _ in range(count)], histories


@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.99, 0.9999])
def test_top_p_over_wide_rows_equals_that_of_transformers(top_p: float) -> None:
    """Flat, peaked and heavy-tailed rows, whose candidates are many, few and in between."""
    noise = torch.randn(6, 20011, generator=torch.manual_seed(0))
    ranks = torch.arange(1, 20012)[torch.randperm(20011, generator=torch.manual_seed(1))]
    logits = torch.stack([noise[0] * 0, noise[1], noise[2] * 4, noise[3] * 30, -ranks.log(), -2 * ranks.log()])
    got = Rows(20011, [SamplingParams(top_p=top_p)] * 6).process(logits)
    for row in range(6):
        wanted = transformers_scores(logits[row], SamplingParams(top_p=top_p), [0], [])
        # At the edge, sums in different orders may differ by a token.
        same = torch.isfinite(got[row]) == torch.isfinite(wanted)
        assert int((~same).sum()) <= 1
        np.testing.assert_allclose(got[row].softmax(-1)[same], wanted.softmax(-1)[same], atol=1e-5)


@settings(max_examples=150, deadline=None)
@given(any_rows())
def test_any_settings_together_equal_those_of_transformers(
    rows: tuple[torch.Tensor, list[SamplingParams], list[History]],
) -> None:
    assert_as_transformers(*rows)
