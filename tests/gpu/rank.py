"""A rank of the step `serving`, started by torchrun: `tests.gpu.rank BUNDLE [--simulated] [--on-host]`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from tests.gpu.place import open_place
from tests.support.engine_decoders import greedy
from trtkit.bundle.bundle import open_bundle
from trtkit.llm.execution import open_execution

PROMPTS = np.random.default_rng(0).integers(3, 300, (3, 7))
STEPS = 4


def main(folder: Path, *, simulates: bool, on_host: bool) -> None:
    """Generate and print the tokens. Ranks other than the first serve, and exit within this function."""
    place, bundle = open_place(folder.parents[1], on_host=on_host, simulates=simulates), open_bundle(folder)
    if place.simulated is not None:
        place.simulated.plans.add(bundle)
    execution = open_execution(bundle, "tensorrt")
    tokens = greedy(execution, PROMPTS, STEPS)[0]
    execution.close()
    print(json.dumps(np.array(tokens).tolist()), flush=True)
    os._exit(0)  # gloo's threads may still be waiting


if __name__ == "__main__":
    main(Path(sys.argv[1]), simulates="--simulated" in sys.argv, on_host="--on-host" in sys.argv)
