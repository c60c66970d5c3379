"""Packed calls against separate ones: SmolLM2 on the reference executor in fp32, and Llama 3.1 8B simulated.

`decode_s` is a step in which eight sequences decode; in `mixed_s`, seven decode and one computes a prompt chunk of up
to the budget, in one call or in two. Rounds are interleaved. `python -m benchmarks.packed` measures these.

`python -m benchmarks.packed load` also serves requests, which takes an hour: Poisson arrivals with prompts of 40 to 900
tokens and answers of 8 to 200. Load and tokens are the same for both.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import interleaved, ratio, seconds, summary, write
from trtkit.config.load import load_config
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import Call, ReferenceDecoder, config_network
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.execution import DecoderNetwork

REQUESTS, SLOTS, PER_SECOND, ROUNDS, STEPS = 12, 8, 2.0, 3, 5
CACHED = 300  # tokens per sequence
BUDGETS = (64, 128, 512)
CACHES = {"linear": ["llm.kv=linear"], "paged": ["llm.kv=paged"]}
MODEL = "llama"
POOL = PoolSize(weight_bytes=538_000_000)  # by which rows of unlike lengths share calls on pages, as in a bundle


def network_of(batching: str, caches: list[str]) -> DecoderNetwork:
    """Return SmolLM2's network."""
    overrides = ["precision=fp32", f"llm.batching={batching}", f"llm.max_batch_size={SLOTS}", *caches]
    return config_network(load_config(MODEL, overrides), "tensorrt_rtx")


def load(vocabulary: int) -> list[tuple[float, Request]]:
    """Return requests, each with its arrival in seconds."""
    r = np.random.default_rng(0)
    at_s = np.cumsum(r.exponential(1 / PER_SECOND, REQUESTS))
    requests = []
    for number, arrival_s in enumerate(at_s.tolist()):
        prompt = r.integers(100, vocabulary - 100, int(r.integers(40, 901))).tolist()
        params = SamplingParams(temperature=0, max_tokens=int(r.integers(8, 201)), ignore_eos=True)
        settings = Settings.resolve(params, Vocabulary(vocabulary, ()))
        requests.append((arrival_s, Request(str(number), prompt, settings)))
    return requests


def tokens_per_second(network: DecoderNetwork, budget: int) -> dict[str, float]:
    """Serve the load; return answer tokens per second, and the numbers of calls and tokens computed."""
    engine = LLMEngine(ReferenceDecoder(network, SLOTS, pool=POOL), EngineOptions(token_budget=budget))
    waiting, tokens, started_s = load(network.vocab_size), 0, time.perf_counter()
    while waiting or engine.has_work:
        while waiting and (waiting[0][0] <= time.perf_counter() - started_s or not engine.has_work):
            engine.submit(waiting.pop(0)[1])
        tokens += sum(len(finished.token_ids) for finished in engine.step())
    elapsed_s, done = time.perf_counter() - started_s, engine.statistics
    gc.collect()
    return {
        "tokens_per_second": tokens / elapsed_s,
        "steps": done.steps,
        "network_calls": done.network_calls,
        "padded_share": done.padded_tokens / done.computed_tokens,
    }


def decode_s(network: DecoderNetwork) -> float:
    """Return the seconds of a step in which all slots decode."""
    decoder, one = filled(network), np.ones(SLOTS, np.int64)
    return median_s(lambda step: decoder.forward(decoding(SLOTS, CACHED + step, one)))


def mixed_s(network: DecoderNetwork, budget: int) -> float:
    """Return the seconds of a step in which the last slot computes a prompt chunk and the others decode."""
    decoder, one, rows = filled(network), np.ones(SLOTS, np.int64), SLOTS - 1
    new = budget - rows
    ids, last = np.full((1, new), 1000), np.array([rows])

    def run(step: int) -> None:
        decode, piece = decoding(rows, CACHED + step, one), Call(rows, ids, one[:1] * CACHED, np.array([new]))
        decoder.cache.positions[rows] = CACHED  # so that each run computes the same chunk
        if decoder.packed is None:
            decoder.forward(decode)
            decoder.forward(piece)
        else:
            logits = np.append(np.arange(rows), budget - 1)
            decoder.packed.forward_packed(PackedCall(decode, replace(piece, scattered=last), logits))

    return median_s(run)


def filled(network: DecoderNetwork) -> ReferenceDecoder:
    """Return a decoder with CACHED tokens in each slot."""
    decoder, one = ReferenceDecoder(network, SLOTS, pool=POOL), np.ones(SLOTS, np.int64)
    for start in range(0, CACHED, network.max_prefill_length):
        count = min(network.max_prefill_length, CACHED - start)
        decoder.forward(Call(0, np.full((SLOTS, count), 1000), start * one, count * one))
    return decoder


def decoding(rows: int, cached: int, one: np.ndarray) -> Call:
    """Return the call of a decode step."""
    return Call(0, np.full((rows, 1), 1000), cached * one[:rows], one[:rows])


def median_s(run: Callable[[int], Any]) -> float:
    """Return the median seconds of STEPS runs, after two uncounted ones."""
    return float(np.median([seconds(partial(run, step)) for step in range(STEPS + 2)][2:]))


def simulated(batching: str) -> dict[str, float]:
    """Return `trtkit simulate`'s latencies of Llama 3.1 8B on an H100, in milliseconds."""
    words = ["simulate", "llama-3.1-8b", "--gpu", "h100", "--rate", "22", "--batching", batching, "--json"]
    command = [sys.executable, "-c", "from trtkit.cli.main import main; main()", *words]
    result = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["result"]
    return {
        f"{name}_{kind}_ms": round(result[name][f"{kind}_ms"], 2)
        for name in ("ttft", "tpot")
        for kind in ("mean", "p99")
    }


def main(parts: list[str]) -> None:
    """Measure and write the results."""
    figures: dict[str, Any] = {"requests": REQUESTS, "slots": SLOTS, "requests_per_second": PER_SECOND}
    figures["simulated"] = {batching: simulated(batching) for batching in ("separate", "packed")}
    for kind, caches in CACHES.items():
        networks = {batching: network_of(batching, caches) for batching in ("separate", "packed")}
        steps = interleaved({name: partial(decode_s, network) for name, network in networks.items()}, ROUNDS, 0)
        figures[kind] = {"decode_s": {name: summary(times) for name, times in steps.items()}}
        figures[kind]["decode_ratio"] = ratio(steps["packed"], steps["separate"])
        for budget in BUDGETS:
            steps = interleaved(
                {name: partial(mixed_s, network, budget) for name, network in networks.items()}, ROUNDS, 0
            )
            figures[kind][f"budget {budget}"] = {
                "mixed_s": {name: summary(times) for name, times in steps.items()},
                "mixed_ratio": ratio(steps["packed"], steps["separate"]),
            }
        for budget in BUDGETS if "load" in parts else ():
            runs = interleaved(
                {name: partial(tokens_per_second, network, budget) for name, network in networks.items()}, ROUNDS, 0
            )
            rates = {name: [run["tokens_per_second"] for run in each] for name, each in runs.items()}
            figures[kind][f"load at budget {budget}"] = {
                **{name: {**runs[name][-1], "tokens_per_second": summary(rates[name])} for name in runs},
                "speedup": ratio(rates["packed"], rates["separate"]),
            }
    write("packed", figures)


if __name__ == "__main__":
    main(sys.argv[1:])
