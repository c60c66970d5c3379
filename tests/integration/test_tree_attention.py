"""Trees of guesses: each guess attends to its own branch, as transformers does in a whole sequence."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.support.covering import CACHED, in_covering_set_of
from tests.support.decoder_cases import CASES
from tests.support.decoders import graph_of, model_of, relative_rms
from tests.support.generation import LENGTH, MAX_PREFILL, PAGE_TOKENS
from trtkit.builder.speculators import tree_obstacles
from trtkit.dtypes import FP32
from trtkit.llm.engine.drafts import Drafts
from trtkit.llm.execution import Call, CallTree, DecoderNetwork, ReferenceDecoder
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.network.decoder_options import DecoderOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

    from tests.support.decoder_case import Case

FAMILIES = {case.model_type: case for case in reversed(CASES)}
REFUSED = {"bloom", "mpt", "llama4_text"}
REFUSED |= {"bamba", "falcon_h1", "granitemoehybrid", "kimi_linear", "lfm2", "mamba2", "nemotron_h"}
REFUSED |= {"qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
READING = [case for model_type, case in FAMILIES.items() if model_type not in REFUSED]
KINDS = ("linear", "window", "paged", "packed")
FOLDED = {"llama", "gpt_oss", "deepseek_v3"}
"""Heads that share keys are folded into rows of a packed network: groups of them, with sinks, all with a latent."""
PROMPTS = ((5, 6, 7, 8, 9), tuple(range(20, 37)))
# Of the second row, one guess fewer. Columns are in depth-first order.
PARENTS = [[-1, 0, 1, 1, 0, 4, -1, 6, -1], [-1, -1, 1, 2, 3, 2, 1, -1, -1]]
TOKENS = [[11, 12, 13, 14, 15, 16, 17, 18, 19], [21, 22, 23, 24, 25, 26, 27, 28, -1]]


def decoder(case: Case, kind: str) -> ReferenceDecoder:
    page_tokens = PAGE_TOKENS if kind == "paged" else None
    options = DecoderOptions(
        FP32, LENGTH, has_all_logits=True, has_tree=True, page_tokens=page_tokens, has_kv_window=kind == "window"
    )
    options = replace(options, is_packed=kind == "packed", gives_last_hidden=kind == "packed")
    model = model_of(case)
    sizes = model.spec.vocab_size, LENGTH, MAX_PREFILL
    graph = graph_of(model, options)
    network = DecoderNetwork(
        graph.layers(), graph.inputs, *sizes, has_all_logits=True, has_read_only_caches=page_tokens is not None
    )
    return ReferenceDecoder(network, 2, pool=PoolSize(None if page_tokens is None else 40))


def branch(row: int, column: int) -> list[int]:
    """Return the tokens from a row's first guess of a branch to a column's."""
    parent = PARENTS[row][column]
    return [*([] if parent < 0 else branch(row, parent)), TOKENS[row][column]]


def tree_call(starts: np.ndarray, last: list[int]) -> Call:
    drafts = Drafts(np.array(TOKENS), np.array(PARENTS))
    ids = np.concatenate([np.array(last)[:, None], np.maximum(drafts.tokens, 0)], 1)
    counts = 1 + (drafts.tokens >= 0).sum(1)
    tree = CallTree(np.pad(drafts.depths, ((0, 0), (1, 0))), drafts.ends_after_last())
    return Call(0, ids, starts, counts, tree=tree)


def cases() -> Iterator[ParameterSet]:
    """Yield families and kinds of caches; `make test` runs the covering set, each of them with the next kind."""
    is_kept, turns = in_covering_set_of(READING, CACHED), itertools.cycle(KINDS)
    for case in READING:
        own = next(turns) if is_kept(case) else None
        for kind in KINDS:
            is_quick = kind == own or (kind == "packed" and case.model_type in FOLDED)
            yield pytest.param(case.model_type, kind, marks=[] if is_quick else [pytest.mark.slow])


def test_families_that_read_no_trees_are_refused() -> None:
    for model_type, case in FAMILIES.items():
        assert bool(list(tree_obstacles(model_of(case).spec, 4, LENGTH))) == (model_type in REFUSED)


@pytest.mark.parametrize(("model_type", "kind"), cases())
def test_each_branch_is_a_sequence(model_type: str, kind: str) -> None:
    case = FAMILIES[model_type]
    model = model_of(case)
    tested = decoder(case, kind)
    for slot, prompt in enumerate(PROMPTS):
        for start in range(0, len(prompt) - 1, MAX_PREFILL):
            ids = np.array([prompt[start : min(start + MAX_PREFILL, len(prompt) - 1)]])
            tested.forward(Call(slot, ids, np.array([start]), np.array([ids.shape[1]])))
    starts = np.array([len(prompt) - 1 for prompt in PROMPTS])
    logits = tested.forward(tree_call(starts, [prompt[-1] for prompt in PROMPTS])).clone()
    for row, prompt in enumerate(PROMPTS):
        for column in range(sum(token >= 0 for token in TOKENS[row])):
            ids = [*prompt, *branch(row, column)]
            expected = model.logits(torch.tensor([ids]))[0]
            assert relative_rms(logits[row, column + 1], expected[-1]) < 2e-5, (row, column)
        assert relative_rms(logits[row, 0], model.logits(torch.tensor([prompt]))[0, -1]) < 2e-5
    # The last branch of each row, moved to where a chain would have put it, is what the next token reads.
    moved = [(0, [7, 8], [1, 2]), (1, [2, 3, 6], [1, 2, 3])]
    path = {0: [17, 18], 1: [22, 23, 26]}
    for slot, sources, targets in moved:
        for source, target in zip(sources, targets, strict=True):
            tested.cache.move(np.array([slot]), starts[slot : slot + 1] + source, starts[slot : slot + 1] + target)
    for slot, prompt in enumerate(PROMPTS):
        cached = np.array([len(prompt) + len(path[slot])])
        ours = tested.forward(Call(slot, np.array([[30]]), cached, np.array([1])))
        expected = model.logits(torch.tensor([[*prompt, *path[slot], 30]]))[0, -1]
        assert relative_rms(ours[0, -1], expected) < 2e-5


def test_a_network_for_trees_reads_chains() -> None:
    case = FAMILIES["llama"]
    tested, ids = decoder(case, "linear"), np.array([PROMPTS[0]])
    logits = tested.forward(Call(0, ids, np.zeros(1, np.int64), np.array([5])))
    assert relative_rms(logits[0], model_of(case).logits(torch.from_numpy(ids))[0]) < 1e-5
    tree = CallTree(np.arange(5)[None], np.full((1, 5), 5))
    again = tested.forward(replace(Call(0, ids, np.zeros(1, np.int64), np.array([5])), tree=tree))
    assert torch.equal(logits, again)
