"""Every decoder family against transformers: prefill, decode, chunks, slots, precisions, builds."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.decoder_cases import CASES, VARIED, Case
from tests.decoders import T, builds, executor_of, graph_of, model_of, relative_rms
from tests.selection import slow_unless
from trtkit.dtypes import BF16, FP16, FP32, DType
from trtkit.network.decoder import DecoderOptions

IDS = torch.randint(3, 67, (6, 21), generator=torch.Generator().manual_seed(1))
BUILDS = slow_unless(
    lambda case, dtype: dtype is FP16 or case.name in VARIED, itertools.product(CASES, (FP16, BF16, FP32))
)
families = pytest.mark.parametrize("case", CASES, ids=str)


@families
def test_fp32_logits_are_those_of_transformers(case: Case) -> None:
    runner = executor_of(case, FP32)
    runner.reset(6)
    assert relative_rms(runner.step(IDS)["logits"], model_of(case).logits(IDS)) <= 1e-4


@families
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_16_bit_logits_are_those_of_transformers_to_rounding(case: Case, dtype: DType) -> None:
    runner = executor_of(case, dtype)
    runner.reset(6)
    got, want = runner.step(IDS)["logits"], model_of(case).logits(IDS, dtype)
    assert relative_rms(got, want) <= 10 * dtype.tolerance
    best = want.topk(2).values
    is_clear = best[..., 0] - best[..., 1] > 4 * dtype.tolerance * want.square().mean().sqrt()
    same = got.argmax(-1) == want.argmax(-1)
    assert is_clear.float().mean() > 0.5
    assert same[is_clear].float().mean() >= 0.99


@families
@pytest.mark.parametrize("chunk", [1, 4, 8])
def test_chunks_give_the_logits_of_one_prefill(case: Case, chunk: int) -> None:
    runner = executor_of(case, FP32)
    runner.reset(6)
    chunks = [runner.step(part)["logits"] for part in IDS.split(chunk, 1)]
    assert relative_rms(torch.cat(chunks, 1), model_of(case).logits(IDS)) <= 1e-4


@families
def test_slots_of_different_lengths_give_what_each_gives_alone(case: Case) -> None:
    """Lengths 13, 1 and 6 are prefilled together with padding, then each slot decodes two tokens."""
    runner, counts = executor_of(case, FP32), [13, 1, 6]
    runner.reset(3)
    prefill = runner.step(IDS[:3, :13], counts)["logits"]
    columns = [torch.stack([row[count + step] for row, count in zip(IDS[:3], counts, strict=True)]) for step in (0, 1)]
    decoded = [runner.step(column[:, None])["logits"] for column in columns]
    for slot, count in enumerate(counts):
        want = model_of(case).logits(IDS[slot : slot + 1, : count + 2])[0]
        got = torch.cat([prefill[slot, :count], *[logits[slot] for logits in decoded]])
        assert relative_rms(got, want) <= 1e-4


@pytest.mark.parametrize(("case", "dtype"), BUILDS, ids=str)
def test_the_network_builds(case: Case, dtype: DType) -> None:
    assert builds(graph_of(model_of(case), DecoderOptions(dtype, T)))
