"""What rank 0 tells arrives as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tests.support.gloo import gloo_groups
from trtkit.llm.distributed.channel import Channel
from trtkit.llm.distributed.messages import CallReader, CallWriter, Message
from trtkit.llm.execution import Call
from trtkit.llm.soft_tokens import SoftTokens


def soft(seed: int, has_positions: bool) -> SoftTokens:
    vectors = torch.randn(3, 8, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    positions = np.arange(15).reshape(3, 5) + seed if has_positions else None
    ends = np.array([3, 3, 5]) if has_positions else None
    return SoftTokens(np.array([1, 2, 4]), vectors, np.array([7, 8, 9]) + seed, positions, ends)


def assert_equal(one: Call, other: Call) -> None:
    assert one.first_slot == other.first_slot
    for name in ("ids", "starts", "counts"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.soft.keys() == other.soft.keys()
    for mine, theirs in zip(one.soft.values(), other.soft.values(), strict=True):
        assert torch.equal(mine.vectors, theirs.vectors)
        assert mine.places.tolist() == theirs.places.tolist()
        assert mine.keys.tolist() == theirs.keys.tolist()
        for name in ("rope_positions", "ends"):
            arrays = [getattr(each, name) for each in (mine, theirs)]
            assert np.array_equal(*arrays) if arrays[0] is not None else arrays[1] is None


def test_vectors_of_prompts_are_sent_once() -> None:
    writer, reader, first, other = CallWriter(), CallReader(), soft(0, True), soft(1, False)
    ids = np.array([[3, -1], [5, 6]])
    calls = [
        Call(2, ids, np.array([4, 0]), np.array([2, 1]), {2: first, 9: other}),  # slot 9 is not in the call
        Call(2, ids, np.array([6, 1]), np.array([1, 1]), {2: first, 3: other}),
        Call(2, ids, np.array([0, 2]), np.array([2, 2]), {2: other, 3: other}),
        Call(2, ids, np.array([0, 2]), np.array([2, 2])),
    ]
    sent = []
    for call in calls:
        message = writer.message("forward", call)
        sent.append([slot for slot in (2, 3, 9) if f"{slot}.vectors" in message.tensors])
        read = reader.call(Message.read(message.data()))
        shown = {slot: each for slot, each in call.soft.items() if slot != 9}
        assert_equal(read, Call(call.first_slot, call.ids, call.starts, call.counts, shown))
    assert sent == [[2], [3], [2], []]


@pytest.mark.parametrize("size", [0, 3000, 4096, 100_000])
def test_messages_of_any_size_reach_every_rank(size: int) -> None:
    channels = [Channel(group) for group in gloo_groups(3)]
    fields = {"slot": 1, "tokens": np.int64(2), "starts": [3, 4]}
    message = Message("load", fields, {"data": torch.arange(size, dtype=torch.int64).to(torch.uint8)})
    with ThreadPoolExecutor(3) as pool:
        told = pool.submit(channels[0].tell, message)
        heard = list(pool.map(lambda channel: channel.hear(), channels[1:]))
        told.result()
    for each in heard:
        assert (each.name, each.fields) == ("load", {"slot": 1, "tokens": 2, "starts": [3, 4]})
        assert torch.equal(each.tensors["data"], message.tensors["data"])
