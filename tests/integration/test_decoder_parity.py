"""Every decoder family against transformers: prefill, decode, chunks, slots, precisions, builds."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.decoder_case import Case, case
from tests.decoder_cases import CASES, VARIED
from tests.decoders import Runner, T, builds, executor_of, graph_of, model_of, relative_rms
from tests.selection import slow_unless
from trtkit.dtypes import BF16, FP16, FP32, DType
from trtkit.network.decoder_options import DecoderOptions

IDS = torch.randint(3, 67, (6, 21), generator=torch.Generator().manual_seed(1))
# engines/test_decoders builds them in fp16, all by `make slow`.
BUILDS = slow_unless(lambda case, _: case.name in VARIED, itertools.product(CASES, (BF16, FP32)))
WINDOWED = [case for case in CASES if case.name in (*VARIED, "mistral", "falcon-alibi")]
MIXTURES = [case for case in CASES if {"num_experts_per_tok", "top_k_experts"} & case.config.keys()]
FEW = [case for case in MIXTURES if case.name in ("qwen3_moe", "glm4_moe")]
FEW_HEADS = [
    case(f"{heads}-heads-{groups}", "llama", head_dim=16, num_attention_heads=heads, num_key_value_heads=groups)
    for heads, groups in ((1, 1), (2, 1), (2, 2), (3, 1), (3, 3))
]
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


@families
def test_attention_reads_no_cached_tokens_beyond_its_window(case: Case) -> None:
    """Those beyond are not numbers, so reading them would show even where they are masked."""
    options = DecoderOptions(FP32, T, has_all_logits=True, has_kv_window=True)
    runner = Runner(graph_of(model_of(case), options))
    runner.reset(6, readable=24)
    windows = (12, 16, 24)
    chunks = [
        runner.step(part, key_positions=torch.arange(window, dtype=torch.int32))["logits"]
        for part, window in zip(IDS.split(8, 1), windows, strict=True)
    ]
    assert relative_rms(torch.cat(chunks, 1), model_of(case).logits(IDS)) <= 1e-4


@pytest.mark.parametrize("case", MIXTURES, ids=str)
def test_a_step_reads_the_chosen_experts_and_gives_the_logits_of_transformers(case: Case) -> None:
    """Two slots of one token choose fewer than all experts, or all, by family; a prefill reads all."""
    model = model_of(case)
    graph = graph_of(model, DecoderOptions(FP32, T, has_all_logits=True, experts="auto"))
    runner, want = Runner(graph), model.logits(IDS)
    for rows, chunk in ((1, 1), (2, 1), (1, 3), (6, 8)):
        runner.reset(rows)
        logits = torch.cat([runner.step(part)["logits"] for part in IDS[:rows].split(chunk, 1)], 1)
        assert relative_rms(logits, want[:rows]) <= 1e-5


@pytest.mark.parametrize("case", FEW, ids=str)
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_networks_that_read_chosen_experts_build(case: Case, dtype: DType) -> None:
    """All of them in fp16: engines/test_decoders."""
    graph = graph_of(model_of(case), DecoderOptions(dtype, T, experts="auto"))
    assert builds(graph, has_decode=True)


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


@pytest.mark.parametrize(
    ("case", "dtype"),
    slow_unless(lambda case, dtype: dtype is FP16 or case.name == "llama", itertools.product(WINDOWED, (FP16, BF16))),
    ids=str,
)
def test_networks_with_a_window_build(case: Case, dtype: DType) -> None:
    graph = graph_of(model_of(case), DecoderOptions(dtype, T, has_kv_window=True))
    assert builds(graph, has_decode=True)


@pytest.mark.parametrize(("case", "dtype"), BUILDS, ids=str)
def test_the_network_builds(case: Case, dtype: DType) -> None:
    assert builds(graph_of(model_of(case), DecoderOptions(dtype, T)))


@pytest.mark.parametrize("few", FEW_HEADS, ids=str)
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_few_query_heads_decode_and_build(few: Case, dtype: DType) -> None:
    """TensorRT-RTX 1.7.1 has no fused attention for one new token of fewer than four query heads."""
    runner = executor_of(few, dtype)
    runner.reset(6)
    logits = torch.cat([runner.step(part)["logits"] for part in (IDS[:, :-1], IDS[:, -1:])], 1)
    assert relative_rms(logits, model_of(few).logits(IDS, dtype)) <= 10 * dtype.tolerance
    assert builds(graph_of(model_of(few), DecoderOptions(dtype, T)), has_decode=True)
