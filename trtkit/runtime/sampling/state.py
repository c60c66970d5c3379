"""What a slot needs beside its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.sampling.words import Array, BadWords, ForceWords

if TYPE_CHECKING:
    from trtkit.runtime.sampling.guides import Guide
    from trtkit.runtime.sampling.settings import Settings


@dataclass(frozen=True)
class SlotState:
    """A slot's lists as arrays, and its guide."""

    settings: Settings
    bias_ids: Array
    bias_values: Array
    bad_words: BadWords
    force_words: ForceWords
    stop_ids: Array
    guide: Guide | None = None

    @classmethod
    def of(cls, settings: Settings, guide: Guide | None) -> SlotState:
        """Return the state of a slot that begins."""
        bias = settings.params.logit_bias
        return cls(
            settings,
            np.fromiter(bias.keys(), np.int64, len(bias)),
            np.fromiter(bias.values(), np.float32, len(bias)),
            BadWords.of(settings.bad_words, settings.eos_ids),
            ForceWords(settings.force_words),
            np.array(settings.stop_ids, np.int64),
            guide,
        )

    @property
    def max_tokens(self) -> int:
        """How many tokens the answer may have."""
        return self.settings.params.max_tokens

    def copy(self) -> SlotState:
        """Return a state that goes on by itself."""
        return replace(self, guide=self.guide.copy() if self.guide else None)
