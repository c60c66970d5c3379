"""Medusa heads in torch, and the comparison of the network with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.drafts.medusa.spec import MedusaSpec
from trtkit.errors import GenerationError
from trtkit.llm.execution import Call
from trtkit.quantized_matrix import QuantizedMatrix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from transformers import PreTrainedModel

    from trtkit.arrays import Array
    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.llm.execution import ReferenceDecoder


def medusa_logits(spec: MedusaSpec, arrays: Mapping[str, Array], hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits [heads, S, V'] of hidden states [S, D] in fp32, with the weights of the heads' network."""
    import torch

    logits = []
    for head in range(spec.heads):
        x = hidden
        for layer in range(spec.layers):
            path = f"heads.{head}.layers.{layer}"
            bias = _tensor(arrays[f"{path}.bias"]) if spec.has_bias else None
            x = x + torch.nn.functional.silu(torch.nn.functional.linear(x, _tensor(arrays[f"{path}.weight"]), bias))
        matrix = arrays["lm_head.weight" if spec.is_shared else f"heads.{head}.lm_head.weight"]
        logits.append(spec.logit_scale * torch.nn.functional.linear(x, _tensor(matrix)))
    return torch.stack(logits)


def logit_pairs(
    model: ReferenceDecoder,
    reference: PreTrainedModel,
    opened: OpenedSpeculator,
    arrays: Mapping[str, Array],
    ids: Sequence[int],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the logits of all heads and of their reference after each token of a prompt."""
    import torch

    speculator, count = model.speculator, len(ids)
    assert isinstance(opened.spec, MedusaSpec)
    if speculator is None or count < 1:
        raise GenerationError("heads need a prompt of one token", "inputs", "give a longer text")
    with torch.inference_mode():
        hidden = reference.base_model(torch.tensor([list(ids)])).last_hidden_state[0]
        theirs = medusa_logits(opened.spec, arrays, hidden)
        model.forward(Call(0, np.array([ids]), np.zeros(1, np.int64), np.array([count])))
        assert model.next_hidden is not None
        states, zeros, ours = model.next_hidden[0].clone(), np.zeros(1, np.int64), []
        for position in range(count):
            logits = speculator.forward(Call(0, zeros[:, None], zeros, zeros, hidden=states[position : position + 1]))
            ours.append(logits.view(opened.spec.heads, -1)[:, opened.ids].clone())
    return list(zip(torch.stack(ours, 1), theirs, strict=True))


def _tensor(array: Array) -> torch.Tensor:
    """Return a matrix in fp32, whatever its format."""
    import torch

    values = array.weights() if isinstance(array, QuantizedMatrix) else array
    return torch.from_numpy(np.array(values, np.float32))
