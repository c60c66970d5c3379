from __future__ import annotations

import torch

from tests.unit.network.ops.evaluate import evaluate, random
from trtkit.network.ops.shape import concat, merge_heads, reshape, split, split_heads, take, transpose, unsqueeze


def test_heads_are_split_and_merged() -> None:
    x = random(2, 5, 12)
    heads = x.unflatten(-1, (3, 4)).transpose(1, 2)
    assert torch.equal(evaluate(lambda t: split_heads(t, 3), x), heads)
    assert torch.equal(evaluate(lambda t: merge_heads(split_heads(t, 3)), x), x)


def test_axes_are_moved_added_and_reshaped() -> None:
    x = random(2, 5, 12)
    assert torch.equal(evaluate(lambda t: transpose(t, (2, 0, 1)), x), x.permute(2, 0, 1))
    assert torch.equal(evaluate(lambda t: unsqueeze(t, 1, 4), x), x[:, None, :, :, None])
    assert torch.equal(evaluate(lambda t: reshape(t, (0, 0, 4, 3)), x), x.reshape(2, 5, 4, 3))


def test_parts_are_taken_and_joined() -> None:
    x = random(2, 5, 12)
    assert torch.equal(evaluate(lambda t: take(t, -1, 3, 4), x), x[..., 3:7])
    parts = evaluate(lambda t: split(t, 2, (5, 1, 6)), x)
    assert [part.shape[-1] for part in parts] == [5, 1, 6]
    assert torch.equal(torch.cat(parts, -1), x)
    assert torch.equal(
        evaluate(lambda t: concat(split(t, 2, (5, 7))[::-1], 2), x), torch.cat((x[..., 5:], x[..., :5]), -1)
    )
