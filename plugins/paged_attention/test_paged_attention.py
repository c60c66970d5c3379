from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import triton
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from trtkit.backends import load_backend
from trtkit.dtypes import FP16, FP32, INT32
from trtkit.network.aot import compile_kernel, load_kernels
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, Refusal
from trtkit.network.graph import Graph
from trtkit.network.ops.attention import attention_from_primitives
from trtkit.network.ops.kv_cache import append, head_tables, pages_of
from trtkit.network.ops.mask import appended_positions, cached_positions, causal_mask
from trtkit.network.ops.shape import unsqueeze
from trtkit.network.plugin import refusal
from trtkit.reference import Executor, Options
from trtkit.verification.custom_ops.trial import Trial, trials

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
    """Return true where a new token attends to a key: [count, cached + count]."""
    row, column = torch.arange(cached, cached + count)[:, None], torch.arange(cached + count)
    return (column <= row) & (column > row - (window or cached + count))


def _attended(q: Tensor, key: Tensor, value: Tensor, mask: Tensor, sinks: Tensor | None, softcap: float) -> Tensor:
    """Compute by torch's attention, or by that of the model in transformers which has sinks or capped scores."""
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


@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_the_reference_is_what_torch_and_transformers_compute_on_contiguous_keys(trial: Trial) -> None:
    tensors = [None if x is None else torch.from_numpy(x) for x in trial.inputs]
    q, key_pool, value_pool, new_key, new_value, table, lengths, counts = [x for x in tensors[:8] if x is not None]
    attributes, sinks = trial.case.attributes, tensors[8]
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
    graph, attributes = Graph(load_backend("tensorrt_rtx")), trial.case.attributes
    facts = [Fact(INT32 if x.dtype.kind == "i" else FP32, x.shape) for x in trial.inputs if x is not None]
    q, key_pool, value_pool, new_key, new_value, table, lengths, counts, *sinks = (
        graph.input(f"x{place}", fact.dtype, fact.shape) for place, fact in enumerate(facts)
    )
    tables = head_tables(table, key_pool.shape[1])
    keys, values = append(pages_of(key_pool, tables), new_key), append(pages_of(value_pool, tables), new_value)
    positions = unsqueeze(lengths, 1) + graph.constant(np.arange(q.shape[2], dtype=np.int32).reshape(1, -1), "steps")
    in_pages = cached_positions(graph, keys.shape[2] - q.shape[2])
    columns = appended_positions(positions, lengths, in_pages)
    mask = causal_mask(positions, lengths + counts, columns, attributes.window or None)
    softcap, sink = attributes.softcap or None, sinks[0] if sinks else None
    graph.output(attention_from_primitives((q, keys, values), mask, softcap, sink), "y")
    executor = Executor(graph.backend, graph.network, Options(constants=graph.constants))
    output = executor.run(trial.named())["y"]
    for row, count in enumerate(trial.inputs[7].tolist() if trial.inputs[7] is not None else ()):
        want = torch.from_numpy(trial.expected[0][row, :, :count]).float()
        torch.testing.assert_close(output[row, :, :count], want, atol=1e-5, rtol=1e-5)


def test_cases_have_every_variant() -> None:
    attributes = [trial.case.attributes for trial in TRIALS]
    assert any(each.softcap for each in attributes)
    assert any(each.window for each in attributes)
    assert any(trial.inputs[8] is not None for trial in TRIALS)


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
    """Return the shapes of all inputs, two sequences with pages of 16."""
    pool, new = (64, heads[1], 16, size), (2, heads[1], tokens, size)
    return [(2, heads[0], tokens, size), pool, pool, new, new, (2, 8), (2,), (2,), (heads[0],)]


def test_a_kernel_of_many_tokens_with_all_variants_compiles_for_later_gpus_too() -> None:
    kernels, attributes = load_kernels(OP), OP.attributes(window=1024, softcap=50.0)
    started = kernels.plan(_shapes((71, 1), 128, 256), attributes, triton.cdiv)
    assert started.grid == (128, 5, 2)
    compiled = compile_kernel(kernels.to_compile(FP16, started), 90)
    assert compiled.target == "sm_90"
    assert compiled.parameters == 13
    assert compiled.shared_bytes <= 48 * 1024


def _facts(shapes: list[tuple[int, ...]]) -> list[Fact]:
    return [Fact(INT32 if 5 <= place < 8 else FP32, shape) for place, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    ("shapes", "attributes", "what"),
    [
        (_shapes((4, 3), 1, 8), {}, "4 query heads, a multiple of the 3 key/value heads wanted"),
        (_shapes((4, 2), 1, 8), {"window": -1}, "window -1, softcap 0.0: 0 (none) or more is allowed"),
        (_shapes((-1, 2), 1, 8), {}, "heads, their size and the page size must be known"),
        ([*_shapes((4, 2), 1, 8)[:8], (5,)], {}, "input `sinks` of shape [5]: N is 5 here and 4 before"),
    ],
)
def test_inputs_that_do_not_fit_say_why(shapes: Any, attributes: dict[str, Any], what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.check(_facts(shapes), OP.attributes(**attributes))
    assert refused.value.what == what


def test_one_type_for_queries_and_caches() -> None:
    facts = _facts(_shapes((4, 2), 1, 8))
    facts[1] = Fact(FP16, facts[1].shape)
    with pytest.raises(Refusal) as refused:
        OP.check(facts, OP.attributes())
    assert refused.value.what == "queries, keys, values and sinks of types fp16, fp32: one type wanted"


def test_what_the_plugin_does_not_take_keeps_its_lowering() -> None:
    small, large = _facts(_shapes((4, 2), 1, 64)), _facts(_shapes((4, 2), 1, 128))
    assert refusal(OP, small[:8], OP.attributes()) == ""
    assert refusal(OP, small, OP.attributes()).startswith("9 inputs, its plugin takes 8: q, key_pool")
    assert refusal(OP, large[:8], OP.attributes()) == "heads of 128 in fp32, its plugin takes up to 64"
