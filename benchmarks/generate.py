"""Generation on the CPU: the reference executor against transformers, tokens per second of decode and prefill.

SmolLM2-135M with its real weights, greedy, in one process; threads, types and kind of cache are the same on both sides.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.generate_models import CACHE_LENGTH, CONFIG, Ids, Model, Transformers, Trtkit, slot_memory
from benchmarks.measure import interleaved, ratio, seconds, summary, write

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 2
PRECISIONS = ("fp32", "bf16", "fp16")
BATCHES = (1, 8)
CONTEXT, STEPS, DECODE_REPEATS = 128, 4, 6
PROMPT, PREFILL_REPEATS = 512, 6

Figures = dict[str, Any]


def prompts(batch: int, length: int) -> Ids:
    """Return seeded token ids [batch, length]."""
    return np.random.default_rng(0).integers(1000, 40000, (batch, length))


def decode_figures(models: dict[str, Model], batch: int) -> Figures:
    """Decode greedily after a context; each turn of a model is STEPS tokens of every sequence."""
    written: dict[str, list[Ids]] = {}
    for name, model in models.items():
        model.start(batch)
        written[name] = [model(prompts(batch, CONTEXT))]
    turns = {name: partial(seconds, partial(_decode, model, written[name])) for name, model in models.items()}
    figures = _rates(interleaved(turns, DECODE_REPEATS), batch * STEPS)
    ours, theirs = (np.stack(written[name]) for name in models)
    return {**figures, "same_tokens": round(float((ours == theirs).mean()), 3)}


def _decode(model: Model, written: list[Ids]) -> None:
    for _ in range(STEPS):
        written.append(model(written[-1][:, None]))


def prefill_figures(models: dict[str, Model]) -> Figures:
    """Prefill one prompt into empty caches, allocated beforehand."""
    turns: dict[str, Callable[[], float]] = {name: partial(_prefill, model) for name, model in models.items()}
    return _rates(interleaved(turns, PREFILL_REPEATS, warmups=0), PROMPT)


def _prefill(model: Model) -> float:
    model.start(1)
    return seconds(partial(model, prompts(1, PROMPT)))


def _rates(samples: dict[str, list[float]], tokens: int) -> Figures:
    """Return each model's tokens per second, and the reference executor's ratio to transformers."""
    rates = {name: [tokens / value for value in values] for name, values in samples.items()}
    return {
        "tokens_per_second": {name: summary(values) for name, values in rates.items()},
        "ratio": ratio(rates["trtkit"], rates["transformers"]),
    }


def model_figures(precision: str) -> dict[str, Figures]:
    """Measure one precision."""
    models: dict[str, Model] = {"trtkit": Trtkit(precision), "transformers": Transformers(precision)}
    decode = {f"decode, batch {batch}": decode_figures(models, batch) for batch in BATCHES}
    return {**decode, f"prefill, {PROMPT} tokens": prefill_figures(models)}


def main() -> None:
    """Measure and write the results."""
    torch.set_num_threads(THREADS)
    figures = {precision: model_figures(precision) for precision in PRECISIONS}
    about = {"model": CONFIG.name, "threads": THREADS, "cache_length": CACHE_LENGTH, "context": CONTEXT}
    memory = slot_memory()
    print(write("generate", {**about, "models": figures, "slot_memory": memory}))
    print(f"a slot: {memory}")
    for precision, cases in figures.items():
        for case, found in cases.items():
            ours, theirs = (found["tokens_per_second"][name]["median"] for name in ("trtkit", "transformers"))
            print(f"{precision}, {case}: {ours:.1f} tokens/s, {found['ratio']}x of transformers' {theirs:.1f}")


if __name__ == "__main__":
    main()
