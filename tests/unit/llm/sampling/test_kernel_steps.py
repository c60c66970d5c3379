"""Steps that the kernel samples, interpreted, draw the tokens of the sampler on the CPU, whatever the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.unit.llm.sampling.rows import EOS, Rows
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.sampler import Sampler
from trtkit.llm.sampling.settings import Settings
from trtkit.planning.memory import sampling_bytes

if TYPE_CHECKING:
    from trtkit.llm.sampling.sampled import Sampled

VOCAB = 37
FIRST = 1  # the slot before is idle
TOKENS = st.integers(0, VOCAB - 1)
SETTINGS = st.fixed_dictionaries(
    {"seed": st.integers(0, 2**64 - 1)},
    optional={
        "temperature": st.sampled_from([0, 0.5, 1.7]),
        "top_k": st.integers(1, VOCAB),
        "top_p": st.sampled_from([0.3, 0.9]),
        "min_p": st.sampled_from([0.05, 0.3]),
        "typical_p": st.sampled_from([0.4, 0.95]),
        "repetition_penalty": st.sampled_from([0.7, 1.4]),
        "presence_penalty": st.sampled_from([-1.0, 1.5]),
        "frequency_penalty": st.sampled_from([-0.5, 1.0]),
        "logit_bias": st.dictionaries(TOKENS, st.sampled_from([-9.0, 4.0]), max_size=3),
        "bad_words": st.lists(st.lists(TOKENS, min_size=1, max_size=2), max_size=4),
        "min_tokens": st.integers(1, 3),
        "no_repeat_ngram_size": st.sampled_from([2, 3]),
        "force_words": st.lists(st.lists(TOKENS, min_size=1, max_size=2), max_size=1),
        "logprobs": st.integers(0, 3),
    },
)


class KernelRows(Rows):
    """Rows that the kernel draws from memory where a step of the network leaves them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        reference, slots = self.sampler, len(self.slots)
        self.tokens = torch.full((slots + FIRST,), -7)
        self.sequences = type(self.sequences)(slots + FIRST, 4096)
        self.slots = np.arange(slots) + FIRST
        self.sampler = Sampler(self.sequences, VOCAB, self.tokens)
        self._settings = [state.settings for state in reference._states if state is not None]

    def admit(self, row: int, history: tuple[list[int], list[int]], settings: Settings | None = None) -> None:
        self.sequences.start(row + FIRST, *history)
        self.sampler.admit(row + FIRST, settings or self._settings[row])

    def step(self, logits: torch.Tensor) -> Sampled:
        rows = slice(0, FIRST + len(self.slots))
        draw = self.sampler.draw(self.slots, rows)
        assert draw is not None
        padded = torch.cat([torch.full((FIRST, VOCAB), torch.nan), logits])
        draw(padded, torch.arange(len(padded)))
        sampled = self.sampler.launch(logits, self.slots, self.tokens[FIRST:].clone())()
        self.sampler.accept(self.slots, sampled.tokens, is_counted=True)
        self.sequences.append(self.slots, sampled.tokens)
        return sampled


def both(params: list[SamplingParams], histories: list[tuple[list[int], list[int]]]) -> tuple[Rows, KernelRows]:
    expected, tested = Rows(VOCAB, params, histories), KernelRows(VOCAB, params, histories)
    for row, history in enumerate(histories):
        tested.admit(row, history)
    return expected, tested


def assert_same(expected: Sampled, sampled: Sampled) -> None:
    assert sampled.tokens.tolist() == expected.tokens.tolist()
    assert (sampled.logprobs, sampled.errors) == (expected.logprobs, expected.errors)


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.lists(SETTINGS, min_size=1, max_size=3), st.integers(0, 999), st.data())
def test_steps_draw_the_tokens_of_the_sampler(settings: list[Any], seed: int, data: st.DataObject) -> None:
    """Over four steps, so that counts, ends that are allowed at last, and rows that wait for the host matter."""
    params = [SamplingParams(max_tokens=6, **each) for each in settings]
    history = st.tuples(st.lists(TOKENS, min_size=1, max_size=4), st.lists(TOKENS, max_size=2))
    expected, tested = both(params, [data.draw(history) for _ in params])
    generator = torch.manual_seed(seed)
    for _ in range(4):
        logits = torch.randn(len(params), VOCAB, generator=generator) * 3
        logits[:, EOS] += 4
        assert_same(expected.step(logits), tested.step(logits))


PENALISED = SamplingParams(
    seed=1, repetition_penalty=1.3, frequency_penalty=0.8, logit_bias={4: 3.0}, bad_words=((7,),)
)


@pytest.mark.parametrize("following", [SamplingParams(seed=2), PENALISED, SamplingParams(temperature=0)], ids=range(3))
def test_a_slot_that_is_taken_again_or_copied_keeps_nothing_of_others(following: SamplingParams) -> None:
    params, history = [PENALISED, PENALISED], ([3, 3, 4], [5])
    expected, tested = both(params, [history, history])
    generator = torch.manual_seed(0)
    for step in range(12):
        logits = (torch.randn(1, VOCAB, generator=generator) * 2).expand(2, -1).contiguous()
        assert_same(expected.step(logits), tested.step(logits))
        if step == 4:
            settings = Settings.resolve(following, expected.vocabulary)
            for rows, slot in ((expected, 0), (tested, FIRST)):
                rows.sampler.release(slot)
                rows.sequences.start(slot, [9], [])
                rows.sampler.admit(slot, settings)
        if step == 8:
            for rows, slot in ((expected, 0), (tested, FIRST)):
                rows.sequences.copy(slot + 1, slot)
                rows.sampler.copy(slot + 1, slot)


def test_tokens_that_the_host_draws_are_counted_for_the_next_step() -> None:
    expected, tested = both([PENALISED], [([3], [])])
    logits = torch.zeros(1, VOCAB)
    logits[0, :2] = 8.0
    for step in range(10):
        rows = tested.step if step % 2 else lambda logits: Rows.step(tested, logits)
        assert_same(expected.step(logits), rows(logits))
    assert len(set(expected.sequences.generated(0).tolist())) > 1


def test_a_row_that_fails_says_why() -> None:
    params = [SamplingParams(seed=1, bad_words=tuple((token,) for token in range(VOCAB))), SamplingParams(seed=2)]
    expected, tested = both(params, [([3], []), ([3], [])])
    logits = torch.zeros(2, VOCAB)
    logits[0, EOS], logits[1, 5] = -torch.inf, torch.nan  # an end is no bad word
    sampled = tested.step(logits)
    assert_same(expected.step(logits), sampled)
    reasons = ["no token is left: `bad_words` bars every one", "the model's logits hold NaN or infinity"]
    assert sampled.errors == dict(enumerate(reasons))


def test_plans_count_the_memory_that_sampling_takes_on_the_device() -> None:
    """A slot's settings that need every table; tables have a row for every slot, used or not."""
    params = SamplingParams(temperature=1.0, logit_bias={3: 1.0}, presence_penalty=1.0, bad_words=[[5]])
    rows = KernelRows(VOCAB, [params, params])
    for row in range(2):
        rows.admit(row, ([0], []))
    draw = rows.sampler.draw(rows.slots, slice(FIRST, FIRST + 2))
    assert draw is not None
    assert draw.memory is not None
    kept = (*draw.memory, *draw.tables)
    assert all(table is not None for table in kept)
    size_bytes = sum(table.nbytes for table in kept if table is not None)
    assert size_bytes == sampling_bytes(2 + FIRST, VOCAB)
