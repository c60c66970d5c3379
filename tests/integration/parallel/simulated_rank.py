"""A rank on TensorRT's simulated runtime, which torchrun starts: `simulated_rank.py BUNDLE OUTPUT`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from tests.simulated_tensorrt import simulate
from tests.simulated_tensorrt.context import SimulatedContext
from tests.support.engine_decoders import greedy
from trtkit.bundle.bundle import open_bundle
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import DecoderExecution, engine, open_execution
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings

PROMPTS = np.random.default_rng(0).integers(3, 300, (3, 7))
STEPS, REQUESTS = 4, 7


def served(execution: DecoderExecution) -> np.ndarray:
    """Return the greedy tokens of requests [R, S] that come one a step, so that some read while others decode."""
    llm, tokens = LLMEngine(execution, EngineOptions(token_budget=9)), {}
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    for number in range(REQUESTS):
        prompt = np.random.default_rng(number).integers(3, 300, 1 + 5 * number).tolist()
        llm.submit(Request(str(number), prompt, Settings(params, 0)))
        tokens |= {each.request.id: each.token_ids for each in llm.step()}
    while llm.has_work:
        tokens |= {each.request.id: each.token_ids for each in llm.step()}
    return np.array([tokens[str(number)] for number in range(REQUESTS)])


def stay_away(seconds: float) -> None:
    """Let the last rank never give its contexts the communicator; the others wait for it for so many seconds."""
    engine._CONNECTING_S = seconds
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        SimulatedContext.set_communicator = lambda *_: time.sleep(300)  # type: ignore[method-assign]


def main(bundle: Path, output: Path) -> None:
    """Generate, and write tokens and logits; other ranks than the first serve and exit inside."""
    if "STAY_AWAY" in os.environ:
        stay_away(float(os.environ["STAY_AWAY"]))
    simulated = simulate(setattr)
    opened = open_bundle(bundle)
    simulated.plans.add(opened)
    execution = open_execution(opened, "tensorrt")
    tokens, logits = greedy(execution, PROMPTS, STEPS)
    answers = served(execution)
    contexts = [context for engine in simulated.runtimes[-1].engines for context in engine.contexts]
    connected = sum(context.communicator is not None for context in contexts)
    execution.close()
    np.savez(output, tokens=np.array(tokens), served=answers, logits=np.array(logits), connected=connected)
    os._exit(0)  # threads of gloo may still wait


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
