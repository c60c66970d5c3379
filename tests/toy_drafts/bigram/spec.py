"""A bigram head, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.drafts.fit import SizePair, check_target
from trtkit.models.hf_config import HfConfig
from trtkit.models.weights import Weight

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.models.spec import DecoderSpec
    from trtkit.models.speculators import Fields

BIGRAM, TITLE, SIGN = "bigram", "bigrams", "`model_type` of bigram"
TABLE = "table.weight"


@dataclass(frozen=True)
class BigramSpec:
    """A table [V, V] of logits: a row for each token, of those that may follow it."""

    vocab_size: int
    kind: str = BIGRAM
    fusion: None = None
    cached_elements: int = 0
    most_tokens: int | None = None

    @property
    def description(self) -> str:
        return f"bigrams of {self.vocab_size} tokens; reads the last token"

    def fusion_weights(self) -> Iterator[Weight]:
        return iter(())

    def network_weights(self) -> Iterator[Weight]:
        yield Weight(TABLE, TABLE, (self.vocab_size, self.vocab_size))


def describes(fields: Fields) -> bool:
    """Whether a `config.json` is that of a bigram head."""
    return fields.get("model_type") == BIGRAM


def obstacles(target: DecoderSpec) -> Iterator[str]:
    """Yield nothing: every model has a last token."""
    return iter(())


def bigram_spec(fields: Fields, where: str, target: DecoderSpec) -> BigramSpec:
    """Return the head that a `config.json` describes."""
    config = HfConfig(fields, where)
    config.need("model_type")
    tokens = SizePair("vocab_size", config.need("vocab_size"), target.vocab_size)
    config.check_all_read()
    check_target([tokens], tokens, where)
    return BigramSpec(tokens.head)
