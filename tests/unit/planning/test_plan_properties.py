"""Laws of plans: more work, longer contexts and more bits never cost less; searches find what a scan finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.planning.planned import TINY_LLAMA, counted, published_counts, question
from trtkit.backends import load_backend
from trtkit.builder.decoders import decoder_profiles
from trtkit.config.llm import LlmOptions
from trtkit.dtypes import FP16
from trtkit.models.parallel import Grid
from trtkit.models.registry import decoder_spec
from trtkit.network.decoder_options import DecoderOptions
from trtkit.planning.count_decoder import _network
from trtkit.planning.formats import FORMATS, Format, in_format, quantized_bytes
from trtkit.planning.gpus import PlannedGpu, find_gpus, planned_gpus
from trtkit.planning.grids import link_seconds, tensor_pays_up_to
from trtkit.planning.llm import cost_per_million, mixed_steps, plan_llm, speeds
from trtkit.planning.memory import Footprint, PackedRoom, largest
from trtkit.planning.plan import packed_room
from trtkit.planning.roofline import compute_bound_batch, floor, group_floor, mixed_floor, unfused_s
from trtkit.planning.shares import GridShare, rank_bytes, tensor_share
from trtkit.quantized_model import QuantizedModel

if TYPE_CHECKING:
    from trtkit.planning.question import PlanningQuestion
    from trtkit.planning.report import ContextPlan

H100, H200, L4 = find_gpus(["h100", "h200", "l4"])
LLAMA = "llama-2-7b"
batches, lengths = st.integers(1, 512), st.integers(1, 4096)
gpus = st.sampled_from(planned_gpus())


@pytest.fixture(scope="module", autouse=True)
def made_once() -> None:
    """Count before any property is timed."""
    published_counts(LLAMA)
    published_counts("llama-3.1-8b")
    published_counts("mixtral-8x7b")


def footprint(chunk: int = 512) -> Footprint:
    model = question(LLAMA).model
    return Footprint(published_counts(LLAMA), model.weight_bytes, model.kv_bytes_per_token, chunk, model.vocab_size)


@given(batches, batches, lengths, lengths, st.booleans())
def test_memory_grows_with_batch_and_context(b1: int, b2: int, t1: int, t2: int, is_packed: bool) -> None:
    small, large = (min(b1, b2), min(t1, t2)), (max(b1, b2), max(t1, t2))
    planned = replace(footprint(), packed=PackedRoom(2111, 8, 6 * 128256) if is_packed else None)
    assert planned.need(*small).total <= planned.need(*large).total


@pytest.mark.parametrize("logits", ["all", "last"])
def test_memory_has_room_for_the_largest_call_of_the_engine(logits: Literal["all", "last"]) -> None:
    """As TensorRT reserves it by the largest shapes of the profile."""
    options = LlmOptions(max_batch_size=64, max_sequence_length=4096, max_prefill_length=2048, logits=logits)
    model = question(LLAMA).model
    room = packed_room(options, model)
    parts = room.parts(64, 4096)
    written = DecoderOptions(FP16, 4096, has_all_logits=logits == "all", is_packed=True)
    graph = _network(load_backend("tensorrt_rtx"), decoder_spec(TINY_LLAMA), written, QuantizedModel({}))
    mixed, _ = decoder_profiles(graph.inputs, options)
    tokens = sum(rows * new for rows, new, _ in parts)
    assert mixed["input_ids"].max == (tokens, 1)
    assert mixed["logit_index"].max == (tokens if logits == "all" else 64,)
    need = replace(footprint(), packed=room).need(64, 4096)
    assert (need.activations >= tokens * 6 * model.vocab_size) == (logits == "all")


@given(batches, batches, st.integers(1, 64), st.integers(1, 64), lengths, lengths, gpus)
def test_time_grows_with_batch_new_tokens_and_context(
    b1: int, b2: int, s1: int, s2: int, t1: int, t2: int, gpu: PlannedGpu
) -> None:
    small, large = (min(b1, b2), min(s1, s2), min(t1, t2)), (max(b1, b2), max(s1, s2), max(t1, t2))
    counts = published_counts(LLAMA)
    assert floor(counts, small, gpu).seconds <= floor(counts, large, gpu).seconds
    assert unfused_s(counts, small, gpu) <= unfused_s(counts, large, gpu)


@settings(max_examples=30)
@given(st.floats(1, 16), st.floats(1, 16), st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16]), batches, lengths)
def test_memory_and_traffic_grow_with_bits(w1: float, w2: float, k1: int, k2: int, batch: int, length: int) -> None:
    few = Format("few", min(w1, w2), min(k1, k2))
    many = Format("many", max(w1, w2), max(k1, k2))
    counts = published_counts(LLAMA)
    assert quantized_bytes(counts, FP16, few.weight_bits) >= quantized_bytes(counts, FP16, many.weight_bits)
    a, b = in_format(counts, FP16, few), in_format(counts, FP16, many)
    point = (batch, 1, length)
    assert a.fused_bytes.at(point) <= b.fused_bytes.at(point) <= counts.fused_bytes.at(point)
    assert a.flops == b.flops == counts.flops


@given(batches, lengths, gpus)
def test_a_whole_network_takes_as_long_as_its_products_at_least(batch: int, length: int, gpu: PlannedGpu) -> None:
    counts, point = published_counts(LLAMA), (batch, 1, length)
    found = floor(counts, point, gpu)
    if found.compute_s is not None:
        parts = [group_floor(group, point, gpu).compute_s or 0.0 for group in counts.groups]
        assert found.compute_s == pytest.approx(sum(parts))
    assert found.seconds <= unfused_s(counts, point, gpu) * (1 + 1e-9)


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_largest_is_the_last_that_fits(last: int, limit: int) -> None:
    assert largest(lambda size: size <= last, limit) == min(last, limit)


@settings(max_examples=20)
@given(st.integers(1, 4096), st.sampled_from(["l4", "rtx4090", "a100-80", "h200"]))
def test_largest_batch_is_that_of_a_scan(length: int, name: str) -> None:
    (gpu,) = find_gpus([name])
    found = footprint().largest_batch(length, gpu.memory_bytes)
    assert found == 0 or footprint().need(found, length).total <= gpu.memory_bytes
    assert footprint().need(found + 1, length).total > gpu.memory_bytes


@pytest.mark.parametrize("length", [0, 16, 64, 256, 4096])
@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b"])
def test_compute_bound_batch_is_that_of_a_scan(name: str, length: int) -> None:
    counts = published_counts(name)
    scanned = next((b for b in range(1, 4000) if floor(counts, (b, 1, length), H200).bound == "compute"), None)
    found = compute_bound_batch(counts, length, H200)
    assert found == scanned or (scanned is None and found is not None and found >= 4000)


def test_grouped_heads_turn_compute_bound_where_full_ones_never_do() -> None:
    assert compute_bound_batch(published_counts("llama-2-7b"), 4096, H200) is None
    assert compute_bound_batch(published_counts("llama-3.1-8b"), 0, H200) == pytest.approx(206, abs=4)  # the ridge


def test_unknown_rates_leave_the_floor_to_memory() -> None:
    (gb10,) = find_gpus(["gb10"])
    found = floor(published_counts(LLAMA), (1, 512, 512), gb10)
    assert found.compute_s is None
    assert found.seconds == found.memory_s
    assert found.bound == "memory, or compute of unknown rate"
    assert compute_bound_batch(published_counts(LLAMA), 0, gb10) is None


def test_decode_floor_is_bytes_over_bandwidth() -> None:
    """Weights and cache of Llama 2 7B over the 4.8 TB/s of an H200, by hand."""
    read = 2 * (6_738_415_616 - 131_072_000) + 524_288 * 577
    found = floor(published_counts(LLAMA), (1, 1, 576), H200)
    assert found.memory_s == pytest.approx(read / 4.8e12, rel=1e-3)
    assert found.bound == "memory"


def test_prefill_floor_is_operations_over_rate() -> None:
    found = floor(published_counts(LLAMA), (1, 512, 512), H200)
    dense = 2 * (6_738_415_616 - 2 * 131_072_000) * 512 + 2 * 131_072_000
    attention = 32 * 32 * 512 * 512 * (4 * 128 + 5)
    assert found.compute_s == pytest.approx((dense + attention) / 989.5e12, rel=1e-3)
    assert found.bound == "compute"


@pytest.mark.parametrize("reached", [1.0, 0.6])
@pytest.mark.parametrize("tokens", [128, 512])
def test_a_mixed_step_reads_weights_once_and_computes_meanwhile(tokens: int, reached: float) -> None:
    """Llama 3.1 8B on an H100 by hand: at 60 % of its rate, 512 prompt tokens take longer than reading the weights."""
    asked = question("llama-3.1-8b")
    rate, bandwidth = reached * 989.4e12, 3.35e12
    gpu = replace(find_gpus(["h100"])[0], rates={"bf16": rate})
    embedding, kv_token, layers = 128_256 * 4096, 131_072, 32
    weights = 8_030_261_248 - embedding
    read_s = 2 * weights / bandwidth
    caches_s = [kv_token * cached / bandwidth for cached in (576, 512)]
    scores = 4 * 32 * 128 * layers
    decode_s, chunk_s = (
        (2 * ((weights - embedding) * new + embedding) + scores * new * cached) / rate
        for new, cached in ((1, 576), (tokens, 512))
    )
    step = next(step for step in mixed_steps(asked, gpu) if step.prompt_tokens == tokens)
    assert step.packed.seconds == pytest.approx(max(read_s + sum(caches_s), decode_s + chunk_s), rel=0.01)
    assert step.packed.bound == ("compute" if tokens == 512 else "memory")
    separate_s = max(read_s + caches_s[0], decode_s) + max(read_s + caches_s[1], chunk_s)
    assert step.separate_ms == pytest.approx(1e3 * separate_s, rel=0.01)


def test_mixed_steps_are_planned_for_chunks_up_to_the_workloads() -> None:
    asked = question(LLAMA, concurrency=8)
    assert [step.prompt_tokens for step in plan_llm(asked, H200).mixed_steps] == [64, 128, 256, 512]
    short = replace(asked, work=replace(asked.work, chunk=20))
    assert [step.prompt_tokens for step in plan_llm(short, H200).mixed_steps] == [20]


parts = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 300), lengths), min_size=1, max_size=4)


@given(parts, gpus, st.sampled_from([LLAMA, "mixtral-8x7b"]))
def test_one_call_takes_no_longer_than_one_for_each_part_and_no_less_than_any(
    parts: list[tuple[int, int, int]], gpu: PlannedGpu, name: str
) -> None:
    counts = published_counts(name)
    packed = mixed_floor(counts, parts, gpu)
    each = [floor(counts, part, gpu) for part in parts]
    assert packed.memory_s <= sum(part.memory_s for part in each) * (1 + 1e-12)
    assert packed.seconds >= max(part.seconds for part in each)
    if counts.mixture is None:  # of a mixture, the network computes more for a token if others have chosen more
        assert packed.seconds <= sum(part.seconds for part in each) * (1 + 1e-12)
    (batch, new, length), *others = parts
    split = [(batch - 1, new, length), (1, new, length)] if batch > 1 else [(batch, new, length)]
    assert mixed_floor(counts, [*split, *others], gpu).seconds == pytest.approx(packed.seconds, rel=1e-3)


def share_of(asked: PlanningQuestion, grid: Grid) -> GridShare:
    return next(share for share in asked.shares if share.grid == grid)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_share_of_tensor_parallelism_is_the_whole_divided(gpus: int) -> None:
    asked = question("llama-3.1-8b")
    share = tensor_share(asked.counts, asked.spec, Grid(gpus), asked.model.dtype)
    for point in ((1, 512, 512), (16, 1, 4096)):
        whole, part = asked.counts.products["bf16"].at(point), share.products["bf16"].at(point)
        assert part == pytest.approx(whole / gpus, rel=1e-3)
    weights, cache = rank_bytes(asked.model, asked.spec, Grid(gpus))
    assert weights == pytest.approx(asked.model.weight_bytes / gpus, rel=1e-3)  # norms are whole
    assert cache * gpus == asked.model.kv_bytes_per_token  # 8 key/value heads
    assert rank_bytes(asked.model, asked.spec, Grid(16))[1] * 8 == asked.model.kv_bytes_per_token
    hidden, logits = 4096 * 2, 128256 * 4
    sent = link_seconds(asked, H200, share_of(asked, Grid(gpus)), 1, 1)[1]
    assert sent == (2 * 65 * hidden + logits) * (gpus - 1) // gpus


def test_a_pipeline_holds_its_layers_and_sends_hidden_states() -> None:
    asked = question("llama-3.1-8b", concurrency=4)
    weights, cache = rank_bytes(asked.model, asked.spec, Grid(pipeline=2))
    assert asked.model.weight_bytes / 2 < weights < 0.55 * asked.model.weight_bytes  # the embedding, or the head
    assert 2 * cache == asked.model.kv_bytes_per_token
    assert link_seconds(asked, H200, share_of(asked, Grid(pipeline=2)), 4, 4)[1] == 4 * 4096 * 2


def test_grids_that_cannot_share_the_model_are_left_out() -> None:
    shared = {(each.tensor, each.pipeline) for each in plan_llm(question("llama-3.1-8b"), H200).grids}
    assert {(2, 1), (1, 2), (8, 2), (16, 1)} <= shared
    odd = question("llama-3.1-8b")
    layers = tuple(replace(layer, mixer=replace(layer.attention, num_attention_heads=31)) for layer in odd.spec.layers)
    grids = plan_llm(replace(odd, spec=replace(odd.spec, layers=layers)), H200).grids
    assert {each.tensor for each in grids} == {1}


def test_the_grid_of_the_config_is_listed() -> None:
    asked = replace(question("llama-3.1-8b"), grid=Grid(4, pipeline=3))
    assert (4, 3) in {(each.tensor, each.pipeline) for each in plan_llm(asked, H200).grids}


def test_what_ranks_save_that_share_tokens() -> None:
    """Llama 3.1 8B: 32 layers of two norms and two sums, and hidden states of 4,096 numbers in fp16."""
    asked = replace(question("llama-3.1-8b"), grid=Grid(8, sequence=True))
    asked = replace(asked, work=replace(asked.work, chunk=500, input_len=600))
    with_share = next(each for each in plan_llm(asked, H200).grids if each.sequence)
    without = next(each for each in plan_llm(asked, H200).grids if (each.tensor, each.pipeline) == (8, 1))
    plan = with_share.sequence
    assert plan is not None
    assert (with_share.tensor, without.sequence, plan.tokens) == (8, None, 500)
    assert (plan.hidden_bytes_without, plan.hidden_bytes) == (500 * 8192, 63 * 8192)  # 500 tokens of 8 ranks: 504
    assert plan.between_bytes == 32 * 4 * plan.hidden_bytes
    assert plan.between_bytes_without == 32 * 4 * plan.hidden_bytes_without
    logits = 4 * 128256
    assert plan.sent_bytes_without == (2 * 65 * 500 * 8192 + logits) * 7 // 8
    assert plan.sent_bytes == ((65 + 64) * 504 * 8192 + 2 * 8192 + logits) * 7 // 8
    saved = without.memory_per_gpu.activations - with_share.memory_per_gpu.activations
    assert saved == (500 - 63) * 8192
    assert with_share.largest_batch >= without.largest_batch
    assert with_share.tpot_s > without.tpot_s  # a decode step has twice as many collectives
    assert tensor_pays_up_to(asked, H200) == tensor_pays_up_to(question("llama-3.1-8b"), H200)


def test_what_ranks_save_that_share_cached_positions() -> None:
    """Llama 3.1 8B: 32 layers, 32 query and 8 key/value heads of 128; 16 ranks hold each of these twice."""
    asked = replace(question("llama-3.1-8b", input_len=4000, output_len=96, concurrency=4), grid=Grid(16, context=16))
    shared = next(each for each in plan_llm(asked, H200).grids if each.context)
    without = next(
        each for each in plan_llm(asked, H200).grids if (each.tensor, each.pipeline, each.context) == (16, 1, None)
    )
    plan = shared.context
    assert plan is not None
    token = 32 * 2 * 128 * 2  # of one head in fp16
    assert (plan.length, plan.cache_bytes_without, plan.cache_bytes) == (4096, 4 * 4096 * token, 4 * 4096 * token // 2)
    assert plan.read_s_without == pytest.approx(2 * plan.read_s)
    gathered, merged = 32 * 16 * (2 + 2 * 1) * 128 * 2, 32 * 32 * (128 + 2) * 4
    assert plan.sent_bytes - plan.sent_bytes_without == pytest.approx(4 * (gathered + merged) * 15 / 16, abs=2)
    assert plan.links_s > plan.links_s_without
    assert shared.largest_batch > without.largest_batch
    assert without.tpot_s < shared.tpot_s  # at this length


def test_the_length_from_which_sharing_positions_pays_is_where_steps_are_equally_long() -> None:
    def plan_at(length: int) -> ContextPlan:
        asked = question("llama-3.1-70b", input_len=length - 128, output_len=128, concurrency=8)
        grids = plan_llm(replace(asked, grid=Grid(16, context=16)), H100).grids
        return next(each.context for each in grids if each.context)

    pays_from = plan_at(131072).pays_from
    assert pays_from is not None
    before, after = plan_at(pays_from - 1), plan_at(pays_from)
    assert before.step_s >= before.step_s_without
    assert after.step_s < after.step_s_without
    asked = replace(question("llama-3.1-70b", concurrency=8), grid=Grid(8, context=8))
    eight = next(each.context for each in plan_llm(asked, H100).grids if each.context)
    assert eight.pays_from is None  # each of 8 ranks has one of 8 heads anyway
    assert eight.cache_bytes == eight.cache_bytes_without


def test_the_best_grids_are_those_that_fit() -> None:
    grids = plan_llm(question("llama-3.1-8b", concurrency=16), L4).grids
    by_grid = {(each.tensor, each.pipeline): each.best_at for each in grids}
    assert "TPOT" in by_grid[4, 1]
    assert {name for grid, best in by_grid.items() if grid[0] * grid[1] == 4 for name in best} == {
        "TTFT",
        "TPOT",
        "batch",
    }
    assert not [each for each in grids if each.best_at and not each.fits]
    assert all(each.links_s_per_step < each.tpot_s for each in grids)


def test_no_grid_is_planned_for_gpus_without_a_known_link() -> None:
    orin = plan_llm(question("llama-3.1-8b"), find_gpus(["orin"])[0])
    assert orin.grids == ()
    assert orin.tensor_pays_up_to is None


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_formats_need_what_the_gpu_has(form: Format) -> None:
    asked = question(LLAMA)
    names = [row.name for row in plan_llm(asked, L4).formats]
    assert (form.name in names) == form.fits(L4) == ("fp4" not in form.name)
    turing = [row.name for row in plan_llm(asked, find_gpus(["t4"])[0]).formats]
    assert turing == ["as planned", "int8 weights and products"]


def test_int4_weights_are_as_large_as_their_bits() -> None:
    counts = published_counts(LLAMA)
    matrices = 2 * 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    assert quantized_bytes(counts, FP16, 4.125) == matrices - round(matrices * 4.125 / 16)
    assert quantized_bytes(counts, FP16, None) == 0


@given(batches)
def test_throughput_and_cost_follow_from_the_times(batch: int) -> None:
    found = speeds(question(LLAMA), H200, batch, 3.6)
    seconds = found.ttft_of_all.seconds + 127 * found.tpot.seconds
    assert found.output_tokens_per_second == pytest.approx(batch * 128 / seconds)
    assert found.total_tokens_per_second == pytest.approx(batch * 640 / seconds)
    assert found.cost_per_million_output_tokens == pytest.approx(3.6 / 3600 * seconds / (batch * 128) * 1e6)
    assert cost_per_million(None, 5.0) is None


def test_more_at_once_is_more_throughput_and_more_latency() -> None:
    curve = plan_llm(question(LLAMA), H200).curve
    assert [row.batch for row in curve] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 333]
    for before, after in pairwise(curve):
        assert before.tpot.seconds < after.tpot.seconds
        assert before.output_tokens_per_second < after.output_tokens_per_second


def test_fp32_reads_twice_what_fp16_reads() -> None:
    fields = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    fields |= {"num_attention_heads": 4, "vocab_size": 128, "max_position_embeddings": 64}
    wide, narrow = counted(fields, "fp32"), counted(fields, "fp16")
    assert wide.cache_bytes.at((3, 1, 50)) == 2 * narrow.cache_bytes.at((3, 1, 50))
    assert set(wide.products) == {"fp32"}


@given(st.integers(1, 512), gpus)
@settings(max_examples=25)
def test_a_smaller_budget_for_weights_is_never_faster_and_holds_more(concurrency: int, gpu: PlannedGpu) -> None:
    asked = question(LLAMA, concurrency=concurrency)
    plan = plan_llm(asked, gpu)
    assert bool(plan.streaming) == bool(gpu.host_link)
    for small, large in pairwise(plan.streaming):
        assert small.budget_bytes + small.streamed_bytes == large.budget_bytes + large.streamed_bytes
        assert small.tpot_s >= large.tpot_s
        assert small.largest_batch >= large.largest_batch
        assert small.fits >= large.fits
    if plan.streaming:
        all_of_them = plan.streaming[-1]
        assert (all_of_them.streamed_bytes, all_of_them.free_from_batch) == (0, 1)
        assert all_of_them.tpot_s == plan.speed.tpot.seconds
        assert (all_of_them.fits, all_of_them.largest_batch) == (plan.fits, plan.largest_batch)


def test_streaming_is_free_from_the_batch_whose_step_takes_as_long_as_the_copies() -> None:
    asked = question(LLAMA, concurrency=4)
    counts, length = asked.counts, asked.work.decode()[2]
    for budget in plan_llm(asked, L4).streaming:
        batch = budget.free_from_batch
        assert batch is not None
        assert budget.stream_s_per_step == pytest.approx(budget.streamed_bytes / 31.52e9)  # PCIe 4.0 x16
        assert floor(counts, (batch, 1, length), L4).seconds >= budget.stream_s_per_step
        assert batch == 1 or floor(counts, (batch - 1, 1, length), L4).seconds < budget.stream_s_per_step
        step_s = floor(counts, (budget.largest_batch, 1, length), L4).seconds
        least_s = max(step_s, budget.stream_s_per_step)
        assert budget.most_decode_tokens_per_second == pytest.approx(budget.largest_batch / least_s)


def test_the_largest_budget_that_fits_is_planned() -> None:
    asked = question("opt-175b", concurrency=4)
    rows = plan_llm(asked, H200).streaming
    best = max((row for row in rows if row.fits), key=lambda row: row.budget_bytes)
    model = asked.model
    sizes = model.weight_bytes, model.kv_bytes_per_token
    need = Footprint(asked.counts, *sizes, asked.work.chunk, model.vocab_size).need(4, asked.work.length).total
    assert best.budget_bytes == model.weight_bytes - (need - H200.memory_bytes)
    assert len(rows) == 6
