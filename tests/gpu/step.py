"""A step of the kit: one question to a GPU, asked in a process of its own."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.gpu.place import Place

    Seen = Iterator[tuple[str, object, object]]
    """What was asked, what is expected, what was seen."""

Value = str | int | float | bool | None
Answer = dict[str, Value]
"""One line of what a step learned. `what` names it; a `holds` that is False refutes something that the code assumes."""


@dataclass(frozen=True)
class Step:
    """estimate_s: what it takes on a data center GPU; limit_s: when it is ended, three times that by default.

    function: `module:function` below tests.gpu.steps, called with the Place and `options`; yields answers, which are
    written at once. is_simulated: whether the simulated runtime can answer it too. needs: torch alone, kernels that
    Triton compiles, or engines. simulates: whether TensorRT is simulated for its engines, on whichever GPU is here.
    """

    name: str
    question: str
    function: str
    estimate_s: int
    options: Mapping[str, Value] = field(default_factory=dict)
    is_simulated: bool = True
    needs: Literal["torch", "kernels", "engines"] = "engines"
    simulates: bool = False

    @property
    def limit_s(self) -> int:
        """When a step that hangs is ended."""
        return 3 * self.estimate_s + 30

    def run(self, place: Place) -> Iterator[Answer]:
        """Yield the answers as they are learned."""
        module, _, name = self.function.partition(":")
        ask = cast(
            "Callable[..., Iterator[Answer]]", getattr(importlib.import_module(f"tests.gpu.steps.{module}"), name)
        )
        yield from ask(place, **self.options)
