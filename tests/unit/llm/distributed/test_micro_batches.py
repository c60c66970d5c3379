"""Packed calls in parts: every token is in one of them, in order, and so are its logits."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from trtkit.llm.distributed.micro_batches import split_packed
from trtkit.llm.execution.call import Call
from trtkit.llm.execution.packed import PackedCall
from trtkit.llm.soft_tokens import SoftTokens

LENGTH = 40


def call_of(r: random.Random) -> PackedCall:
    """Return a call that has room: some slots decode, up to 3 tokens each, and others read prompts, one of an image."""
    decode, reading, width = r.choice([0, 1, 3]), r.randint(1, 4), r.randint(1, 3)
    news = np.array([r.choice([0, 1, 2, 7, 12]) for _ in range(reading)])
    news[r.randrange(reading)] = 12
    starts = np.array([r.randint(0, LENGTH - 12) for _ in range(reading)])
    ids = np.arange(reading * 12).reshape(reading, 12)
    at = decode + np.arange(reading)
    first = int(starts[-1])
    at_image = np.arange(5)
    image = SoftTokens(first + 2 + at_image, torch.zeros(5, 1), at_image, ends=np.full(5, first + 7))
    soft = {int(at[-1]): image} if news[-1] > 7 else {}
    prompts = Call(decode, ids, starts, news, soft, scattered=at, adapters=at)
    rows = np.full((decode, width), 99), np.full(decode, 5), np.array([r.randint(0, width) for _ in range(decode)])
    tokens = decode * width + int(news.sum())
    wanted = np.array(sorted(r.sample(range(tokens), r.randint(0, tokens))), np.int64)
    return PackedCall(Call(0, *rows, scattered=np.arange(decode)), prompts, wanted)


def tokens_of(call: PackedCall) -> list[tuple[int, ...]]:
    """Return id, position, slot and adapter of each token of a call, in order."""
    both = [(part.ids, part.position_ids, part.slots, part.adapter_ids) for part in (call.decode, call.prompts)]
    columns = []
    for index in range(4):
        arrays = [each[index] for each in both]
        if index > 1:
            shapes = [each[0].shape for each in both]
            arrays = [np.broadcast_to(array[:, None], shape) for array, shape in zip(arrays, shapes, strict=True)]
        columns.append(call.of_tokens(*arrays)[:, 0].tolist())
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_parts_have_the_tokens_of_the_call_and_its_logits(seed: int) -> None:
    r = random.Random(seed)
    call, count = call_of(r), r.randint(1, 6)
    parts = split_packed(call, count, LENGTH)
    assert len(parts) <= count
    tokens = [tokens_of(part) for part in parts]
    assert [token for part in tokens for token in part] == tokens_of(call)
    wanted = [part[index] for part, each in zip(tokens, parts, strict=True) for index in each.logit_index.tolist()]
    assert wanted == [tokens_of(call)[index] for index in call.logit_index.tolist()]
    for part in parts:
        assert part.tokens
        for rows in (part.decode, part.prompts):
            if len(rows.starts):
                rows.check(16, LENGTH)
                rows.visible_lengths()
        slots = part.prompts.slots
        assert np.array_equal(slots, slots[:1].sum() + np.arange(len(slots)))


def test_parts_have_as_many_tokens_unless_an_image_or_a_slots_end_keeps_them_together() -> None:
    ids, zeros = np.arange(64).reshape(1, 64), np.zeros(1, np.int64)
    call = PackedCall(
        Call(0, np.zeros((8, 1), np.int64), np.full(8, 5), np.ones(8, np.int64)),
        Call(8, ids, zeros, zeros + 64, scattered=zeros + 8),
        np.array([71]),
    )
    assert [part.tokens for part in split_packed(call, 4, 64)] == [18] * 4
