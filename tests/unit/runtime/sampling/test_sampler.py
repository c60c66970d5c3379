from __future__ import annotations

import numpy as np
import torch

from trtkit.runtime.sampling.params import SamplingParams
from trtkit.runtime.sampling.sampler import Sampler
from trtkit.runtime.sampling.settings import Settings, Vocabulary
from trtkit.runtime.sequences import Sequences


def test_greedy_rows_take_the_largest_beside_rows_that_draw() -> None:
    sequences = Sequences(3, 8)
    sampler = Sampler(sequences, 11)
    for slot, temperature in enumerate((0, 0.5, 0)):
        sequences.start(slot, [1, 2])
        sampler.admit(slot, Settings.resolve(SamplingParams(temperature=temperature, seed=3), Vocabulary(11)))
    logits = torch.randn(3, 11, generator=torch.manual_seed(0))
    sampled = sampler.sample(logits, np.arange(3))
    assert sampled.tokens[[0, 2]].tolist() == logits.argmax(-1)[[0, 2]].tolist()
    assert 0 <= sampled.tokens[1] < 11
    assert sampled.errors == [None] * 3
