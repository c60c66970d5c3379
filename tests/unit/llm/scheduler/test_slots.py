from __future__ import annotations

import numpy as np
import pytest

from trtkit.llm.scheduler.slots import Slots


def most_alike(slots: Slots, prompt: list[int]) -> tuple[int, int]:
    """Return what `shared_prefix` does, token by token."""
    ranks = []
    for slot in range(slots.count):
        shared, most = 0, min(len(prompt) - 1, slots.cached[slot])
        while shared < most and slots.sequences.tokens[slot, shared] == prompt[shared]:
            shared += 1
        ranks.append((-shared, bool(slots.is_running[slot]), slot))
    return min(ranks)[2], -min(ranks)[0]


@pytest.mark.parametrize("seed", range(60))
def test_the_slot_that_is_most_alike_is_found_an_ended_one_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots, prompt = Slots(12, 64), rng.integers(0, 3, int(rng.integers(1, 50))).tolist()
    for slot in range(12):
        tokens = prompt + [1] * 5
        if rng.random() < 0.7:
            tokens[int(rng.integers(len(tokens)))] = 9
        slots.sequences.start(slot, tokens)
        slots.cached[slot] = rng.choice([0, len(tokens), rng.integers(len(tokens))])
        slots.is_running[slot] = rng.random() < 0.5
    assert slots.shared_prefix(prompt) == most_alike(slots, prompt)


def hold(slots: Slots, slot: int, length: int) -> None:
    slots.sequences.start(slot, range(length))
    slots.cached[slot] = length
    slots.is_running[slot] = True
    slots.leave(slot, 1)


def test_a_prompt_that_shares_nothing_takes_the_slot_that_was_left_longest_ago() -> None:
    slots = Slots(3, 64)
    for slot in (0, 1, 2):
        hold(slots, slot, 30)
    assert [slots.take(0, 0), slots.take(0, 0)] == [0, 1]


def test_health_checks_leave_what_is_cached() -> None:
    slots = Slots(3, 64)
    for slot in (0, 1):
        hold(slots, slot, 30)
    for _ in range(5):
        slot = slots.take(0, 0)
        assert slot == 2
        hold(slots, slot, 2)
    assert slots.cached.tolist() == [30, 30, 2]
