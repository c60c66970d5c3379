"""Why a row has no next token."""

from __future__ import annotations

import math

from trtkit.llm.sampling.columns import Use

# What can bar tokens, by the settings that ask for it.
_BARS = {
    Use.NGRAM: "no_repeat_ngram_size",
    Use.BAD_WORDS: "bad_words",
    Use.MIN_TOKENS: "min_tokens",
    Use.FORCE_WORDS: "force_words",
    Use.FUNCTIONS: "logits_processors",
}


def reason(largest: float, uses: int, guided: str | None) -> str:
    """Return what is wrong with a row whose largest score is `largest`, not finite or nothing to draw from."""
    if largest != -math.inf:
        return "the model's logits hold NaN or infinity"
    names = [name for use, name in _BARS.items() if uses & use]
    names += [guided] if guided else []
    if not names:
        return "the model's logits are all -inf"
    verb = "bars" if len(names) == 1 else "bar"
    return f"no token is left: {' and '.join(f'`{name}`' for name in names)} {verb} every one"
