"""An optimization profile: the shapes that an engine takes, complete and checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProfileShapes:
    """The shapes of one input in an optimization profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


# By dynamic input.
ResolvedProfile = dict[str, ProfileShapes]
# The smallest, the typical and the largest size.
MinOptMax = tuple[int, int, int]
