"""Packed calls: rows that decode and rows of prompts in one call give what transformers gives each sequence alone."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.covering import CACHED, in_covering_set_of, spec_of
from tests.decoder_cases import CASES
from tests.decoders import graph_of, model_of, read_network
from tests.selection import slow_unless
from trtkit.dtypes import FP32
from trtkit.llm.execution import Call, ReferenceDecoder
from trtkit.llm.execution.network import DecoderNetwork
from trtkit.llm.execution.packed import PackedCall
from trtkit.network.decoder_options import DecoderOptions

if TYPE_CHECKING:
    from tests.decoder_case import Case

LENGTH, SLOTS, TOKENS, STEPS = 32, 5, 26, 30
LINEAR: dict[str, Any] = {}
WINDOW = {"has_kv_window": True}
PAGED = {"page_tokens": 4}
PACKED = [case for case in CASES if not spec_of(case).states]


def decoder_of(case: Case, **options: Any) -> ReferenceDecoder:
    """Return the case's packed network, read from a file, with caches for SLOTS sequences."""
    model = model_of(case)
    graph = graph_of(model, DecoderOptions(FP32, LENGTH, is_packed=True, **options))
    network = DecoderNetwork(
        graph.layers(),
        graph.inputs,
        model.spec.vocab_size,
        LENGTH,
        LENGTH,
        True,
        has_read_only_caches=bool(options.get("page_tokens")),
    )
    return ReferenceDecoder(read_network(network), SLOTS)


def random_call(r: random.Random, ids: np.ndarray, read: np.ndarray, *, is_paged: bool) -> PackedCall:
    """Return a call in which some slots decode, with idle ones between them, and others read pieces of any length.

    The others are neighbors if caches are linear.
    """
    left = [slot for slot in range(SLOTS) if read[slot] < TOKENS]
    decode = [slot for slot in left if read[slot] and r.random() < 0.6]
    prompts = [slot for slot in r.sample(left, len(left)) if slot not in decode and r.random() < 0.7]
    if not decode and not prompts:
        prompts = left[:1]
    if not is_paged:
        prompts = [slot for place, slot in enumerate(sorted(prompts)) if slot == min(prompts) + place]
    rows = np.arange(min(decode), max(decode) + 1) if decode else np.zeros(0, np.int64)
    counts = np.isin(rows, decode).astype(np.int64)
    starts = read[rows]
    decoding = Call(
        int(rows[0]) if decode else 0,
        ids[rows, np.minimum(starts, TOKENS - 1)][:, None] * counts[:, None],
        starts,
        counts,
    )
    slots = np.array(prompts, np.int64)
    new = np.array([r.randint(1, int(min(9, TOKENS - read[slot]))) for slot in prompts], np.int64)
    pieces = np.zeros((len(prompts), int(new.max(initial=1))), np.int64)
    for piece, slot, count in zip(pieces, prompts, new, strict=True):
        piece[:count] = ids[slot, read[slot] : read[slot] + count]
    reading = Call(0, pieces, read[slots], new, scattered=slots)
    return PackedCall(decoding, reading, np.arange(len(rows) + int(new.sum())))


def check_steps(decoder: ReferenceDecoder, case: Case, seed: int = 0, atol: float = 2e-4) -> None:
    """Compare the logits of every token of random mixed steps with transformers'."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    ids = rng.integers(3, 67, (SLOTS, TOKENS))
    expected = model_of(case).logits(torch.from_numpy(ids))
    read = np.zeros(SLOTS, np.int64)
    for _ in range(STEPS):
        if (read == TOKENS).all():
            break
        call = random_call(r, ids, read, is_paged=decoder.cache.pages is not None)
        logits = decoder.forward_packed(call)
        for row, slot in enumerate(call.decode.slots.tolist()):
            if call.decode.counts[row]:
                torch.testing.assert_close(logits[row], expected[slot, read[slot]], atol=atol, rtol=1e-3)
        first = call.rows
        for slot, count in zip(call.prompts.slots.tolist(), call.prompts.counts.tolist(), strict=True):
            part = expected[slot, read[slot] : read[slot] + count]
            torch.testing.assert_close(logits[first : first + count], part, atol=atol, rtol=1e-3)
            first += count
        read[call.decode.slots] += call.decode.counts
        read[call.prompts.slots] += call.prompts.counts
    assert (read == TOKENS).any()


CACHES = {"linear": LINEAR, "window": WINDOW, "paged": PAGED}
_covers = in_covering_set_of(PACKED, CACHED)


@pytest.mark.parametrize(
    ("case", "kind"),
    slow_unless(
        lambda case, kind: kind == "paged" or (kind == "linear" and _covers(case)), itertools.product(PACKED, CACHES)
    ),
    ids=str,
)
def test_mixed_steps_give_what_transformers_gives(case: Case, kind: str) -> None:
    check_steps(decoder_of(case, **CACHES[kind]), case)
