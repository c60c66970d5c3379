"""The number of tokens that a bundle's draft head guesses per step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import RequestError

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle

SPECULATOR_TOKENS = 3
"""Default number of tokens that a bundle's draft head guesses per step."""
_OPTION = "speculate"


def speculator_tokens(bundle: Bundle, speculate: int | None, *, has_others: bool = False) -> int:
    """Return how many tokens the bundle's draft head guesses: `speculate`, or a default if it has a draft head.

    has_others: whether another proposer is configured. Raises RequestError for a number without a draft head or above
    its limit, and for two proposers.
    """
    decoder = bundle.manifest.decoder
    speculator = None if decoder is None else decoder.speculator
    options, most = bundle.manifest.config.llm, None if speculator is None else speculator.most_tokens
    tree = None if speculator is None or options is None else options.tree_tokens
    if speculate is None:
        limits = (SPECULATOR_TOKENS, most or SPECULATOR_TOKENS, tree or SPECULATOR_TOKENS)
        return 0 if speculator is None or has_others else min(limits)
    if speculate < 0:
        raise RequestError(f"{speculate} tokens to guess", _OPTION, "give 0 or more")
    if speculate and speculator is None:
        fix = "build with `llm.speculator`, or use `--lookup` or `--draft`"
        raise RequestError("the bundle has no head that guesses tokens", _OPTION, fix)
    if speculate and has_others:
        raise RequestError("cannot be combined with `draft` or `lookup`", _OPTION, "choose one")
    if most is not None and speculate > most:
        raise RequestError(
            f"{speculate} tokens to guess; the bundle's heads guess {most}", _OPTION, f"give {most} or less"
        )
    if tree is not None and speculate > tree:
        what = f"{speculate} tokens ahead exceed the {tree} guesses of a step that the bundle was built for"
        raise RequestError(what, _OPTION, f"give {tree} or less, or build with a larger `llm.tree_tokens`")
    return speculate
