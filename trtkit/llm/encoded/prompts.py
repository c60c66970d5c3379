"""What prompts of all encoder-decoder models share."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from trtkit.errors import GenerationError
from trtkit.llm.soft_tokens import SoftTokens
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trtkit.arrays import Array
    from trtkit.bundle.records import EncoderRecord
    from trtkit.llm.encoded.encoder import Encoder

_START = "decoder_start_token_id"


@dataclass(frozen=True, eq=False)
class EncoderPrompt:
    """Tokens that the decoder begins with, and what the encoder takes: features [bins, frames] or ids [S].

    text: the prompt's, if it has one.
    """

    ids: list[int]
    values: Array
    text: str | None = None


class PromptTokenizer(Protocol):
    """What tokenizes a prompt, or checks its tokens."""

    def text_and_ids(self, prompt: object) -> tuple[str | None, list[int]]:
        """Return a prompt's text, if it has one, and its tokens."""
        ...

    def checked_ids(self, ids: object) -> list[int]:
        """Return token ids as a list. Raises RequestError for anything else."""
        ...


class EncoderPrompts(ABC):
    """Reads the prompts of an encoder-decoder model; the encoder is not needed for that.

    folder: has `config.json` and, if the model has one, `generation_config.json`.
    """

    def __init__(self, record: EncoderRecord, folder: Path) -> None:
        self._record = record
        config, generation = (json_object(folder / name) for name in ("config.json", "generation_config.json"))
        self._generation = config | generation
        if self._generation.get(_START) is None:
            raise GenerationError(f"`{_START}` is missing", str(folder), "add it to `config.json`")
        self._start = int(self._generation[_START])
        self.suppressed: tuple[int, ...] = tuple(self._generation.get("suppress_tokens") or ())
        self.suppressed_first: tuple[int, ...] = tuple(self._generation.get("begin_suppress_tokens") or ())

    @abstractmethod
    def read(self, prompt: object, reader: PromptTokenizer) -> EncoderPrompt:
        """Return a prompt as both networks take it. Raises RequestError for one that cannot be used."""

    def soft_tokens(self, prompt: EncoderPrompt, encoder: Encoder) -> SoftTokens:
        """Run the encoder; return what the decoder's layers read."""
        digest = hashlib.sha256(prompt.values.tobytes()).digest()[:8]
        key = np.frombuffer(digest, np.int64)
        return SoftTokens(np.zeros(1, np.int64), torch.zeros(1, 0), key, encoded=encoder.encode(prompt.values))

    def first_filter(self, prompt: Sequence[int]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return a logits processor that bars `suppressed_first` right after a prompt."""
        length, barred = len(prompt), torch.tensor(self.suppressed_first, dtype=torch.int64)

        def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] > length:
                return scores
            return scores.index_fill(1, barred.to(scores.device), -torch.inf)

        return process
