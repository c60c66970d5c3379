"""What guesses with the head of a model's bundle, for each kind of head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.llm.engine.heads.eagle3 import Eagle3Proposer
from trtkit.llm.engine.heads.gemma4_assistant import AssistantProposer
from trtkit.llm.engine.heads.medusa import MedusaProposer
from trtkit.models.speculators.eagle3 import EAGLE3
from trtkit.models.speculators.gemma4_assistant import GEMMA4_ASSISTANT
from trtkit.models.speculators.medusa import MEDUSA

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.engine.proposers import Proposer
    from trtkit.llm.execution import DecoderExecution

HEAD_PROPOSERS: dict[str, Callable[[DecoderExecution, int, int | None], Proposer]] = {
    EAGLE3: Eagle3Proposer,
    GEMMA4_ASSISTANT: AssistantProposer,
    MEDUSA: MedusaProposer,
}
"""By the kind that a manifest names: from a model whose head is open, and the number of tokens to guess."""

__all__ = ["HEAD_PROPOSERS", "AssistantProposer", "Eagle3Proposer", "MedusaProposer"]
