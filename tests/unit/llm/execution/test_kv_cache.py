"""Caches of sequences: copied, shared, appended to, saved on the host and loaded elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.support.decoders import builds, graph_of, model_of
from tests.support.generation import LENGTH, case_of, decoder
from trtkit.dtypes import FP16, FP32
from trtkit.errors import ExecutionError
from trtkit.llm.execution import CacheForm, Call, DecoderNetwork, KvCache, ReferenceDecoder, SavedSequence
from trtkit.llm.execution.cached_places import NewTokens
from trtkit.llm.execution.paged_cache import open_cache
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.input_spec import BATCH, Axis, InputSpec
from trtkit.quantized_matrix import KvQuantization, scales_of_pairs
from trtkit.runtime.host_device import HostDevice

if TYPE_CHECKING:
    from trtkit.quantization_methods import CacheFormat
    from trtkit.runtime.device import Stream

PROMPT = [5, 17, 3, 66, 21, 9, 9, 40, 12, 33, 7]
SHAPES = {"past_key_0": (2, 4), "past_value_0": (2, 4), "past_key_1": (1, 6)}


def cache(dtype: torch.dtype = torch.float32, slots: int = 3) -> KvCache:
    """Return caches of layers that differ, every element another."""
    specs = [
        InputSpec(
            name,
            "fp32",
            (BATCH, Axis("key_value_heads", heads), Axis("cached_tokens", 8), Axis("head_dim", size)),
            "cache",
        )
        for name, (heads, size) in SHAPES.items()
    ]
    made = KvCache([InputSpec("input_ids", "int32", (BATCH,), "request"), *specs], slots, 8, lambda _: dtype)
    for array in made.view(slice(0, slots)).values():
        array.copy_(torch.arange(array.numel()).view(array.shape) % 100)
    return made


def contents(held: KvCache) -> dict[str, torch.Tensor]:
    return {name: array.clone() for name, array in held.view(slice(0, held.slots)).items()}


def greedy(model: ReferenceDecoder, slot: int, start: int, ids: list[int], count: int) -> list[int]:
    """Read `ids` behind `start` tokens of a slot, then return the `count` most likely tokens."""
    tokens: list[int] = []
    while len(tokens) < count:
        call = Call(slot, np.array([ids]), np.array([start]), np.array([len(ids)]))
        start += len(ids)
        ids = [int(model.forward(call)[0].argmax())]
        tokens += ids
    return tokens


@pytest.mark.parametrize(
    ("model_type", "pages"),
    [("llama", (None, None)), ("gemma2", (None, 40)), ("qwen3", (40, None)), ("deepseek_v2", (40, 40))],
    ids=str,
)
def test_a_sequence_that_was_saved_goes_on_elsewhere_with_the_same_tokens(
    model_type: str, pages: tuple[int | None, int | None]
) -> None:
    """Caches in slots and in pages save the same."""
    first, second = (decoder(model_type, slots, pages=count) for slots, count in zip((2, 4), pages, strict=True))
    start = greedy(first, 1, 0, PROMPT, 5)
    known = len(PROMPT) + 4  # the last token is not cached yet
    saved = first.cache.save(1, known)
    want = greedy(first, 1, known, start[-1:], 12)
    greedy(second, 3, 0, PROMPT[::-1], 20)  # what was there before does not matter
    second.cache.load(3, saved)
    assert greedy(second, 3, known, start[-1:], 12) == want
    assert len(set(want)) > 1


def test_sequences_that_share_pages_go_on_by_themselves() -> None:
    model = decoder("llama", 3, pages=40)
    start = greedy(model, 0, 0, PROMPT, 4)
    known = len(PROMPT) + 3
    held = model.cache.pages
    assert held is not None
    before = held.held
    model.cache.copy(0, 1, slice(0, known))
    model.cache.copy(0, 2, slice(0, 6))
    assert held.held == before
    want = greedy(decoder("llama", 1), 0, 0, PROMPT, 12)
    assert greedy(model, 2, 6, PROMPT[6:], 12) == want  # writes into the second page, which all three have
    assert [*start, *greedy(model, 1, known, start[-1:], 8)] == want
    assert [*start, *greedy(model, 0, known, start[-1:], 8)] == want


def test_padding_and_idle_rows_write_nowhere() -> None:
    model = decoder("llama", 3, pages=40)
    start = greedy(model, 1, 0, PROMPT, 1)
    ids = np.array([PROMPT[:6], [0] * 6, [*PROMPT[:3], 0, 0, 0]])
    model.forward(Call(0, ids, np.array([0, len(PROMPT), 0]), np.array([6, 0, 3])))
    assert [*start, *greedy(model, 1, len(PROMPT), start, 5)] == greedy(decoder("llama", 1), 0, 0, PROMPT, 6)


@pytest.mark.parametrize("kv_format", ["int8", "fp8"])
def test_pages_in_eight_bits_hold_what_slots_hold(kv_format: CacheFormat) -> None:
    model = model_of(case_of("gemma2"))
    scales = (0.03,) * len(model.spec.layers)
    answers = []
    for caches in ({}, {"page_tokens": 4}, {"page_tokens": 4, "has_pages_in_place": True}):
        kv_cache = KvQuantization(kv_format, scales_of_pairs(scales, scales))
        graph = graph_of(model, DecoderOptions(FP32, LENGTH, kv_cache=kv_cache, **caches))
        sizes = model.spec.vocab_size, LENGTH, 16, False
        tested = ReferenceDecoder(DecoderNetwork(graph.layers(), graph.inputs, *sizes, has_read_only_caches=True), 3)
        tokens = greedy(tested, 1, 0, PROMPT, 6)
        known = len(PROMPT) + 5
        tested.cache.copy(1, 2, slice(0, known))
        tested.cache.load(0, tested.cache.save(1, known))
        answers.append([tokens, *(greedy(tested, slot, known, tokens[-1:], 6) for slot in range(3))])
        blocks = tested.cache.blocks(4)
        assert blocks is not None
        rows = list(blocks.memory(known // 4))
        blocks.save(blocks.places(1, 0, len(rows)), rows)
        tested.cache.make_room(0, 4 * len(rows))
        blocks.load(blocks.places(0, 0, len(rows)), rows)
        copied, own = (tested.cache.save(slot, 4 * len(rows)).data for slot in (0, 1))
        assert torch.equal(copied, own)
        assert copied.any()
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][1] == answers[0][2] == answers[0][3]


@pytest.mark.parametrize("kv_format", ["int8", "fp8"])
def test_tensorrt_builds_pages_in_eight_bits(kv_format: CacheFormat) -> None:
    model = model_of(case_of("gemma2"))
    scales = (0.03,) * len(model.spec.layers)
    kv_cache = KvQuantization(kv_format, scales_of_pairs(scales, scales))
    assert builds(graph_of(model, DecoderOptions(FP16, LENGTH, page_tokens=16, kv_cache=kv_cache)), has_decode=True)


def test_too_few_pages_are_refused() -> None:
    model = decoder("llama", 3, pages=4)
    assert model.max_length == 12
    greedy(model, 0, 0, PROMPT[:8], 1)
    with pytest.raises(ExecutionError, match="KV cache: 2 pages are needed, 1 are free"):
        greedy(model, 1, 0, PROMPT[:8], 1)


def test_what_was_saved_is_a_copy() -> None:
    held = cache()
    before, saved = contents(held), held.save(1, 5)
    held.copy(0, 1, slice(0, 8))
    assert all(torch.equal(array, before[name][1, :, :5]) for name, array in saved.form.views(saved.data).items())
    held.load(2, saved)
    after = contents(held)
    for name, array in before.items():
        assert torch.equal(after[name][2, :, :5], array[1, :, :5])
        assert torch.equal(after[name][2, :, 5:], array[2, :, 5:])
        assert torch.equal(after[name][0], array[0])


def test_copies_are_of_the_tokens_alone() -> None:
    held = cache()
    before = contents(held)
    held.copy(2, 0, slice(3, 6))
    held.copy(2, 1, slice(0, 4))
    after = contents(held)
    for name, array in before.items():
        assert torch.equal(after[name][0], torch.cat([array[0, :, :3], array[2, :, 3:6], array[0, :, 6:]], 1))
        assert torch.equal(after[name][1], torch.cat([array[2, :, :4], array[1, :, 4:]], 1))
        assert torch.equal(after[name][2], array[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn], ids=str)
def test_new_tokens_are_written_at_each_rows_start(dtype: torch.dtype) -> None:
    held, starts = cache(dtype), [5, 0]
    before = contents(held)
    new = {name: (-torch.ones(2, heads, 3, size)).to(dtype) for name, (heads, size) in SHAPES.items()}
    held.append(NewTokens(torch.tensor([1, 2]), torch.tensor(starts), torch.tensor([3, 3])), new)
    after = contents(held)
    for name, array in before.items():
        want = array.float()
        for row, start in enumerate(starts):
            want[1 + row, :, start : start + 3] = -1
        assert torch.equal(after[name].float(), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float8_e4m3fn, torch.float64], ids=str)
def test_a_saved_sequence_is_one_block_of_bytes(dtype: torch.dtype) -> None:
    held, other = cache(dtype), cache(dtype)
    saved = held.save(1, 5)
    assert saved.data.shape == (saved.form.size_bytes,)
    raw = bytearray(saved.data.numpy().tobytes())
    before = contents(other)
    other.load(2, SavedSequence(saved.form, torch.frombuffer(raw, dtype=torch.uint8)))
    for name, array in contents(other).items():
        assert torch.equal(array[2, :, :5].float(), contents(held)[name][1, :, :5].float())
        assert torch.equal(array[2, :, 5:].float(), before[name][2, :, 5:].float())


def test_what_does_not_fit_is_refused() -> None:
    held, saved = cache(), cache(torch.float16).save(0, 3)
    with pytest.raises(ExecutionError, match=r"KV cache: a slot of 8 tokens cannot hold 9"):
        held.save(0, 9)
    what = "holds `past_key_0` of 2 heads of 4 in float16, the model `past_key_0` of 2 heads of 4 in float32"
    with pytest.raises(ExecutionError, match=what):
        held.load(0, saved)
    saved = held.save(0, 3)
    for tokens in (2, 4):
        with pytest.raises(ExecutionError, match=rf"{tokens} tokens take \d+ bytes; the saved sequence has 272"):
            held.load(0, SavedSequence(held.form(tokens), saved.data))
    for tokens in (-1, 0, 9):
        with pytest.raises(ExecutionError, match=f"a slot of 8 tokens cannot hold {tokens}"):
            held.load(0, SavedSequence(held.form(tokens), saved.data))
    with pytest.raises(ExecutionError, match="the saved sequence has 1 caches, the model 3"):
        held.load(0, SavedSequence(CacheForm("", 3, saved.form.arrays[:1]), saved.data))
    held.model = "0123456789abcdef"
    with pytest.raises(ExecutionError, match="is of model ``, the caches are of model `0123456789ab`"):
        held.load(0, saved)
    with pytest.raises(ExecutionError, match=f"a slot of {LENGTH} tokens cannot hold 65"):
        decoder(slots=1).cache.save(0, 65)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_moving_copies_one_token_of_each_slot(dtype: torch.dtype) -> None:
    held = cache(dtype)
    before = contents(held)
    held.move(np.array([2, 0]), np.array([7, 3]), np.array([1, 2]))
    for name, array in contents(held).items():
        expected = before[name].float()
        expected[2][:, 1], expected[0][:, 2] = expected[2][:, 7].clone(), expected[0][:, 3].clone()
        assert torch.equal(array.float(), expected)


@pytest.mark.parametrize("is_paged", [False, True])
def test_work_on_a_stream_uses_no_memory_that_its_caller_drops(is_paged: bool) -> None:
    """Indices of a move, of copied pages and of a loaded sequence; late streams give what none gives."""
    first, tokens_axis = (Axis("pages"), Axis("page_tokens", 4)) if is_paged else (BATCH, Axis("cached_tokens", 8))
    axes = (first, Axis("key_value_heads", 2), tokens_axis, Axis("head_dim", 3))
    spec = InputSpec("past_key_0", "fp32", axes, "cache")

    def tokens(stream: Stream | None) -> list[list[int]]:
        held = open_cache([spec], 3, 8, lambda _: torch.float32, stream)
        random = torch.Generator().manual_seed(0)
        form = held.form(7)
        for slot in (0, 1):
            data = torch.randn(form.size_bytes // 4, generator=random).view(torch.uint8)
            held.load(slot, SavedSequence(form, data))
        held.copy(0, 2, slice(0, 7))
        held.prepare(Call(2, np.zeros((1, 1), np.int64), np.array([7]), np.array([1])))
        held.move(np.array([2, 1]), np.array([6, 3]), np.array([1, 2]))
        return [held.save(slot, 7).data.tolist() for slot in range(3)]

    assert tokens(HostDevice().stream()) == tokens(None)
