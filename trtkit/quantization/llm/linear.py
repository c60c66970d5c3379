"""Linear layers of transformers' models that are of a class of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.pytorch_utils import Conv1D

from trtkit.errors import QuantizeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtkit.quantization.llm.choice import Layer


def make_plain(model: Any, layers: Iterable[Layer]) -> None:
    """Put torch's own Linear, by which ModelOpt knows what to quantize, in the place of GPT-2's Conv1D and subclasses.

    Raises QuantizeError for what is no linear layer.
    """
    modules = dict(model.named_modules())
    for layer in layers:
        module = modules.get(layer.module)
        if isinstance(module, Conv1D):
            plain = _linear(module.weight.T.contiguous(), module.bias)
        elif isinstance(module, torch.nn.Linear):
            plain = module if type(module) is torch.nn.Linear else _linear(module.weight, module.bias)
        else:
            what = f"`{layer.module}` is not a linear layer in transformers"
            raise QuantizeError(what, layer.name, "exclude it: `quantize.exclude`")
        parent, _, name = layer.module.rpartition(".")
        setattr(modules[parent], name, plain)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    """Return a layer of weight [out, in]."""
    rows, columns = weight.shape
    linear = torch.nn.Linear(columns, rows, bias=bias is not None, device="meta")
    linear.weight = torch.nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = torch.nn.Parameter(bias.detach(), requires_grad=False)
    return linear
