"""A rank on TensorRT's simulated runtime, which torchrun starts: `simulated_rank.py BUNDLE OUTPUT`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from tests.simulated_tensorrt import simulate
from tests.support.engine_decoders import greedy
from trtkit.bundle.bundle import open_bundle
from trtkit.llm.execution import open_execution

PROMPTS = np.random.default_rng(0).integers(3, 300, (3, 7))
STEPS = 4


def main(bundle: Path, output: Path) -> None:
    """Generate, and write tokens and logits; other ranks than the first serve and exit inside."""
    simulated = simulate(setattr)
    opened = open_bundle(bundle)
    simulated.plans.add(opened)
    execution = open_execution(opened, "tensorrt")
    tokens, logits = greedy(execution, PROMPTS, STEPS)
    contexts = [context for engine in simulated.runtimes[-1].engines for context in engine.contexts]
    connected = sum(context.communicator is not None for context in contexts)
    execution.close()
    np.savez(output, tokens=np.array(tokens), logits=np.array(logits), connected=connected)
    os._exit(0)  # threads of gloo may still wait


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
