"""Random sequences of allocating, forking, sharing, evicting and swapping, against a model of what slots hold."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.errors import ExecutionError
from trtkit.llm.cache import PageTables
from trtkit.llm.soft_tokens import SoftTokens

if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS, PAGES, PAGE, LENGTH = 6, 24, 4, 40


class Machine:
    """Page tables, a memory that follows them, and for each slot the tokens that it must read."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.tables = PageTables(SLOTS, PAGES, PAGE, LENGTH)
        self.memory = np.full((PAGES, PAGE), -1)
        self.held: list[list[int]] = [[] for _ in range(SLOTS)]
        self.swapped: list[list[int]] = []

    def read(self, slot: int, count: int) -> list[int]:
        tokens: list[int] = self.memory[self.tables.table[slot]].reshape(-1)[:count].tolist()
        return tokens

    def write(self, slot: int, start: int, tokens: list[int]) -> None:
        """Do what a call does: make room, copy pages, write."""
        copies = self.tables.reserve(np.array([slot]), np.array([start]), np.array([start + len(tokens)]))
        self.memory[copies.targets] = self.memory[copies.sources]
        for place, token in enumerate(tokens, start):
            page = int(self.tables.table[slot, place // PAGE])
            assert self.tables.references[page] == 1, "a page with two writers"
            assert page != 0
            self.memory[page, place % PAGE] = token
        self.held[slot] = self.held[slot][:start] + tokens

    def append(self, slot: int) -> None:
        count = self.r.randint(1, 9)
        held = self.held[slot]
        tokens = [self.r.randrange(2) for _ in range(min(count, LENGTH - len(held)))]  # few kinds: beginnings are alike
        if tokens:
            try:
                self.write(slot, len(held), tokens)
            except ExecutionError:
                assert self.tables.free < 4

    def rewrite(self, slot: int) -> None:
        """Go back to an earlier token, as a rejected guess does."""
        if self.held[slot]:
            start = self.r.randrange(len(self.held[slot]))
            try:
                self.write(slot, start, [2])
            except ExecutionError:
                self.held[slot] = self.held[slot][:start]  # what follows is forgotten either way

    def fork(self, slot: int) -> None:
        source = self.r.randrange(SLOTS)
        if source != slot:
            count = self.r.randint(0, len(self.held[source]))
            self.tables.share(source, slot, count)
            self.held[slot] = self.held[source][:count]

    def register(self, slot: int) -> None:
        self.tables.register(slot, np.array(self.held[slot], np.int64))

    def adopt(self, slot: int) -> None:
        prompt = np.array([self.r.randrange(2) for _ in range(20)], np.int64)
        other = self.held[self.r.randrange(SLOTS)]
        prompt[: len(other)] = other[:20]
        self.release(slot)
        pages = self.tables.match(prompt)
        self.tables.adopt(slot, pages)
        self.held[slot] = prompt[: len(pages) * PAGE].tolist()

    def release(self, slot: int) -> None:
        self.tables.release(slot)
        self.held[slot] = []

    def swap_out(self, slot: int) -> None:
        self.swapped.append(self.read(slot, len(self.held[slot])))
        self.release(slot)

    def swap_in(self, slot: int) -> None:
        if self.swapped:
            tokens = self.swapped.pop()
            self.release(slot)
            try:
                self.tables.grow(slot, len(tokens))
            except ExecutionError:
                return
            self.held[slot] = tokens
            for place, token in enumerate(tokens):
                self.memory[self.tables.table[slot, place // PAGE], place % PAGE] = token

    def step(self) -> None:
        kinds: tuple[Callable[[int], None], ...] = (
            self.append, self.append, self.append, self.rewrite, self.fork, self.register, self.register, self.adopt,
            self.release, self.swap_out, self.swap_in,
        )  # fmt: skip
        self.r.choice(kinds)(self.r.randrange(SLOTS))

    def check(self) -> None:
        tables = self.tables
        for slot, tokens in enumerate(self.held):
            assert self.read(slot, len(tokens)) == tokens
        in_slots = np.bincount(np.concatenate([tables.pages_of(slot) for slot in range(SLOTS)]).astype(int))
        expected = np.zeros(PAGES, np.int64)
        expected[: len(in_slots)] = in_slots
        assert np.array_equal(tables.references, expected)
        assert tables.free == PAGES - 1 - np.count_nonzero(expected), "a page is lost, or free twice"


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_random_steps_agree_with_a_model(seed: int) -> None:
    run(seed, 300)


@pytest.mark.slow
def test_a_hundred_thousand_steps_agree_with_a_model() -> None:
    for seed in range(10):
        run(seed, 10_000)


def run(seed: int, steps: int) -> None:
    """Take random steps, checking all after each; in the end everything can be had again."""
    machine = Machine(seed)
    for _ in range(steps):
        machine.step()
        machine.check()
    for slot in range(SLOTS):
        machine.release(slot)
    assert machine.tables.free == PAGES - 1
    for _ in range(PAGES // (LENGTH // PAGE)):
        machine.write(0, 0, [1] * LENGTH)
        machine.release(0)
        machine.check()


def test_beginnings_stay_until_their_memory_is_needed() -> None:
    tables = PageTables(3, 1 + 6, PAGE, LENGTH)
    first, second = np.arange(12), np.arange(50, 58)
    for slot, ids in enumerate((first, second)):
        tables.grow(slot, len(ids))
        tables.register(slot, ids)
        tables.release(slot)
    assert tables.free == 6
    assert len(tables.match(np.append(first, 0))) == 3
    tables.grow(2, 2 * PAGE)  # one page was never used, one is taken from the oldest beginning: its last
    assert len(tables.match(np.append(first, 0))) == 2
    assert len(tables.match(np.append(second, 0))) == 2
    with pytest.raises(ExecutionError, match="6 pages are needed, 4 are free"):
        tables.grow(0, 6 * PAGE)
    assert len(tables.match(np.append(second, 0))) == 2  # nothing was taken


def test_a_prompts_last_token_is_always_computed() -> None:
    tables, ids = PageTables(2, 9, PAGE, LENGTH), np.arange(8)
    tables.grow(0, 8)
    tables.register(0, ids)
    assert len(tables.match(ids)) == 1
    assert len(tables.match(np.append(ids, 9))) == 2


def test_equal_tokens_with_other_images_are_other_contents() -> None:
    tables, ids = PageTables(2, 9, PAGE, LENGTH), np.array([1, 7, 7, 2, 3, 4, 5, 6])
    soft = [SoftTokens(np.array([1, 2]), torch.zeros(2, 3), np.array([key, key])) for key in (11, 12)]
    tables.grow(0, 8)
    tables.register(0, ids, soft[0])
    prompt = np.append(ids, 8)
    assert len(tables.match(prompt, soft[0])) == 2
    assert tables.match(prompt, soft[1]) == tables.match(prompt) == []


def test_two_slots_that_computed_the_same_go_on_with_one_page() -> None:
    tables, ids = PageTables(2, 9, PAGE, LENGTH), np.arange(8)
    for slot in (0, 1):
        tables.grow(slot, 8)
        tables.register(slot, ids)
    assert tables.pages_of(0) == tables.pages_of(1)
    assert tables.free == 6
