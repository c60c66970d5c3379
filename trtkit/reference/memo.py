"""What several layers of one run derive from the same tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_MAX_ENTRIES = 64


class RunMemo:
    """Results by function and arguments, kept until the run ends; arguments are kept too.

    A decoder's layers read one mask, one set of positions and one set of write indices: each finds what it needs of
    them here. Tensors count as equal where they are one object, so only what no layer overwrites may be asked for.
    """

    def __init__(self) -> None:
        self._results: dict[Any, tuple[tuple[Any, ...], Any]] = {}

    def once(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return function(*arguments), computed once in a run. Arguments other than tensors are hashable."""
        key = (function, *[id(item) if isinstance(item, torch.Tensor) else item for item in arguments])
        entry = self._results.get(key)
        if entry is None:
            if len(self._results) >= _MAX_ENTRIES:  # the layers of a loop's body would add to it without end
                self._results.clear()
            entry = self._results[key] = (arguments, function(*arguments))
        result: Result = entry[1]
        return result

    def __enter__(self) -> None:
        """Begin a run."""

    def __exit__(self, *_: object) -> None:
        """Forget all: the memory of the run's inputs may hold other values in the next."""
        self._results.clear()
