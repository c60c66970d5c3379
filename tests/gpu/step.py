"""A step of the kit: one question to a GPU, answered in its own process."""

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
"""One finding of a step. `what` names it; `holds: False` refutes an assumption of the code."""


@dataclass(frozen=True)
class Step:
    """estimate_s: expected time on a data center GPU. limit_s: when the step is killed, by default three times that.

    function: `module:function` below tests.gpu.steps, called with the Place and `options`; it yields answers, which are
    written immediately. is_simulated: whether the simulated runtime can answer it, too. needs: torch alone, kernels
    compiled by Triton, or engines. simulates: whether TensorRT is simulated for its engines, on any GPU.
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
        """When a hanging step is killed."""
        return 3 * self.estimate_s + 30

    def run(self, place: Place) -> Iterator[Answer]:
        """Yield the answers as they are found."""
        module, _, name = self.function.partition(":")
        ask = cast(
            "Callable[..., Iterator[Answer]]", getattr(importlib.import_module(f"tests.gpu.steps.{module}"), name)
        )
        yield from ask(place, **self.options)
