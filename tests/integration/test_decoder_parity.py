"""Every decoder family against transformers: prefill, decode, chunks, slots, precisions, builds."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.selection import slow_unless
from tests.support.covering import SEEN, STEPPED, in_covering_set_of
from tests.support.decoder_case import Case, case
from tests.support.decoder_cases import CASES
from tests.support.decoders import Runner, T, builds, executor_of, graph_of, model_of, relative_rms
from trtkit.dtypes import BF16, FP16, FP32, DType
from trtkit.network.decoder_options import DecoderOptions

IDS = torch.randint(3, 67, (6, 21), generator=torch.Generator().manual_seed(1))
COUNTS = [13, 1, 6]
"""Tokens of prompts that are prefilled together."""
STEPS = ((16, 13), (20, 4), *[(24, 1)] * 4)
"""The cached tokens that a step may read, and its new tokens of each slot."""
NEW_TOKENS, LONGEST = 8, 24
in_covering_set = in_covering_set_of(CASES)
HALVES = slow_unless(lambda case, dtype: dtype is FP16 or in_covering_set(case), itertools.product(CASES, (FP16, BF16)))
CHUNKS = slow_unless(in_covering_set, itertools.product(CASES, (1, 4, 8)))
# engines/test_decoders builds some families in fp16, and with pages in fp32. Here these are built with windows in bf16,
# and all other kinds of layers in fp16 and bf16 in turn.
is_stepped, types = in_covering_set_of(CASES, STEPPED), itertools.cycle((FP16, BF16))
TURNS = {case: next(types) for case in CASES if in_covering_set(case) and not is_stepped(case)}
BUILDS = slow_unless(lambda case, dtype: TURNS.get(case) is dtype, itertools.product(CASES, (FP16, BF16, FP32)))
WINDOWED = slow_unless(in_covering_set_of(CASES, SEEN), CASES)
MIXTURES = [case for case in CASES if {"num_experts_per_tok", "top_k_experts"} & case.config.keys()]
FEW_HEADS = [
    case(f"{heads}-heads-{groups}", "llama", head_dim=16, num_attention_heads=heads, num_key_value_heads=groups)
    for heads, groups in ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3))
]
families = pytest.mark.parametrize("case", CASES, ids=str)


@families
def test_fp32_logits_of_every_step_are_those_of_transformers(case: Case) -> None:
    """Also from caches read up to a window: what lies beyond is not numbers, which would show even if masked."""
    model = model_of(case)
    windowed = Runner(graph_of(model, DecoderOptions(FP32, T, has_all_logits=True, has_kv_window=True)))
    wanted = [model.logits(IDS[slot : slot + 1, : count + NEW_TOKENS])[0] for slot, count in enumerate(COUNTS)]
    for runner, readable in ((executor_of(case, FP32), T), (windowed, LONGEST)):
        runner.reset(len(COUNTS), readable)
        for got, want in zip(logits_of_steps(runner), wanted, strict=True):
            assert relative_rms(got, want) <= 1e-4


def logits_of_steps(runner: Runner) -> list[torch.Tensor]:
    """Return logits [S, V] of slots that are prefilled together with padding, then take STEPS, each in a window."""
    got: list[list[torch.Tensor]] = [[] for _ in COUNTS]
    for window, size in STEPS:
        first = [runner.lengths[slot] for slot in range(len(COUNTS))]
        counts = COUNTS if not any(first) else [size] * len(COUNTS)
        ids = torch.stack([row[start : start + size] for row, start in zip(IDS, first, strict=False)])
        logits = runner.step(ids, counts, key_positions=torch.arange(window, dtype=torch.int32))["logits"]
        for slot, count in enumerate(counts):
            got[slot].append(logits[slot, :count])
    return [torch.cat(parts) for parts in got]


@pytest.mark.parametrize(("case", "dtype"), HALVES, ids=str)
def test_16_bit_logits_are_those_of_transformers_to_rounding(case: Case, dtype: DType) -> None:
    """In fp16 of all families."""
    runner = executor_of(case, dtype)
    runner.reset(6)
    got, want = runner.step(IDS)["logits"], model_of(case).logits(IDS, dtype)
    assert relative_rms(got, want) <= 10 * dtype.tolerance
    best = want.topk(2).values
    is_clear = best[..., 0] - best[..., 1] > 4 * dtype.tolerance * want.square().mean().sqrt()
    same = got.argmax(-1) == want.argmax(-1)
    assert is_clear.float().mean() > 0.5
    assert same[is_clear].float().mean() >= 0.99


@pytest.mark.parametrize(("case", "chunk"), CHUNKS, ids=str)
def test_chunks_give_the_logits_of_one_prefill(case: Case, chunk: int) -> None:
    runner = executor_of(case, FP32)
    runner.reset(6)
    chunks = [runner.step(part)["logits"] for part in IDS.split(chunk, 1)]
    assert relative_rms(torch.cat(chunks, 1), model_of(case).logits(IDS)) <= 1e-4


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(MIXTURES), MIXTURES), ids=str)
def test_a_step_reads_the_chosen_experts_and_gives_the_logits_of_transformers(case: Case) -> None:
    """Two slots of one token choose fewer than all experts, or all, by family; a prefill reads all."""
    model = model_of(case)
    graph = graph_of(model, DecoderOptions(FP32, T, has_all_logits=True, experts="auto"))
    runner, want = Runner(graph), model.logits(IDS)
    for rows, chunk in ((1, 1), (2, 1), (1, 3), (6, 8)):
        runner.reset(rows)
        logits = torch.cat([runner.step(part)["logits"] for part in IDS[:rows].split(chunk, 1)], 1)
        assert relative_rms(logits, want[:rows]) <= 1e-5


@pytest.mark.parametrize(("rows", "new"), [(1, 1), (2, 1), (1, 2), (3, 1), (2, 7)])
def test_the_executor_reads_as_many_experts_as_are_chosen(rows: int, new: int) -> None:
    """Counted by what its layers give: matrices of 2 experts for each token, of all 5 at most."""
    case = next(case for case in MIXTURES if case.name == "qwen3_moe")
    graph = graph_of(model_of(case), DecoderOptions(FP32, T, has_all_logits=True, experts="auto"))
    runner = Runner(graph)
    runner.reset(rows)
    read = runner.read_bytes(IDS[:rows, :new], "moe/experts/(gate|up|down)/gather$")
    matrices = [array for name, array in model_of(case).checkpoint.items() if ".experts." in name]
    assert read * 5 == min(2 * rows * new, 5) * sum(array.nbytes for array in matrices)


@pytest.mark.parametrize("case", WINDOWED, ids=str)
def test_networks_with_a_window_build(case: Case) -> None:
    graph = graph_of(model_of(case), DecoderOptions(BF16, T, has_kv_window=True))
    assert builds(graph, has_decode=True)


@pytest.mark.parametrize(("case", "dtype"), BUILDS, ids=str)
def test_the_network_builds(case: Case, dtype: DType) -> None:
    """For prompts and for steps, as a bundle has it."""
    assert builds(graph_of(model_of(case), DecoderOptions(dtype, T, experts="auto")), has_decode=True)


@pytest.mark.parametrize(
    ("few", "dtype"),
    slow_unless(
        lambda few, dtype: dtype is FP16 or few.config["num_attention_heads"] == 1,
        itertools.product(FEW_HEADS, (FP16, BF16)),
    ),
    ids=str,
)
def test_few_query_heads_decode_and_build(few: Case, dtype: DType) -> None:
    """TensorRT-RTX 1.7.1 has no fused attention for one new token of fewer than four query heads."""
    runner = executor_of(few, dtype)
    runner.reset(6)
    logits = torch.cat([runner.step(part)["logits"] for part in (IDS[:, :-1], IDS[:, -1:])], 1)
    assert relative_rms(logits, model_of(few).logits(IDS, dtype)) <= 10 * dtype.tolerance
    assert builds(graph_of(model_of(few), DecoderOptions(dtype, T)), has_decode=True)
