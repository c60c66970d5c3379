"""Drives several decoder slots in step, each from its own position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from trtkit.llm.execution import Call
from trtkit.llm.soft_tokens import pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.soft_tokens import SoftTokens

    Prompt = tuple[Sequence[int], SoftTokens | None]


class Forward(Protocol):
    """An executor of calls."""

    def forward(self, call: Call) -> torch.Tensor:
        """Run new tokens; return logits [R, V], or [R, S, V] of all tokens."""
        ...


class Stepper:
    """Sequences in a decoder's first slots. lengths: cached tokens of each.

    most: limit on new tokens per slot in one call; None: unlimited.
    """

    def __init__(self, decoder: Forward, most: int | None = None) -> None:
        self._decoder, self.most = decoder, most
        self.reset(1)

    def reset(self, slots: int, soft: Sequence[SoftTokens | None] = ()) -> None:
        """Start `slots` empty sequences. soft: the soft-token vectors in each prompt."""
        self.lengths = np.zeros(slots, np.int64)
        self._soft = {slot: vectors for slot, vectors in enumerate(soft) if vectors is not None}

    def step(self, ids: Sequence[Sequence[int]], counts: Sequence[int] | None = None) -> torch.Tensor:
        """Feed new tokens to every slot and return logits: [B, V] of each slot's last token, or [B, S, V] of all.

        ids: [B, S]. counts: number of valid ids per slot, the rest being padding; None if all are valid.
        """
        new = np.asarray(ids, np.int64)
        real = np.full(len(new), new.shape[1]) if counts is None else np.asarray(counts, np.int64)
        logits = self._decoder.forward(Call(0, new, self.lengths, real, self._soft))
        self.lengths = self.lengths + real
        return logits

    def read(self, prompts: Sequence[Prompt], size: int | None = None) -> list[torch.Tensor]:
        """Read each prompt into an empty slot, all slots in the same calls; return the logits [S, V] of each.

        size: tokens per chunk; None for as many as a call accepts.
        """
        self.reset(len(prompts), [soft for _, soft in prompts])
        parts = [list(pieces(len(ids), size or self.most or len(ids), soft)) for ids, soft in prompts]
        logits: list[list[torch.Tensor]] = [[] for _ in prompts]
        for turn in range(max(map(len, parts))):
            new = [ids[part[turn]] if turn < len(part) else [] for (ids, _), part in zip(prompts, parts, strict=True)]
            counts = [len(ids) for ids in new]
            outputs = self.step([np.resize(ids, max(counts)).tolist() for ids in new], counts)
            for rows, output, count in zip(logits, outputs, counts, strict=True):
                rows.append(output[:count])
        return [torch.cat(rows) for rows in logits]

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = (), soft: SoftTokens | None = None
    ) -> list[int]:
        """Return the greedy continuation of one prompt, up to a stop token, from an empty slot."""
        self.reset(1, [soft])
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
