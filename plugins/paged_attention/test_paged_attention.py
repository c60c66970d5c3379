from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss
from triton.runtime import interpreter

from tests.selection import slow_unless
from trtkit.backends import load_backend
from trtkit.dtypes import BF16, FP8, FP16, FP32, INT8, INT32, DType
from trtkit.network.aot import COMPUTE_CAPABILITIES, compile_kernel, load_kernels
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, Refusal
from trtkit.network.graph import Graph
from trtkit.network.host_array import array_dtype
from trtkit.network.ops.attention import attention_from_primitives, merged_attention
from trtkit.network.ops.kv_cache import append, append_quantized, index_of_pages
from trtkit.network.ops.mask import appended_positions, cached_positions, causal_mask
from trtkit.network.ops.shape import unsqueeze
from trtkit.network.plugin import refusal
from trtkit.reference import Executor, read_layers, to_array, to_tensor
from trtkit.verification.custom_ops.outcomes import Trial, interpreted_kernel, trials

if TYPE_CHECKING:
    from torch import Tensor

torch.set_num_threads(1)
OP = find("PagedAttention")
TRIALS = trials(OP, ("fp32",))


def _contiguous(pool: Tensor, pages: Tensor, cached: int, new: Tensor) -> Tensor:
    """Return one sequence's cached and new keys or values [1, K, T, H]."""
    in_pages = pool[pages.long()].transpose(0, 1).flatten(1, 2)[:, :cached]
    return torch.cat([in_pages, new], 1).unsqueeze(0)


def _mask(cached: int, count: int, window: int) -> Tensor:
    """Return which keys each new token attends to: [count, cached + count]."""
    row, column = torch.arange(cached, cached + count)[:, None], torch.arange(cached + count)
    return (column <= row) & (column > row - (window or cached + count))


def _attended(q: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor | None, softcap: float) -> Tensor:
    """Compute attention with torch, or with transformers' models that have sinks or soft-capped scores."""
    if sinks is None and not softcap:
        return torch.nn.functional.scaled_dot_product_attention(q, key, value, mask, scale=1.0, enable_gqa=True)
    module: Any = SimpleNamespace(num_key_value_groups=q.shape[1] // key.shape[1], sinks=sinks, training=False)
    added = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    if softcap:
        assert sinks is None
        y = modeling_gemma2.eager_attention_forward(module, q, key, value, added, scaling=1.0, softcap=softcap)[0]
    else:
        y = modeling_gpt_oss.eager_attention_forward(module, q, key, value, added, scaling=1.0)[0]
    attended: Tensor = y.transpose(1, 2)
    return attended


def _decoded(trial: Trial) -> list[Tensor]:
    """Return a trial's inputs with dequantized keys and values."""
    tensors = [to_tensor(x, "input") for x in trial.inputs if x is not None]
    scales = 2 * (trial.case.attributes.key_scale, trial.case.attributes.value_scale)
    tensors[1:5] = [x.float() * scale for x, scale in zip(tensors[1:5], scales, strict=True)]
    return tensors


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_the_reference_is_what_torch_and_transformers_compute_on_contiguous_keys(trial: Trial) -> None:
    q, key_pool, value_pool, new_key, new_value, table, lengths, counts, *others = _decoded(trial)
    attributes, sinks = trial.case.attributes, others[0] if others else None
    output = torch.from_numpy(trial.expected[0]).float()
    for row, (cached, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        keys = _contiguous(key_pool, table[row], cached, new_key[row, :, :count])
        values = _contiguous(value_pool, table[row], cached, new_value[row, :, :count])
        mask = _mask(cached, count, attributes.window)
        want = _attended(q[row : row + 1, :, :count], keys, values, mask, sinks, attributes.softcap)
        torch.testing.assert_close(output[row : row + 1, :, :count], want, atol=1e-5, rtol=1e-5)
        assert not output[row, :, count:].any()


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_language_models_attend_to_gathered_pages_alike(trial: Trial) -> None:
    """With 8-bit caches, they take new keys and values as numbers and quantize them."""
    graph, attributes = Graph(load_backend("tensorrt_rtx")), trial.case.attributes
    arrays = [x for x in trial.inputs if x is not None]
    arrays[3:5] = [x.numpy() for x in _decoded(trial)[3:5]]
    q, key_pool, value_pool, new_key, new_value, table, lengths, counts, *sinks = (
        graph.input(f"x{index}", array_dtype(x), x.shape) for index, x in enumerate(arrays)
    )
    index = index_of_pages(table, key_pool.shape[1])
    if attributes.quantization == "none":
        keys, values = append(index.of(key_pool), new_key), append(index.of(value_pool), new_value)
    else:
        window = graph.constant(np.arange(table.shape[1] * key_pool.shape[2], dtype=np.int32), "window")
        keys, _ = append_quantized(key_pool, index, new_key, attributes.key_scale, window)
        values, _ = append_quantized(value_pool, index, new_value, attributes.value_scale, window)
    positions = unsqueeze(lengths, 1) + graph.constant(np.arange(q.shape[2], dtype=np.int32).reshape(1, -1), "steps")
    in_pages = cached_positions(graph, keys.shape[2] - q.shape[2])
    columns = appended_positions(positions, lengths, in_pages)
    mask = causal_mask(positions, lengths + counts, columns, attributes.window or None)
    softcap, sink = attributes.softcap or None, sinks[0] if sinks else None
    graph.output(attention_from_primitives((q, keys, values), mask, softcap, sink), "y")
    executor = Executor(read_layers(graph.backend, graph.network, graph.constants))
    output = executor.run({f"x{index}": x for index, x in enumerate(arrays)})["y"]
    for row, count in enumerate(trial.inputs[7].tolist() if trial.inputs[7] is not None else ()):
        want = torch.from_numpy(trial.expected[0][row, :, :count]).float()
        torch.testing.assert_close(output[row, :, :count], want, atol=1e-5, rtol=1e-5)


def test_cases_have_every_variant() -> None:
    attributes = [trial.case.attributes for trial in TRIALS]
    assert any(variant.softcap for variant in attributes)
    assert any(variant.window for variant in attributes)
    assert any(trial.inputs[8] is not None for trial in TRIALS)
    assert {variant.quantization for variant in attributes} == {"none", "int8", "fp8"}


@pytest.mark.parametrize("parts", [2, 5, 16])
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_keys_shared_by_programs_give_the_same_answer(trial: Trial, parts: int) -> None:
    """Merged by the layers of the network that the plugin is in."""
    inputs = [to_tensor(x, "input") for x in trial.inputs if x is not None]
    attributes = replace(trial.case.attributes, parts=parts)
    of_parts = to_array(load_kernels(OP, interpreted=True).run(inputs, attributes))
    assert np.isfinite(of_parts).all()
    graph = Graph(load_backend("tensorrt_rtx"))
    graph.output(merged_attention(graph.input("parts", FP32, of_parts.shape)), "y")
    executor = Executor(read_layers(graph.backend, graph.network, graph.constants))
    merged = to_array(executor.run({"parts": of_parts})["y"])
    assert trial.compare([merged]).relative_rms_error <= FP32.tolerance


def test_each_program_reads_its_part_only() -> None:
    """Seven cached keys in three parts: the last part also has the new one."""
    value = torch.arange(1.0, 9.0)[:, None] ** 2
    pool, new = torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 1, 16)
    values, new_value = pool.clone(), new.clone()
    values[0, 0, :, :1], new_value[0, 0, 0, :1] = value, 100.0
    rows = (
        torch.zeros(1, 1, dtype=torch.int32),
        torch.tensor([7], dtype=torch.int32),
        torch.ones(1, dtype=torch.int32),
    )
    inputs = (torch.zeros(1, 1, 1, 16), pool, values, new, new_value, *rows)
    y = load_kernels(OP, interpreted=True).run(inputs, OP.attributes(parts=3))
    assert y.shape == (3, 1, 1, 1, 18)
    means, totals = [value[0:3].mean(), value[3:6].mean(), (value[6] + 100) / 2], [3.0, 3.0, 2.0]
    torch.testing.assert_close(y[:, 0, 0, 0, 0], torch.tensor(means))
    torch.testing.assert_close(y[:, 0, 0, 0, -2:], torch.tensor([[0.0, total] for total in totals]))


def test_the_kernel_reads_nothing_but_tokens() -> None:
    trial = TRIALS[1]
    tensors = [torch.from_numpy(x.copy()) for x in trial.inputs if x is not None]
    _, key_pool, value_pool, new_key, new_value, table, lengths, counts = tensors
    is_used = torch.zeros(key_pool.shape[0], key_pool.shape[2], dtype=torch.bool)
    for row, cached in enumerate(lengths.tolist()):
        used = -(-cached // key_pool.shape[2])
        table[row, used:] = 1 << 20
        for at in range(cached):
            is_used[table[row, at // key_pool.shape[2]], at % key_pool.shape[2]] = True
        for new in (new_key, new_value):
            new[row, :, int(counts[row]) :] = torch.nan
    for pool in (key_pool, value_pool):
        pool.transpose(1, 2)[~is_used] = torch.nan
    output = load_kernels(OP, interpreted=True).launch(tensors, trial.case.attributes)
    assert trial.compare([x.numpy() for x in output]).relative_rms_error <= FP32.tolerance


def _shapes(heads: tuple[int, int], tokens: int, size: int) -> list[tuple[int, ...]]:
    """Return the shapes of all inputs for two sequences with pages of 16 tokens."""
    pool, new = (64, heads[1], 16, size), (2, heads[1], tokens, size)
    return [(2, heads[0], tokens, size), pool, pool, new, new, (2, 8), (2,), (2,), (heads[0],)]


def test_a_kernel_of_many_tokens_with_all_variants_compiles_for_later_gpus_too() -> None:
    kernels, attributes = load_kernels(OP), OP.attributes(window=1024, softcap=50.0)
    started = kernels.plan(_shapes((71, 1), 128, 256), attributes, triton.cdiv)
    assert started.grid == (128, 5, 2)
    compiled = compile_kernel(kernels.to_compile(FP16, started), 90)
    assert compiled.target == "sm_90"
    assert compiled.parameters == 15
    assert compiled.shared_bytes <= 48 * 1024


@pytest.mark.parametrize(
    ("dtype", "quantization", "capability"),
    slow_unless(
        lambda dtype, quantization, capability: (
            (dtype, quantization, capability) in {(FP16, "fp8", 80), (BF16, "int8", 120)}
        ),
        itertools.product((FP32, FP16, BF16), ("none", "int8", "fp8"), COMPUTE_CAPABILITIES),
    ),
    ids=str,
)
def test_the_largest_heads_that_the_plugin_takes_compile(dtype: DType, quantization: str, capability: int) -> None:
    """Including fp8 for GPUs that lack it."""
    kernels, attributes = load_kernels(OP), OP.attributes(window=1024, softcap=50.0, quantization=quantization)
    size = 64 if dtype == FP32 else 256
    started = kernels.plan(_shapes((8, 2), 1, size), attributes, triton.cdiv)
    compiled = compile_kernel(kernels.to_compile(dtype, started), capability)
    assert compiled.target == f"sm_{capability}"
    assert compiled.shared_bytes <= 48 * 1024
    assert compiled.spill_bytes == 0


@pytest.fixture
def bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Triton's interpreter multiply bf16, and convert integers to it, through fp32; it would use the bits."""
    builder = interpreter.InterpreterBuilder
    dot, convert = builder.create_dot, builder.cast_impl

    def real(self: Any, x: Any) -> Any:
        return convert(self, x, tl.float32) if x.dtype == tl.bfloat16 else x

    def from_integer(self: Any, x: Any, kind: Any) -> Any:
        return convert(self, convert(self, x, tl.float32) if kind.scalar == tl.bfloat16 else x, kind)

    monkeypatch.setattr(builder, "create_dot", lambda self, a, b, *rest: dot(self, real(self, a), real(self, b), *rest))
    monkeypatch.setattr(builder, "create_si_to_fp", from_integer)


@pytest.mark.usefixtures("bf16")
@pytest.mark.parametrize("quantization", ["none", "int8", "fp8"])
def test_the_kernel_computes_in_bf16(quantization: str) -> None:
    case = next(case for case in OP.part("cases").CASES if case.attributes.quantization == quantization)
    trial = Trial(OP, case, BF16)
    assert trial.compare(interpreted_kernel(trial)).relative_rms_error <= BF16.tolerance


def test_the_kernel_reads_every_code_of_fp8() -> None:
    """A cached token's value and a zero get equal weights; one code is NaN."""
    codes = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 1, 256).view(torch.float8_e4m3fn)
    zeros = torch.zeros(1, 1, 1, 256)
    nothing = zeros.to(codes.dtype)
    first, one = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    inputs = (zeros, nothing, codes, nothing, nothing, first, one, one)
    (y,) = load_kernels(OP, interpreted=True).launch(inputs, OP.attributes(quantization="fp8", value_scale=2.0))
    torch.testing.assert_close(y, codes.float(), rtol=0, atol=0, equal_nan=True)


def _facts(shapes: list[tuple[int, ...]], cached: DType = FP32) -> list[Fact]:
    types = [FP32, *[cached] * 4, *[INT32] * 3, FP32]
    return [Fact(dtype, shape) for dtype, shape in zip(types, shapes, strict=False)]


@pytest.mark.parametrize(
    ("shapes", "attributes", "what"),
    [
        (_shapes((4, 3), 1, 8), {}, "4 query heads, a multiple of the 3 key/value heads wanted"),
        (_shapes((4, 2), 1, 8), {"window": -1}, "window -1, softcap 0.0: 0 (none) or more is allowed"),
        (_shapes((4, 2), 1, 8), {"parts": 0}, "0 parts: 1 or more are allowed"),
        (_shapes((-1, 2), 1, 8), {}, "heads, their size and the page size must be known"),
        ([*_shapes((4, 2), 1, 8)[:8], (5,)], {}, "input `sinks` of shape [5]: N is 5 here and 4 before"),
    ],
)
def test_inputs_that_do_not_fit_say_why(shapes: Any, attributes: dict[str, Any], what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.check(_facts(shapes), OP.attributes(**attributes))
    assert refused.value.what == what


@pytest.mark.parametrize(
    ("index", "attributes", "what"),
    [
        (1, {}, "keys and values in fp16, fp32: fp32 wanted for queries in fp32, quantization `none`"),
        (8, {}, "queries in fp32 and sinks in fp16: one type wanted"),
        (0, {"quantization": "int8"}, "queries in fp16 and sinks in fp32: one type wanted"),
        (5, {"quantization": "int8"}, "keys and values in fp32: int8 wanted for queries in fp32, quantization `int8`"),
        (5, {"quantization": "int4"}, "quantization `int4`: one of none, int8, fp8 is allowed"),
        (5, {"key_scale": 2.0}, "scales (2.0, 1.0): positive ones are allowed, and 1.0 without quantization"),
        (5, {"quantization": "fp8", "value_scale": 0.0},
         "scales (1.0, 0.0): positive ones are allowed, and 1.0 without quantization"),
    ],
)  # fmt: skip
def test_types_and_scales_that_do_not_fit_say_why(index: int, attributes: dict[str, Any], what: str) -> None:
    facts = _facts(_shapes((4, 2), 1, 8))
    if facts[index].dtype == FP32:
        facts[index] = Fact(FP16, facts[index].shape)
    with pytest.raises(Refusal) as refused:
        OP.check(facts, OP.attributes(**attributes))
    assert refused.value.what == what


@pytest.mark.parametrize(
    ("cached", "size", "attributes", "why"),
    [
        (FP32, 64, {}, ""),
        (INT8, 64, {"quantization": "int8"}, ""),
        (FP8, 64, {"quantization": "fp8"}, ""),
        (INT8, 64, {"quantization": "fp8"}, "input `key_pool` has type int8, its plugin takes FP8"),
        (FP32, 128, {}, "heads of 128 in fp32, its plugin takes up to 64"),
    ],
)
def test_what_the_plugin_does_not_take_keeps_its_lowering(
    cached: DType, size: int, attributes: dict[str, Any], why: str
) -> None:
    facts = _facts(_shapes((4, 2), 1, size), cached)
    assert refusal(OP, facts, OP.attributes(**attributes)) == why
    assert refusal(OP, facts[:8], OP.attributes(**attributes)) == why


def test_sinks_that_are_missing_are_none_of_the_softmax() -> None:
    """The plugin gets such sinks if a model has none."""
    trial = TRIALS[0]
    plugin = OP.part("plugin").PLUGIN
    (sinks,) = plugin.missing([fact for fact in trial.facts if fact is not None])
    inputs = [to_tensor(x, "input") for x in (*trial.inputs[:8], sinks) if x is not None]
    (y,) = load_kernels(OP, interpreted=True).launch(inputs, trial.case.attributes)
    assert trial.compare([to_array(y)]).relative_rms_error <= FP32.tolerance
    (y,) = OP.part("reference").reference(inputs, trial.case.attributes)
    assert trial.compare([to_array(y)]).relative_rms_error <= FP32.tolerance
