from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from tests.unit.llm.sampling.rows import Rows, transformers_scores
from trtkit.llm.sampling.draw import BLOCK, Uniform, draw, noise, uniform_block
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import sequence_seed

ROWS, STEPS = 100, 200


@pytest.mark.parametrize("vocab_size", [13, pytest.param(2003, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"typical_p": 0.7},
        {"top_k": 9, "top_p": 0.7},
    ],
    ids=str,
)
def test_20000_draws_follow_the_distribution_of_transformers(setting: dict[str, Any], vocab_size: int) -> None:
    logits = torch.randn(vocab_size, generator=torch.manual_seed(1)) * 2
    rows = Rows(vocab_size, [SamplingParams(seed=row, max_tokens=999, **setting) for row in range(ROWS)])
    counts = np.zeros(vocab_size)
    for _ in range(STEPS):
        np.add.at(counts, rows.step(logits.expand(ROWS, -1)).tokens, 1)
    wanted = transformers_scores(logits, SamplingParams(**setting), [0], []).double().softmax(-1).numpy()
    assert counts.sum() == ROWS * STEPS
    assert not counts[wanted == 0].any()
    often = wanted * ROWS * STEPS >= 5  # the rare ones are one class, as the test wants
    got = np.append(counts[often], counts[~often].sum())
    expected = np.append(wanted[often], wanted[~often].sum()) * ROWS * STEPS
    kept = expected > 0
    assert chisquare(got[kept], expected[kept]).pvalue > 1e-4  # of about 30 such tests


def test_numbers_are_uniform_within_a_seed_and_across_seeds() -> None:
    along = np.concatenate([uniform_block(7, block) for block in range(200)])
    across = np.array([uniform_block(seed, 0)[0] for seed in range(5000)])
    assert kstest(along, "uniform").pvalue > 1e-3
    assert kstest(across, "uniform").pvalue > 1e-3
    assert len(set(along.tolist())) == len(along)


def test_the_number_of_a_step_is_the_same_in_any_order_of_steps() -> None:
    steps = np.random.default_rng(0).permutation(5 * BLOCK)
    uniform = Uniform(2)
    uniform.admit(1, 2**64 - 1)
    wanted = np.concatenate([uniform_block(2**64 - 1, block) for block in range(5)])
    got = [uniform.at(np.array([1]), np.array([step]))[0] for step in steps]
    assert got == wanted[steps].tolist()


def test_seeds_of_answers_differ_and_the_first_is_the_requests() -> None:
    seeds = [sequence_seed(5, index) for index in range(100)]
    assert seeds[0] == 5
    assert len(set(seeds)) == 100
    assert seeds == [sequence_seed(5, index) for index in range(100)]
    assert sequence_seed(None, 0) != sequence_seed(None, 0)


def test_a_seed_repeats_its_tokens_and_another_does_not() -> None:
    def tokens(seed: int) -> list[int]:
        rows = Rows(1000, [SamplingParams(seed=seed, max_tokens=99)])
        generator = torch.manual_seed(0)
        return [int(rows.step(torch.randn(1, 1000, generator=generator)).tokens[0]) for _ in range(80)]

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)


@pytest.mark.parametrize("uniform", [0.0, 5e-324, 1e-300, 0.5, 1 - 2**-53, 1.0])
def test_barred_tokens_are_never_drawn_at_the_edges(uniform: float) -> None:
    scores = torch.full((3, 9), -torch.inf)
    scores[0, [2, 5]] = 0.0  # ends and middle barred
    scores[1, 8] = -80.0  # one token, the last
    scores[2, 0] = 3.0  # one token, the first
    places = draw(scores, np.full(3, uniform))
    assert places[0] in (2, 5)
    assert places[1:].tolist() == [8, 0]


def test_noise_is_that_of_splitmix64() -> None:
    """Values published for the seed 1234567 (Rosetta Code, Pseudo-random numbers/Splitmix64)."""
    published = np.array(
        [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431], np.uint64
    )
    expected = -np.log(((published >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52)
    assert np.array_equal(noise(np.array([1234567]), np.arange(4)), expected)


def test_rounding_changes_no_draw_of_a_large_vocabulary() -> None:
    """Logits a millionth apart, as batches give them: of 2,000 draws by inverse CDF, several would differ."""
    settings: list[dict[str, Any]] = [{"temperature": 1.3, "top_p": 0.9}, {"min_p": 0.02}, {}, {"typical_p": 0.9}]
    params = [SamplingParams(seed=row, max_tokens=99, **settings[row % 4]) for row in range(40)]
    exact, rounded = Rows(49_152, params), Rows(49_152, params)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits, error = torch.randn(2, 40, 49_152, generator=generator)
        tokens = exact.step(logits).tokens
        assert rounded.step(logits * (1 + 1e-6 * error)).tokens.tolist() == tokens.tolist()


MIXED: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7},
    {"top_k": 40},
    {"top_k": 3000},
    {"top_p": 0.9},
    {"top_p": 0.3, "min_p": 0.02},
    {"min_p": 0.1},
    {"typical_p": 0.8},
    {"top_k": 70, "top_p": 0.95, "typical_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"no_repeat_ngram_size": 2, "bad_words": ((3,), (4, 5)), "logit_bias": {8: 3.0}, "min_tokens": 30},
    {"force_words": ((11, 12), (13,)), "top_k": 64},
]


@pytest.mark.parametrize("vocab_size", [700, 9973])  # whole rows, and rows of candidates; neither fits a vector
def test_a_row_gives_the_same_bits_whatever_other_rows_there_are(vocab_size: int) -> None:
    params = [SamplingParams(seed=row, max_tokens=40, **setting) for row, setting in enumerate(MIXED * 3)]
    rng = np.random.default_rng(0)
    histories = [(rng.integers(0, 50, 3 + row).tolist(), rng.integers(0, 50, row % 5).tolist()) for row in range(36)]
    scales = torch.linspace(0.1, 6, len(params))[:, None]
    logits = torch.randn(len(params), vocab_size, generator=torch.manual_seed(0)) * scales
    together = Rows(vocab_size, params, histories)
    scores, tokens = together.process(logits), together.sampler.sample(logits, together.slots).tokens
    for size in (1, 2, 5):
        for chosen in (rng.permutation(len(params))[:size] for _ in range(12)):
            assert torch.equal(together.sampler.process(logits[chosen], chosen), scores[chosen])
            assert together.sampler.sample(logits[chosen], chosen).tokens.tolist() == tokens[chosen].tolist()
    for row, one in enumerate(params):
        alone = Rows(vocab_size, [one], [histories[row]])
        assert torch.equal(alone.process(logits[row : row + 1])[0], scores[row]), one


def test_drawn_tokens_are_among_those_that_are_processed_to_be_allowed() -> None:
    params = [SamplingParams(seed=row, max_tokens=400, **setting) for row, setting in enumerate(MIXED)]
    rows = Rows(5003, params, [([2, 3], [])] * len(params))
    generator = torch.manual_seed(0)
    for _ in range(30):
        logits = torch.randn(len(params), 5003, generator=generator) * 3
        scores = rows.process(logits)
        tokens = rows.step(logits).tokens
        assert torch.isfinite(scores[np.arange(len(params)), tokens]).all()
