"""Prune a Llama's layers, feed-forward channels or heads, keeping the most important ones on a text, and train it."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from distill import distill, open_model, parser
from torch.nn import ModuleList, Parameter

if TYPE_CHECKING:
    from argparse import Namespace

SCORED = 4096
"""Tokens of the text that importance is computed on."""


def main() -> None:
    """Write a pruned and trained checkpoint."""
    options = parser(__doc__)
    options.add_argument("--layers", type=int, help="layers to keep")
    options.add_argument("--intermediate-size", type=int, help="feed-forward channels to keep in each layer")
    options.add_argument("--key-value-heads", type=int, help="key/value heads to keep in each layer, and their queries")
    chosen = options.parse_args()
    teacher, tokenizer = open_model(chosen.model)
    ids = tokenizer.encode(chosen.text.read_text(encoding="utf-8"))
    student = copy.deepcopy(teacher)
    prune(student, importance(teacher, ids, chosen.length), chosen)
    distill(student, teacher, ids, chosen)
    student.half().save_pretrained(chosen.out)
    tokenizer.save_pretrained(chosen.out)


def importance(model: Any, ids: list[int], length: int) -> dict[str, torch.Tensor]:
    """Return scores of layers [L], of their key/value heads [L, K] and of their feed-forward channels [L, F].

    A layer's score is 1 - cosine similarity of its input and output; a channel's is its mean magnitude times the norm
    of the weights that read it; a head's is the sum over its channels.
    """
    layers = list(model.model.layers)
    mixed, fed = [layer.self_attn.o_proj for layer in layers], [layer.mlp.down_proj for layer in layers]
    inputs: dict[Any, list[torch.Tensor]] = {module: [] for module in (*layers, model.model.norm, *mixed, *fed)}
    hooks = [
        module.register_forward_pre_hook(lambda module, arguments: inputs[module].append(arguments[0].flatten(0, -2)))
        for module in inputs
    ]
    with torch.no_grad():
        for window in torch.tensor(ids[: min(SCORED, len(ids)) // length * length]).view(-1, 1, length):
            model(window, use_cache=False)
        hidden = [torch.cat(inputs[module]) for module in (*layers, model.model.norm)]
        turns = [1 - torch.cosine_similarity(*pair, dim=-1).mean() for pair in pairwise(hidden)]
        attention, channels = (
            torch.stack([torch.cat(inputs[linear]).abs().mean(0) * linear.weight.norm(dim=0) for linear in linears])
            for linears in (mixed, fed)
        )
    for hook in hooks:
        hook.remove()
    heads = attention.view(len(layers), model.config.num_key_value_heads, -1).sum(-1)
    return {"layers": torch.stack(turns), "heads": heads, "channels": channels}


def prune(model: Any, scores: dict[str, torch.Tensor], keep: Namespace) -> None:
    """Remove what scores lowest, in place. The result is a Llama of other sizes, which any Llama loader reads."""
    config = model.config
    size = config.hidden_size // config.num_attention_heads if config.head_dim is None else config.head_dim
    group = config.num_attention_heads // config.num_key_value_heads
    for layer, heads, channels in zip(model.model.layers, scores["heads"], scores["channels"], strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        if keep.key_value_heads:
            kept = highest(heads, keep.key_value_heads)
            for linear in (attention.k_proj, attention.v_proj):
                keep_outputs(linear, elements(kept, size))
            keep_outputs(attention.q_proj, elements(kept, group * size))
            keep_inputs(attention.o_proj, elements(kept, group * size))
        if keep.intermediate_size:
            kept = highest(channels, keep.intermediate_size)
            for linear in (mlp.gate_proj, mlp.up_proj):
                keep_outputs(linear, kept)
            keep_inputs(mlp.down_proj, kept)
    if keep.layers:
        model.model.layers = ModuleList(model.model.layers[index] for index in highest(scores["layers"], keep.layers))
    config.num_hidden_layers = len(model.model.layers)
    config.intermediate_size = keep.intermediate_size or config.intermediate_size
    config.num_key_value_heads = keep.key_value_heads or config.num_key_value_heads
    config.num_attention_heads = group * config.num_key_value_heads
    config.head_dim = size


def highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the `count` highest scores, ascending."""
    return scores.topk(count).indices.sort().values


def elements(heads: torch.Tensor, size: int) -> torch.Tensor:
    """Return the rows or columns that belong to heads."""
    return (heads[:, None] * size + torch.arange(size)).flatten()


def keep_outputs(linear: Any, rows: torch.Tensor) -> None:
    """Keep some rows of a matrix [out, in]."""
    linear.weight = Parameter(linear.weight.detach()[rows])
    if linear.bias is not None:
        linear.bias = Parameter(linear.bias.detach()[rows])


def keep_inputs(linear: Any, columns: torch.Tensor) -> None:
    """Keep some columns of a matrix [out, in]."""
    linear.weight = Parameter(linear.weight.detach()[:, columns])


if __name__ == "__main__":
    main()
