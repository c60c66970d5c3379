"""Which models can read guesses that form a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.models.spec import DecoderSpec


def tree_obstacles(spec: DecoderSpec, depth: int, length: int) -> Iterator[str]:
    """Yield why a model cannot read trees of guesses, up to `depth` of them in a row, in slots of `length` tokens.

    In the cache, a guess may lie further from its ancestors than it is in the sequence, so layers whose scores depend
    on how far keys are would be wrong.
    """
    if spec.states:
        yield "recurrent states read one token after another"
    attentions = spec.attentions
    if any(attention.has_alibi for attention in attentions):
        yield "ALiBi scores keys by their places in the cache"
    if any(attention.relative is not None for attention in attentions):
        yield "relative scores follow places in the cache"
    if any((attention.chunk or length) < length for attention in attentions):
        yield "attention in chunks cuts by places in the cache"
    window = min((attention.sliding_window or length for attention in attentions), default=length)
    if depth >= window:
        yield f"{depth} guesses in a row exceed the sliding window of {window} tokens"
