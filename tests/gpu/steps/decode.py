"""Decode steps of language models: tokens per second, share of the bandwidth's ceiling, host time, cost of caches."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from tests.gpu.language import decoder
from tests.gpu.steps.machine import copy_bytes_per_s
from trtkit.llm.execution import Call, ExecutionOptions, open_execution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer
    from trtkit.llm.execution import DecoderExecution


def ask(place: Place, model: str, precision: str, kv_window: str = "full") -> Iterator[Answer]:
    """Time steps of 1 and of all slots, at short and long contexts, with CUDA graphs and without."""
    rate = copy_bytes_per_s(place)
    started = time.perf_counter()
    shape, bundle = decoder(place, model, precision, kv_window)
    yield {
        "what": "bundle",
        "build_s": time.perf_counter() - started,
        "plan_bytes": bundle.engine_path().stat().st_size,
    }
    lengths = sorted({min(length, shape.length - 8) for length in (64, 512, shape.length - 8)})
    for has_cuda_graphs in (True, False):
        execution = open_execution(bundle, "tensorrt", shape.batch, ExecutionOptions(has_cuda_graphs))
        for rows in (1, shape.batch):
            for tokens in lengths if has_cuda_graphs else lengths[-1:]:
                call = step_call(rows, tokens, shape.vocab)
                step_ms = place.median_ms(lambda: execution.forward(call))  # noqa: B023
                floor_ms = shape.step_bytes(precision, rows, tokens) / rate * 1e3
                yield {
                    "what": f"step of {rows} at {tokens} tokens, {'graph' if has_cuda_graphs else 'no graph'}",
                    "step_ms": step_ms,
                    "host_ms": host_ms(place, execution, call),
                    "tokens_per_s": rows / step_ms * 1e3,
                    "ceiling_ms": floor_ms,
                    "percent_of_bandwidth": 100 * floor_ms / step_ms,
                }
        execution.close()
    if kv_window == "full":
        yield from prefill(place, model, precision)
        yield from guesses(place, model, precision)


def prefill(place: Place, model: str, precision: str) -> Iterator[Answer]:
    """Time a prompt of the maximum prefill length."""
    shape, bundle = decoder(place, model, precision)
    execution = open_execution(bundle, "tensorrt", 1)
    size = execution.max_prefill_length
    ids = np.random.default_rng(0).integers(3, shape.vocab, (1, size))
    call = Call(0, ids, np.zeros(1, np.int64), np.full(1, size))
    ms = place.median_ms(lambda: execution.forward(call), repeats=10)
    yield {"what": f"prefill of {size} tokens", "step_ms": ms, "tokens_per_s": size / ms * 1e3}
    execution.close()


def guesses(place: Place, model: str, precision: str) -> Iterator[Answer]:
    """Time calls with a few tokens of one sequence, like those that check guesses, but with logits of the last only."""
    shape, bundle = decoder(place, model, precision)
    execution = open_execution(bundle, "tensorrt", 1)
    start = min(512, shape.length - 40)
    for size in (1, 2, 4, 8, 16, 32):
        ids = np.random.default_rng(0).integers(3, shape.vocab, (1, size))
        call = Call(0, ids, np.full(1, start), np.full(1, size))
        ms = place.median_ms(lambda: execution.forward(call))  # noqa: B023
        yield {"what": f"call of {size} tokens at {start}", "step_ms": ms}
    execution.close()


def step_call(rows: int, tokens: int, vocab: int) -> Call:
    """Return a decode step of slots with `tokens` cached tokens each."""
    ids = np.random.default_rng(0).integers(3, vocab, (rows, 1))
    return Call(0, ids, np.full(rows, tokens), np.ones(rows, np.int64))


def host_ms(place: Place, execution: DecoderExecution, call: Call) -> float:
    """Return the median time until `forward` returns, which does not wait for the GPU."""
    samples = []
    for _ in range(2 if place.is_simulated else 20):
        place.synchronize()
        started = time.perf_counter()
        execution.forward(call)
        samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples)
