from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.support.generation import engine
from trtkit.llm.soft_tokens import SoftTokens


def test_a_slot_that_had_another_image_at_the_same_place_gets_all_of_a_fork() -> None:
    state = engine(2)._state
    cache: Any = state.execution.cache
    for slot in range(2):
        image = SoftTokens(np.array([2, 3]), torch.zeros(2, 8), np.array([7, 8]) + 10 * slot)
        state.slots.sequences.start(slot, [5, 6, 1, 1, 9, 9], soft=image)
        state.slots.cached[slot] = 6
        for array in cache.view(slice(slot, slot + 1)).values():
            array.fill_(slot)
    state.fork([(0, 1)])
    for array in cache.view(slice(1, 2)).values():
        assert array[0, 0, :6, 0].tolist() == [1, 1, 0, 0, 0, 0]  # the text before the image was the same
