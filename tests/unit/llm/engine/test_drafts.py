"""Trees of guesses: which ones are kept, where they lie, and which of them a call may see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from trtkit.llm.engine.drafts import Drafts, GuessTree

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 6


def paths(drafts: Drafts, row: int) -> list[tuple[int, ...]]:
    """Return the tokens of each guess's branch, in the order of the columns."""
    assert drafts.parents is not None
    found: list[tuple[int, ...]] = []
    for token, parent in zip(drafts.tokens[row].tolist(), drafts.parents[row].tolist(), strict=True):
        if token >= 0:
            found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def likeliest(
    logprobs: np.ndarray, drawn: list[int], most: int, may_branch: Callable[[tuple[int, ...]], bool]
) -> set[tuple[int, ...]]:
    """Return the drawn chain and the likeliest other branches, by trying all. logprobs: [D, V]."""
    chain = [tuple(drawn[: depth + 1]) for depth in range(len(drawn))]
    scores: dict[tuple[int, ...], float] = {}
    level: list[tuple[int, ...]] = [()]
    for depth in range(len(drawn)):
        level = [(*path, token) for path in level if may_branch(path) for token in range(VOCABULARY)]
        scores |= {path: sum(logprobs[place, token] for place, token in enumerate(path)) for path in level}
        assert depth < len(drawn)
    others = sorted((path for path in scores if path not in chain), key=lambda path: -scores[path])
    return {*chain, *others[: most - len(chain)]}


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(0, 9), st.booleans())
def test_the_likeliest_branches_are_kept(seed: int, depth: int, alternatives: int, is_everywhere: bool) -> None:
    random, rows = np.random.default_rng(seed), 3
    logits = torch.from_numpy(random.normal(0, 2, (rows, depth, VOCABULARY)))
    drawn = random.integers(0, VOCABULARY, (rows, depth))
    tree = GuessTree(rows, depth, depth + alternatives)
    for level in range(depth):
        grow = tree.grow_everywhere if is_everywhere else tree.grow
        grow(logits[:, level], torch.from_numpy(drawn[:, level]))
    drafts = tree.drafts()
    if not alternatives:
        assert drafts.parents is None
        np.testing.assert_array_equal(drafts.tokens, drawn)
        return
    logprobs = torch.log_softmax(logits.float(), -1).double().numpy()
    for row in range(rows):
        own = drawn[row].tolist()
        may_branch = (lambda _path: True) if is_everywhere else (lambda path, own=own: list(path) == own[: len(path)])
        branches = paths(drafts, row)
        assert set(branches) == likeliest(logprobs[row], own, depth + alternatives, may_branch)
        assert len(branches) == len(set(branches))
        assert branches[:depth] == [tuple(own[: place + 1]) for place in range(depth)]  # nothing moves if it comes true


def test_tokens_that_cannot_be_guessed_are_no_alternatives() -> None:
    logits = torch.tensor([[0.0, 1.0, -3e38, -3e38, -3e38, -3e38]]).double()
    tree = GuessTree(1, 2, 6)
    tree.grow(logits, torch.tensor([1]))
    tree.grow(logits, torch.tensor([-1]))  # nothing could be drawn
    drafts = tree.drafts()
    assert paths(drafts, 0) == [(1,), (1, 1), (1, 0), (0,)]
    assert drafts.counts.tolist() == [4]


@st.composite
def trees(draw: st.DrawFn) -> Drafts:
    """Random trees in depth-first order, of different sizes."""
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        parents: list[int] = []
        for column in range(draw(st.integers(1, 8))):
            branch = [column - 1]
            while branch[-1] >= 0:
                branch.append(parents[branch[-1]])
            parents.append(draw(st.sampled_from(branch)))
        rows.append(parents)
    width = max(map(len, rows), default=0)
    padded = np.array([row + [-1] * (width - len(row)) for row in rows]).reshape(len(rows), width)
    tokens = np.where(np.arange(width) < np.array([[len(row)] for row in rows]), np.arange(width) + 7, -1)
    return Drafts(tokens, padded)


def ancestors(drafts: Drafts, row: int, column: int) -> set[int]:
    """Return the columns, 0 for the sequence's last token, that a guess follows, and its own."""
    assert drafts.parents is not None
    found = {column + 1, 0}
    while (column := int(drafts.parents[row, column])) >= 0:
        found.add(column + 1)
    return found


@given(trees())
def test_each_guess_sees_its_ancestors(drafts: Drafts) -> None:
    tree = drafts.tree()
    assert tree is not None
    for row, count in enumerate(drafts.counts.tolist()):
        for column in range(count):
            place = column + 1
            seen = {key for key in range(place + 1) if place < tree.ends[row, key]}
            assert seen == ancestors(drafts, row, column)
            assert tree.depths[row, place] == len(seen) - 1


@given(trees(), st.integers(0, 5), st.integers(0, 8))
def test_cutting_leaves_whole_branches(drafts: Drafts, depth: int, most: int) -> None:
    cut = drafts.up_to(np.full(len(drafts.tokens), depth), most)
    for row, count in enumerate(drafts.counts.tolist()):
        kept = [p for column, p in enumerate(paths(drafts, row)) if column < most and len(p) <= depth]
        assert paths(cut, row) == kept
        assert count >= len(kept)


@given(trees(), st.integers(-1, 8), st.integers(7, 15))
def test_children_are_found_by_token(drafts: Drafts, parent: int, token: int) -> None:
    rows = np.arange(len(drafts.tokens))
    found = drafts.children(rows, np.full(len(rows), parent), np.full(len(rows), token))
    assert drafts.parents is not None
    for row in rows.tolist():
        wanted = [
            column
            for column, (own, above) in enumerate(zip(drafts.tokens[row], drafts.parents[row], strict=True))
            if own == token and above == parent
        ]
        assert found[row] == (wanted[0] if wanted else -1)


def test_children_of_a_chain() -> None:
    drafts = Drafts(np.array([[5, 6, -1], [5, 5, 5]]))
    assert drafts.children(np.array([0, 1, 1]), np.array([0, -1, 1]), np.array([6, 5, 4])).tolist() == [1, 0, -1]
    assert drafts.tree() is None
