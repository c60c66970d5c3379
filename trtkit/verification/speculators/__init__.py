"""References of heads that guess a language model's tokens, and comparisons of their networks with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trtkit.models.speculators.eagle3 import EAGLE3
from trtkit.models.speculators.gemma4_assistant import GEMMA4_ASSISTANT
from trtkit.models.speculators.medusa import MEDUSA
from trtkit.verification.speculators.eagle3 import eagle3_pairs
from trtkit.verification.speculators.gemma4_assistant import assistant_pairs
from trtkit.verification.speculators.medusa import medusa_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from transformers import PreTrainedModel

    from trtkit.arrays import Array
    from trtkit.builder.speculators.opened import OpenedSpeculator
    from trtkit.llm.execution import ReferenceDecoder

Pairs = list[tuple["torch.Tensor", "torch.Tensor"]]
"""Logits of a head and those of its reference."""

Compare = Callable[
    ["ReferenceDecoder", "PreTrainedModel", "OpenedSpeculator", "Mapping[str, Array]", "Sequence[int]"], Pairs
]
"""Takes a head, the weights of its network by path, and a prompt's tokens."""

HEAD_PAIRS: dict[str, Compare] = {
    EAGLE3: eagle3_pairs,
    GEMMA4_ASSISTANT: assistant_pairs,
    MEDUSA: medusa_pairs,
}
"""By kind: compares the head of a model's network with its reference, after transformers' model, on a prompt."""
