"""Run a decoder-only LLM's network: slots, each with a KV cache and a length of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.errors import ExecutionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.reference import Executor


class DecoderExecution:
    """A decoder's executor and the caches of `slots` sequences.

    lengths: cached tokens of each slot.
    """

    def __init__(self, executor: Executor, slots: int = 1) -> None:
        self._executor = executor
        self._caches = {spec.name: spec for spec in executor.inputs if spec.name.startswith("past_")}
        self._names = {spec.name for spec in executor.inputs}
        self._length = next(spec.shape[2] for spec in self._caches.values())
        self.reset(slots)

    def reset(self, slots: int) -> None:
        """Start `slots` empty sequences."""
        self._past = {
            name: torch.zeros(slots, *spec.shape[1:], dtype=getattr(torch, spec.dtype.torch))
            for name, spec in self._caches.items()
        }
        self.lengths = [0] * slots

    def step(self, ids: torch.Tensor, counts: Sequence[int] | None = None) -> torch.Tensor:
        """Give new tokens to every slot and return logits [B, V] of each slot's last, or [B, S, V] of all.

        ids: [B, S]. counts: how many of a slot's ids are tokens, the rest is padding; all of them when None.
        Raises ExecutionError where a slot has no room.
        """
        counts = counts or [ids.shape[1]] * len(ids)
        feed, lengths = self._feed(ids, counts)
        outputs = self._executor.run(feed)
        self._past = {name: outputs[name.replace("past_", "present_", 1)] for name in self._past}
        self.lengths = lengths
        return outputs["logits"]

    def prefill_inputs(self, ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return every network input of one prompt's prefill into an empty slot."""
        self.reset(1)
        return self._feed(torch.tensor([list(ids)]), [len(ids)])[0]

    def _feed(self, ids: torch.Tensor, counts: Sequence[int]) -> tuple[dict[str, Any], list[int]]:
        """Return the network's inputs for new tokens and the lengths after them."""
        size = ids.shape[1]
        if max(self.lengths) + size > self._length:
            what = f"{max(self.lengths)} tokens and {size} more do not fit a slot of {self._length}"
            raise ExecutionError(what, "KV cache", "raise `llm.max_sequence_length`, or give fewer tokens")
        first = torch.tensor(self.lengths, dtype=torch.int32)
        lengths = [old + new for old, new in zip(self.lengths, counts, strict=True)]
        feed = {
            "input_ids": ids.to(torch.int32),
            "position_ids": first[:, None] + torch.arange(size, dtype=torch.int32),
            "write_indices": first,
            "kv_lengths": torch.tensor(lengths, dtype=torch.int32),
            "last_token_index": torch.tensor(counts, dtype=torch.int32) - 1,
        }
        return {name: value for name, value in feed.items() if name in self._names} | self._past, lengths

    def greedy(self, prompt: Sequence[int], new_tokens: int, stop: Sequence[int] = ()) -> list[int]:
        """Return the most likely continuation of one prompt, up to a stop token, from empty caches."""
        self.reset(1)
        logits = self.step(torch.tensor([list(prompt)]))
        answer: list[int] = []
        while len(answer) < new_tokens:
            token = int(logits.reshape(-1, logits.shape[-1])[-1].argmax())
            if token in stop:
                break
            answer.append(token)
            logits = self.step(torch.tensor([[token]]))
        return answer
