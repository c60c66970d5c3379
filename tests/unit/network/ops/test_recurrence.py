"""The delta rules of all new tokens at once against transformers' rules token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from tests.unit.network.ops.evaluate import evaluate, random
from trtkit.network.ops.recurrence import TokenChunk, gated_delta_rule
from trtkit.network.ops.shape import transpose

if TYPE_CHECKING:
    from trtkit.network.graph import Tensor

MOST = 64
# How keys, beta and decays are drawn: any; equal keys that are learned and forgotten fully or not at all; and extremes.
KINDS = ("any", "equal keys", "strong decay", "opposite keys")


def drawn(kind: str, tokens: int, channels: int = 1) -> tuple[torch.Tensor, ...]:
    """Return q, k [B, S, H, D], v [B, S, H, E], g [B, S, H, channels], beta [B, S, H] and a state [B, H, D, E]."""
    q, k, v = random(2, tokens, 3, 8), random(2, tokens, 3, 8), random(2, tokens, 3, 5)
    g, beta = -torch.rand(2, tokens, 3, channels), torch.rand(2, tokens, 3)
    if kind != "any":
        k = k[:, :1].expand(2, tokens, 3, 8).clone()
        g, beta = 0 * g, 0 * beta + 1
    if kind == "strong decay":
        g = -40 * torch.rand(2, tokens, 3, channels)
    if kind == "decay of every kind":
        g = -torch.tensor([0.0, 1e-3, 1.0, 20.0, 3000.0])[torch.randint(0, 5, g.shape)]
    if kind == "opposite keys":
        k[:, 1::2] *= -1
        beta[:, ::3] = 0.5
    q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))
    return q, k, v, g, beta, random(2, 3, 8, 5)


def rule(counts: list[int], *arrays: torch.Tensor) -> list[torch.Tensor]:
    """Return what is read [B, S, H, E] and the next state by the network; tokens beyond `counts` are padding."""

    def build(*tensors: Tensor) -> list[Tensor]:
        q, k, v, g, beta, state, token_counts = tensors
        chunk = TokenChunk(token_counts, MOST)
        masks = chunk.masks(transpose(v, (0, 2, 1, 3)), has_levels=g.shape[3] > 1)
        return list(gated_delta_rule((q, k, v), g, beta, state, masks))

    q, k, v, g, beta, state = arrays
    is_token = (torch.arange(q.shape[1]) < torch.tensor(counts)[:, None])[..., None, None]
    gates = g * is_token, beta[..., None] * is_token
    by_head = [each.transpose(1, 2).contiguous() for each in (q * 8**-0.5, k, v, *gates)]
    read, new = evaluate(build, *by_head, state, torch.tensor(counts, dtype=torch.int32))
    return [read.transpose(1, 2), new]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 2, 7, 33, MOST])
def test_all_tokens_at_once_give_what_each_in_turn_does(kind: str, tokens: int) -> None:
    arrays = drawn(kind, tokens)
    read, state = rule([tokens, tokens], *arrays)
    q, k, v, g, beta, first = arrays
    want, new = torch_recurrent_gated_delta_rule(q, k, v, g[..., 0], beta, initial_state=first, output_final_state=True)
    assert torch.linalg.norm(read - want) <= 1e-5 * torch.linalg.norm(want)
    assert torch.linalg.norm(state - new) <= 1e-5 * torch.linalg.norm(new)


@pytest.mark.parametrize("kind", [*KINDS, "decay of every kind"])
@pytest.mark.parametrize("tokens", [1, 2, 7, 33, MOST])
def test_channels_that_decay_on_their_own_give_what_each_token_in_turn_does(kind: str, tokens: int) -> None:
    arrays = drawn(kind, tokens, channels=8)
    read, state = rule([tokens, tokens], *arrays)
    want, new = recurrent_kimi_delta_attention(*arrays[:5], initial_state=arrays[5], output_final_state=True)
    assert torch.linalg.norm(read - want) <= 1e-5 * torch.linalg.norm(want)
    assert torch.linalg.norm(state - new) <= 1e-5 * torch.linalg.norm(new)


@pytest.mark.parametrize("channels", [1, 8])
def test_padding_leaves_the_state_of_the_tokens_before_it(channels: int) -> None:
    arrays = drawn("any", 9, channels)
    _, state = rule([4, 0], *arrays)
    tokens, first = [each[:1, :4] for each in arrays[:5]], arrays[5][:1]
    tokens[3] = tokens[3].expand(-1, -1, -1, 8)
    _, new = recurrent_kimi_delta_attention(*tokens, initial_state=first, output_final_state=True)
    assert torch.linalg.norm(state[:1] - new) <= 1e-5 * torch.linalg.norm(new)
    assert torch.equal(state[1], arrays[5][1])
