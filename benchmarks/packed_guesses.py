"""Speculation with guesses packed into prompts' calls, or in separate calls: SmolLM2 on the reference executor, fp32.

In `step_s`, seven sequences check four guesses each and one computes a prompt chunk of up to the budget. `load` serves
requests that arrive every fifth step, with guesses by prompt lookup. `apart` is the same network with one call for
guesses and one for prompts. Runs are interleaved. `python -m benchmarks.packed_guesses` measures both.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import interleaved, ratio, seconds, summary, write
from benchmarks.packed import CACHED, CACHES, POOL, SLOTS, filled, network_of
from trtkit.llm.engine import EngineOptions, LLMEngine, LookupProposer, Request
from trtkit.llm.execution import Call, ReferenceDecoder
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary

if TYPE_CHECKING:
    from trtkit.llm.execution import DecoderExecution, DecoderNetwork
    from trtkit.llm.execution.execution import PackedCalls

REQUESTS, ANSWER, GUESSES, ROUNDS, STEPS = 5, 24, 4, 3, 5
BUDGETS = (64, 128)


class Apart(EngineOptions):
    """Guesses and prompts get separate calls."""

    def packed_calls(self, execution: DecoderExecution) -> PackedCalls | None:  # noqa: ARG002
        return None


OPTIONS = {"apart": Apart, "together": EngineOptions}


def step(decoder: ReferenceDecoder, budget: int, *, is_together: bool) -> None:
    """Run a step in which the last slot computes a prompt chunk and the others check guesses."""
    rows, width = SLOTS - 1, 1 + GUESSES
    assert decoder.packed is not None
    one, new = np.ones(rows, np.int64), budget - rows
    checked = Call(0, np.full((rows, width), 1000), one * CACHED, one * width)
    piece = Call(rows, np.full((1, new), 1000), one[:1] * CACHED, np.array([new]))
    index = np.append(np.arange(rows * width), rows * width + new - 1)
    decoder.cache.positions[:] = CACHED  # so that each run computes the same tokens
    if is_together:
        decoder.packed.forward_packed(PackedCall(checked, replace(piece, scattered=np.array([rows])), index))
    else:
        decoder.forward(checked)
        decoder.forward(piece)


def load(network: DecoderNetwork, options: type[EngineOptions]) -> dict[str, Any]:
    """Serve requests; return answer tokens per second, and the numbers of calls and tokens computed."""
    decoder = ReferenceDecoder(network, SLOTS, pool=POOL)
    engine = LLMEngine(decoder, options(token_budget=64, proposer=LookupProposer(GUESSES)))
    r, waiting = np.random.default_rng(0), []
    for number in range(REQUESTS):
        ids = r.integers(100, network.vocab_size - 100, int(r.integers(40, 200))).tolist()
        params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
        waiting.append(Request(str(number), ids, Settings.resolve(params, Vocabulary(network.vocab_size, ()))))
    answers, started_s = dict[str, list[int]](), time.perf_counter()
    while waiting or engine.has_work:
        if waiting and (engine.statistics.steps % 5 == 0 or not engine.has_work):
            engine.submit(waiting.pop(0))
        answers |= {finished.request.id: finished.token_ids for finished in engine.step()}
    elapsed_s, done = time.perf_counter() - started_s, engine.statistics
    gc.collect()
    return {
        "answers": answers,
        "tokens_per_second": REQUESTS * ANSWER / elapsed_s,
        "steps": done.steps,
        "network_calls": done.network_calls,
        "computed_tokens": done.computed_tokens,
        "drafted_tokens": done.drafted_tokens,
        "accepted_tokens": done.accepted_tokens,
    }


def main() -> None:
    """Measure and write the results."""
    figures: dict[str, Any] = {"requests": REQUESTS, "slots": SLOTS, "guesses": GUESSES}
    for kind, caches in CACHES.items():
        network, of_kind = network_of("packed", caches), dict[str, Any]()
        decoder = filled(network)
        for budget in BUDGETS:
            variants = {name: partial(step, decoder, budget, is_together=name == "together") for name in OPTIONS}
            steps = interleaved({name: partial(seconds, run) for name, run in variants.items()}, STEPS)
            of_kind[f"budget {budget}"] = {
                "step_s": {name: summary(times) for name, times in steps.items()},
                "ratio": ratio(steps["together"], steps["apart"]),
            }
        del decoder
        runs = interleaved({name: partial(load, network, options) for name, options in OPTIONS.items()}, ROUNDS, 0)
        answers = [run.pop("answers") for each in runs.values() for run in each]
        rates = {name: [run["tokens_per_second"] for run in each] for name, each in runs.items()}
        of_kind["load"] = {
            **{name: {**runs[name][-1], "tokens_per_second": summary(rates[name])} for name in runs},
            "speedup": ratio(rates["together"], rates["apart"]),
            "are_answers_equal": all(each == answers[0] for each in answers),
        }
        figures[kind] = of_kind
    write("packed_guesses", figures)


if __name__ == "__main__":
    main()
