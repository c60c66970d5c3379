"""The sampling kernel: its tokens against the CPU's, its time against torch's sorts and argmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.llm.sampling.columns import Columns
from trtkit.llm.sampling.filters import drawn
from trtkit.llm.sampling.kernel import numbers_of, sample
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.gpu.place import Place
    from tests.gpu.step import Answer

SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top-k": {"top_k": 50},
    "top-p": {"top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "typical": {"typical_p": 0.9},
    "all filters": {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
}
MOST_DIFFERING = 0.02
"""Largest accepted share of differing tokens: draws or filters that a last bit decides."""


def ask(place: Place) -> Iterator[Answer]:
    """Draw a batch of rows under each setting."""
    rows, vocabulary = (64, 128_256) if place.has_gpu else (2, 1500)
    noise = torch.randn(rows, vocabulary, generator=torch.manual_seed(0))
    for name, logits in {"flat": noise, "peaked": noise * 8, "equal": noise * 0}.items():
        for setting, params in SETTINGS.items():
            yield {"what": f"{setting}, {name} rows of {vocabulary}", **_compared(place, logits, params)}


def _compared(place: Place, logits: torch.Tensor, params: dict[str, Any]) -> Answer:
    columns, slots = Columns(len(logits)), np.arange(len(logits))
    for slot in slots.tolist():
        columns.admit(slot, Settings(SamplingParams(**params), 0))
    uniform = np.random.default_rng(0).random(len(logits))
    there = logits.to(place.torch_device)
    numbers = torch.from_numpy(numbers_of(columns, slots, uniform)).to(place.torch_device)
    tokens = sample(there, numbers)
    expected = drawn(logits, slots, columns, uniform)
    differing = float((tokens.cpu() != expected).double().mean())
    return {
        "holds": differing <= MOST_DIFFERING,
        "differing": differing,
        "kernel_ms": place.median_ms(lambda: sample(there, numbers)),
        "sorts_ms": place.median_ms(lambda: drawn(there, slots, columns, uniform)),
        "argmax_ms": place.median_ms(lambda: there.argmax(-1)),
    }
