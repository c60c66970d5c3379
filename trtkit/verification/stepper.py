"""Drive some slots of a decoder in step, each from where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from trtkit.llm.execution import Call
from trtkit.llm.soft_tokens import pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.llm.soft_tokens import SoftTokens


class Forward(Protocol):
    """What runs calls."""

    def forward(self, call: Call) -> torch.Tensor:
        """Run new tokens; return logits [R, V], or [R, S, V] of all tokens."""
        ...


class Stepper:
    """Sequences in a decoder's first slots. lengths: cached tokens of each.

    most: new tokens of a slot that one call takes; None: any number.
    """

    def __init__(self, decoder: Forward, most: int | None = None) -> None:
        self._decoder, self.most = decoder, most
        self.reset(1)

    def reset(self, slots: int, soft: SoftTokens | None = None) -> None:
        """Start `slots` empty sequences. soft: the vectors in the first one's prompt."""
        self.lengths = np.zeros(slots, np.int64)
        self._soft = {} if soft is None else {0: soft}

    def step(self, ids: Sequence[Sequence[int]], counts: Sequence[int] | None = None) -> torch.Tensor:
        """Give new tokens to every slot and return logits [B, V] of each slot's last, or [B, S, V] of all.

        ids: [B, S]. counts: how many of a slot's ids are tokens, the rest is padding; all of them when None.
        """
        new = np.asarray(ids, np.int64)
        real = np.full(len(new), new.shape[1]) if counts is None else np.asarray(counts, np.int64)
        logits = self._decoder.forward(Call(0, new, self.lengths, real, self._soft))
        self.lengths = self.lengths + real
        return logits

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = (), soft: SoftTokens | None = None
    ) -> list[int]:
        """Return the most likely continuation of one prompt, up to a stop token, from an empty slot."""
        self.reset(1, soft)
        for part in pieces(len(prompt), self.most or len(prompt), soft):
            logits = self.step([prompt[part]])
        answer: list[int] = []
        while len(answer) < new_tokens:
            token = int(logits.reshape(-1, logits.shape[-1])[-1].argmax())
            if token in stop:
                break
            answer.append(token)
            logits = self.step([[token]])
        return answer
