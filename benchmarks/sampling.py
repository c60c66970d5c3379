"""Sampling on the CPU against argmax over the same logits: `python -m benchmarks.sampling`.

Settings x distributions x vocabularies x rows, on one thread; writes benchmarks/results/sampling.json.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.measure import interleaved, ratio, seconds, write
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.sampler import Sampler
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.llm.sequences import Sequences

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARIES, ROWS, REPEATS = (49_152, 128_256), (1, 64), 9
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top-k 50": {"temperature": 0.8, "top_k": 50},
    "top-k 20000": {"temperature": 0.8, "top_k": 20_000},
    "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "top-p 0.5": {"temperature": 0.8, "top_p": 0.5},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "typical 0.95": {"temperature": 0.8, "typical_p": 0.95},
    "all filters": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
}


def distributions(rows: int, vocabulary: int) -> dict[str, torch.Tensor]:
    """Return logits [rows, vocabulary] by the name of their distribution."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(rows, vocabulary, generator=generator)
    log_ranks = torch.arange(1, vocabulary + 1)[torch.randperm(vocabulary, generator=generator)].log()
    return {
        "peaked": noise * 8,
        "typical": noise / 2 - 2 * log_ranks,
        "heavy-tailed": noise / 10 - log_ranks,
        "flat": noise,
        "nearly equal": noise / 100,
        "all equal": torch.zeros_like(noise),
        "two-valued": (noise > 0).float(),
    }


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    figures = {
        f"{vocabulary} x {rows}": {name: _ratios(logits) for name, logits in distributions(rows, vocabulary).items()}
        for vocabulary in VOCABULARIES
        for rows in ROWS
    }
    for shape, of_shape in figures.items():
        for name, settings in of_shape.items():
            print(shape, name, {setting: each["times_argmax"] for setting, each in settings.items()})
    write("sampling", {"threads": 1, "figures": figures})


def _ratios(logits: torch.Tensor) -> dict[str, Any]:
    """Return milliseconds per step by settings, and their ratios to argmax in the same turns."""
    runs: dict[str, Callable[[], object]] = {"argmax": partial(logits.numpy().argmax, -1)}
    runs |= {name: _step(logits, params) for name, params in SETTINGS.items()}
    samples = interleaved({name: partial(seconds, run) for name, run in runs.items()}, REPEATS)
    return {
        name: {"ms": round(float(np.median(values)) * 1e3, 3), "times_argmax": ratio(values, samples["argmax"])}
        for name, values in samples.items()
    }


def _step(logits: torch.Tensor, params: dict[str, Any]) -> Callable[[], object]:
    """Return a function that samples a token per row."""
    rows, vocabulary = logits.shape
    sequences = Sequences(rows, 8)
    sampler = Sampler(sequences, vocabulary)
    for slot in range(rows):
        sequences.start(slot, [0])
        settings = SamplingParams(seed=slot, max_tokens=4, **params)
        sampler.admit(slot, Settings.resolve(settings, Vocabulary(vocabulary, (1,))))
    return partial(sampler.sample, logits, np.arange(rows))


if __name__ == "__main__":
    main()
