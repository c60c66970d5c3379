"""transformers' own model as a rival: greedy static batches with its own cache, as its users run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.benchmarking.ceiling import CPU
from trtkit.benchmarking.load import WallClock
from trtkit.benchmarking.metrics import RequestRecord
from trtkit.benchmarking.text_server import Served
from trtkit.dtypes import DTYPES
from trtkit.lora.merge import open_language_model
from trtkit.verification.decoder_reference import TransformersReference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.benchmarking.schedules import Schedule
    from trtkit.benchmarking.workload import Work
    from trtkit.config.schema import ModelConfig

TRANSFORMERS = "transformers"


class TransformersServer:
    """A causal language model of transformers with the bundle's weights, in the bundle's precision, on the CPU.

    Requests are grouped into batches of the concurrency's size, padded on the left; a batch ends with its longest
    answer. Closed loops only.
    """

    name = TRANSFORMERS
    device: str | None = CPU

    def __init__(self, config: ModelConfig) -> None:
        import torch
        import transformers

        reference = TransformersReference(open_language_model(config.source))
        self._torch, self._clock = torch, WallClock()
        self._model = reference.model.to(getattr(torch, DTYPES[config.precision].torch))
        self._model.set_attn_implementation("sdpa")
        self.computes = f"{TRANSFORMERS} {transformers.__version__}, static batches, CPU, {config.precision}"

    def serve(self, work: Sequence[Work], schedule: Schedule) -> Served:
        """Answer all of `work` batch by batch."""
        assert schedule.concurrency is not None  # it has no queue
        start, size, served = self._clock.now(), schedule.concurrency, Served([])
        for first in range(0, len(work), size):
            self._batch(work[first : first + size], start, served)
        return served

    def _batch(self, work: Sequence[Work], start: float, served: Served) -> None:
        """Answer one batch; record when each of its requests got each of its tokens."""
        sent, steps, tokens = self._clock.now() - start, max(item.output_tokens for item in work), []
        times = []
        with self._torch.inference_mode():
            state = self._prompts(work)
            for _ in range(steps):
                tokens.append(self._step(state))
                times.append(self._clock.now() - start)
        for row, item in enumerate(work):
            token_times = tuple(times[: item.output_tokens])
            served.records.append(RequestRecord(sent, sent, token_times[-1], token_times, len(item.prompt_ids)))
            served.tokens.append(tuple(int(step[row]) for step in tokens[: item.output_tokens]))

    def _prompts(self, work: Sequence[Work]) -> dict[str, Any]:
        """Return ids, mask and positions [B, S] of prompts, padded on the left."""
        longest = max(len(item.prompt_ids) for item in work)
        ids, mask = np.zeros((2, len(work), longest), np.int64)
        for row, item in enumerate(work):
            ids[row, longest - len(item.prompt_ids) :] = item.prompt_ids
            mask[row, longest - len(item.prompt_ids) :] = 1
        positions = np.maximum(mask.cumsum(-1) - 1, 0)
        arrays = {"input_ids": ids, "position_ids": positions}
        state = {name: self._torch.from_numpy(array) for name, array in arrays.items()}
        padded = None if mask.all() else self._torch.from_numpy(mask)  # without a mask attention is faster
        return {**state, "attention_mask": padded, "past_key_values": None}

    def _step(self, state: dict[str, Any]) -> Any:
        """Return the next token of each row, and advance `state` by a step."""
        output = self._model(**state, use_cache=True, logits_to_keep=1)
        tokens = output.logits[:, -1].argmax(-1)
        if state["attention_mask"] is not None:
            ones = self._torch.ones_like(tokens[:, None])
            state["attention_mask"] = self._torch.cat([state["attention_mask"], ones], 1)
        state["position_ids"] = state["position_ids"][:, -1:] + 1
        state["input_ids"], state["past_key_values"] = tokens[:, None], output.past_key_values
        return tokens.numpy()
