"""What heads of all kinds have in common: how many tokens they guess."""

from __future__ import annotations

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.engine.drafts import Drafts, GuessTree


class HeadProposer:
    """Guesses `most` tokens ahead; with `most_guesses` above that, likely alternatives to them as well."""

    def __init__(self, most: int, most_guesses: int | None) -> None:
        if most < 1:
            raise RequestError(f"cannot guess {most} tokens", "speculate", "give 1 or more, or 0 for none")
        self.most, self.most_guesses = most, most_guesses or most
        assert self.most_guesses >= most

    def tree(self, rows: int, depth: int) -> GuessTree:
        """Return an empty tree for the guesses of a step, `depth` of them in a row."""
        return GuessTree(rows, depth, depth + self.most_guesses - self.most)


def no_drafts(rows: int) -> Drafts:
    """Return no guesses for any of `rows`."""
    return Drafts(np.full((rows, 0), -1))
