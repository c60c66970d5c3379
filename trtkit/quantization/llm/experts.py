"""Experts that transformers holds as one array for all, and what ModelOpt calls their quantizers and tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import QuantizeError
from trtkit.sources.huggingface.stacked_experts import joined_experts

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from trtkit.quantization.llm.choice import LinearLayer

_NAME = re.compile(r"layers\.(\d+)\.moe\.experts\.(\d+)\.(gate|up|down)$")


@dataclass(frozen=True)
class ExpertLayer:
    """One linear layer of one expert. experts: the path of all of a layer's experts in transformers' model.

    part: the array that holds it, of which it is the `index`th; name: its name among the expert's in ModelOpt's files.
    """

    experts: str
    part: str
    index: int
    name: str

    @property
    def weight_quantizer(self) -> str:
        """ModelOpt's name of the quantizer of its weights."""
        return f"{self.experts}.{self.part}_weight_quantizers.{self.index}"

    @property
    def input_quantizer(self) -> str:
        """ModelOpt's name of the quantizer of its inputs, which is that of all experts."""
        return f"{self.experts}.{self.part}_input_quantizer"

    @property
    def exported(self) -> str:
        """What its tensors' names begin with in ModelOpt's files."""
        return f"{self.experts}.{self.index}.{self.name}"


def is_experts(layer: LinearLayer) -> bool:
    """Whether a linear layer is an expert's of a mixture."""
    return _NAME.search(layer.name) is not None


def joined_expert_layers(model: torch.nn.Module, layers: Iterable[LinearLayer]) -> dict[LinearLayer, ExpertLayer]:
    """Return where transformers' model holds each expert's linear layer; other layers are left out.

    Raises QuantizeError for models that hold experts in a form that ModelOpt does not quantize one by one.
    """
    chosen = [(layer, match) for layer in layers if (match := _NAME.search(layer.name))]
    joined = joined_experts(model) if chosen else {}
    expert_layers = {}
    for layer, match in chosen:
        number, index, name = int(match[1]), int(match[2]), match[3]
        if number not in joined:
            what = f"{type(model).__name__} holds experts in a form that ModelOpt does not quantize one by one"
            raise QuantizeError(what, layer.name, "use int8_wo or int4_wo")
        group = joined[number]
        expert_layers[layer] = ExpertLayer(
            group.path, "down_proj" if name == "down" else group.first, index, f"{name}_proj"
        )
    return expert_layers
