from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from tests.unit.llm.sampling.rows import EOS, Rows
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.sampled import FAILED


def random_logits(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.manual_seed(seed)) * 3


def generate(rows: Rows, steps: int, vocab_size: int, begin: int = 0) -> list[list[int]]:
    """Return the tokens of each row in a model whose logits are random and differ at each length."""
    count = len(rows.slots)
    for step in range(begin, begin + steps):
        rows.step(random_logits(1, vocab_size, step).expand(count, -1))
    return [rows.sequences.generated(slot).tolist() for slot in rows.slots]


def test_greedy_rows_take_the_largest_beside_rows_that_draw() -> None:
    rows = Rows(11, [SamplingParams(temperature=temperature, seed=3) for temperature in (0, 0.5, 1e-6)])
    logits = random_logits(3, 11)
    sampled = rows.sampler.sample(logits, rows.slots)
    assert sampled.tokens[[0, 2]].tolist() == logits.argmax(-1)[[0, 2]].tolist()
    assert sampled.tokens.dtype == np.int64
    assert (sampled.errors, sampled.logprobs) == ({}, {})


def test_logits_of_the_caller_stay_as_they_are() -> None:
    rows = Rows(2000, [SamplingParams(top_k=3, logit_bias={3: 5.0}), SamplingParams(temperature=0), SamplingParams()])
    logits = random_logits(3, 2000)
    before = logits.clone()
    scores = rows.process(logits)
    rows.sampler.sample(logits, rows.slots)
    scores.zero_()
    assert torch.equal(logits, before)


def test_a_released_slot_leaves_nothing_to_the_next_request() -> None:
    first = SamplingParams(frequency_penalty=2, bad_words=((4,),), logit_bias={5: 50.0}, logprobs=2, top_k=1)
    rows = Rows(9, [first], [([3], [3, 3])])
    rows.step(random_logits(1, 9))
    rows.sampler.release(0)
    rows = rows_again(rows, SamplingParams(temperature=0), [3], [])
    logits = random_logits(1, 9)
    assert torch.equal(rows.process(logits), logits)
    assert rows.sampler.sample(logits, rows.slots).logprobs == {}


def rows_again(rows: Rows, params: SamplingParams, prompt: list[int], generated: list[int], slot: int = 0) -> Rows:
    from trtkit.llm.sampling.settings import Settings

    rows.sequences.start(slot, prompt, generated)
    rows.sampler.admit(slot, Settings.resolve(params, rows.vocabulary))
    return rows


EVERYTHING = SamplingParams(
    seed=5,
    max_tokens=60,
    top_k=40,
    repetition_penalty=1.2,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    no_repeat_ngram_size=3,
    bad_words=((3, 4),),
    force_words=((8, 9, 10), (5,)),
    min_tokens=4,
)


def test_a_request_admitted_again_goes_on_as_if_it_had_never_stopped() -> None:
    whole = generate(Rows(50, [EVERYTHING]), 60, 50)[0]
    for stopped in (1, 7, 59):
        rows = Rows(50, [SamplingParams(), EVERYTHING], [([2], []), ([0], whole[:stopped])])
        rows.slots = np.array([1])
        assert generate(rows, 60 - stopped, 50, stopped)[0] == whole


def test_a_copied_slot_goes_on_as_its_source_and_apart_from_it() -> None:
    rows = Rows(50, [EVERYTHING, SamplingParams()])
    rows.slots = np.array([0])
    generate(rows, 10, 50)
    rows.sequences.copy(0, 1)
    rows.sampler.copy(0, 1)
    rows.slots = np.array([0, 1])
    one, other = generate(rows, 50, 50, 10)
    assert one == other == generate(Rows(50, [EVERYTHING]), 60, 50)[0]


def test_forced_words_occur_by_themselves_or_are_forced_at_the_end() -> None:
    params = SamplingParams(temperature=0, max_tokens=9, force_words=((5, 6, 7), (8,)))
    rows = Rows(12, [params])
    logits = torch.zeros(1, 12)
    logits[0, [EOS, 11]] = torch.tensor([9.0, 5.0])  # would end at once, but for the words
    for _ in range(9):
        rows.step(logits)
    assert rows.sequences.generated(0).tolist() == [11] * 5 + [5, 6, 7, 8]


def test_the_end_is_allowed_once_every_forced_word_has_occurred() -> None:
    rows = Rows(12, [SamplingParams(max_tokens=9, force_words=((5, 6),))], [([3], [5])])
    logits = torch.zeros(1, 12)
    assert rows.process(logits)[0, EOS] == -torch.inf
    rows.sequences.append(rows.slots, np.array([6]))
    assert torch.equal(rows.process(logits), logits)


def test_a_forced_word_may_take_any_of_its_spellings() -> None:
    from trtkit.llm.sampling.settings import Settings, Vocabulary

    vocabulary = Vocabulary(30, (EOS,), lambda text: {"ab": [5, 6], " ab": [7]}[text])
    found = Settings.resolve(SamplingParams(force_words=("ab",), bad_words=("ab", (3,))), vocabulary)
    assert found.force_words == (((5, 6), (7,)),)
    assert found.bad_words == ((5, 6), (7,), (3,))
    rows = Rows(30, [SamplingParams()], [([3], [7])])
    rows.sampler.admit(0, found)
    assert rows.process(torch.zeros(1, 30))[0, EOS] == 0


def test_ignored_ends_are_not_barred_and_stop_tokens_are() -> None:
    rows = Rows(9, [SamplingParams(min_tokens=2, stop_token_ids=(4,), ignore_eos=True)])
    barred = torch.isinf(rows.process(torch.zeros(1, 9))[0]).nonzero().flatten().tolist()
    assert barred == [4]


@pytest.mark.parametrize(
    "processor",
    [
        hf.TemperatureLogitsWarper(0.5),
        hf.TopPLogitsWarper(0.6),
        hf.RepetitionPenaltyLogitsProcessor(1.5),
        hf.SuppressTokensLogitsProcessor([3, 4]),
    ],
    ids=lambda processor: type(processor).__name__,
)
def test_processors_of_transformers_work_as_they_are(processor: Any) -> None:
    rows = Rows(20, [SamplingParams(logits_processors=(processor,)), SamplingParams()], [([3], [4, 4]), ([2], [])])
    logits = random_logits(2, 20)
    got = rows.process(logits)
    assert torch.equal(got[0], processor(torch.tensor([[3, 4, 4]]), logits[:1].clone())[0])
    assert torch.equal(got[1], logits[1])


def broken(ids: Any, scores: Any) -> Any:
    raise KeyError("x")


def a_list(ids: Any, scores: Any) -> Any:
    return [1]


def too_few(ids: Any, scores: Any) -> Any:
    return scores[:, :-1]


def not_numbers(ids: Any, scores: Any) -> Any:
    return scores * torch.nan


def nothing_left(ids: Any, scores: Any) -> Any:
    return scores.fill_(-torch.inf)


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"logits_processors": (broken,)}, "the logits processor `broken` failed: KeyError: 'x'"),
    ({"logits_processors": (a_list,)}, "the logits processor `a_list` failed: it returned list, not a tensor"),
    ({"logits_processors": (too_few,)}, "the logits processor `too_few` failed: it returned shape [1, 4], not [1, 5]"),
    ({"logits_processors": (not_numbers,)}, "the logits processor `not_numbers` failed: it returned NaN or infinity"),
    ({"logits_processors": (nothing_left,)}, "no token is left: `logits_processors` bars every one"),
    (
        {"bad_words": ((0,), (2,), (3,), (4,)), "min_tokens": 1},
        "no token is left: `bad_words` and `min_tokens` bar every one",
    ),
    (
        {"force_words": ((2,),), "bad_words": ((2,),), "max_tokens": 1},
        "no token is left: `bad_words` and `force_words` bar every one",
    ),
]


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize(("setting", "error"), FAULTS, ids=[error for _, error in FAULTS])
def test_a_row_that_fails_says_why_and_leaves_the_others(setting: dict[str, Any], error: str, greedy: bool) -> None:
    faulty = SamplingParams(temperature=0 if greedy else 1, **setting)
    rows = Rows(5, [SamplingParams(seed=1), faulty, SamplingParams(temperature=0)])
    logits = random_logits(3, 5)
    sampled = rows.step(logits)
    assert sampled.errors == {1: error}
    assert sampled.tokens[1] == FAILED
    chosen = np.array([0, 2])
    alone = Rows(5, [SamplingParams(seed=1), SamplingParams(temperature=0)]).sampler.sample(
        logits[chosen], np.arange(2)
    )
    assert sampled.tokens[chosen].tolist() == alone.tokens.tolist()


@pytest.mark.parametrize("vocab_size", [9, 3001])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("setting", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
def test_logits_that_are_no_numbers_fail_their_row_only(setting: dict[str, Any], value: float, vocab_size: int) -> None:
    rows = Rows(vocab_size, [SamplingParams(**setting)] * 3)
    logits = random_logits(3, vocab_size)
    logits[1, vocab_size - 2] = value
    logits[2] = -torch.inf
    sampled = rows.sampler.sample(logits, rows.slots)
    assert sampled.errors == {1: "the model's logits hold NaN or infinity", 2: "the model's logits are all -inf"}
    assert sampled.tokens[1:].tolist() == [FAILED, FAILED]


def test_log_probabilities_are_the_models_own_with_ranks() -> None:
    params = [
        SamplingParams(temperature=0, logit_bias={3: 99.0}, logprobs=2),
        SamplingParams(),
        SamplingParams(logprobs=0),
    ]
    rows = Rows(7, params)
    logits = random_logits(3, 7)
    sampled = rows.sampler.sample(logits, rows.slots)
    logs = logits.log_softmax(-1)
    first, second, third = (sampled.logprobs.get(row) for row in range(3))
    assert second is None
    assert first is not None
    assert third is not None
    assert (first.token, third.top) == (3, ())
    assert first.logprob == pytest.approx(float(logs[0, 3]))
    assert first.rank == int((logs[0] > logs[0, 3]).sum()) + 1
    order = logs[0].argsort(descending=True)[:2].tolist()
    assert first.top == tuple((token, float(logs[0, token])) for token in order)
