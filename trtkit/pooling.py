"""How one vector is made of a text's tokens."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Pooling:
    """What sentence-transformers puts after an encoder.

    tokens: the first one's vector, or the mean of all. is_normalized: it is divided by its length.
    """

    tokens: Literal["first", "mean"]
    is_normalized: bool
