"""Nodes of other ONNX domains that are equivalent to a custom op, read with strict checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from trtkit.dtypes import DType
    from trtkit.network.graph import Shape


@dataclass(frozen=True)
class Fact:
    """Static knowledge about a tensor; -1 for sizes known only at run time."""

    dtype: DType
    shape: Shape


@dataclass
class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the program
    """Why a node is not supported: the fault, with the allowed values, and a fix."""

    what: str
    fix: str = ""


class NotYetKnownError(Exception):
    """A value that must be a constant, but is not one until constants are folded."""


@dataclass(frozen=True)
class Replacement:
    """The op's inputs ("" if missing), attributes, and outputs by their names in the model.

    An unused output is "".
    """

    inputs: Sequence[str]
    attributes: Any
    outputs: Sequence[str]


@dataclass(frozen=True)
class Foreign:
    """A node type. convert: returns its replacement, or None if the node can stay. Raises Refusal."""

    domain: str
    op_type: str
    convert: Callable[[ForeignNode], Replacement | None]

    @property
    def label(self) -> str:
        """The type as users write it."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


@dataclass
class ForeignNode:
    """A node of a model. facts: of its inputs, None if unknown. constants: values of constant inputs."""

    name: str
    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: dict[str, Any]
    facts: Sequence[Fact | None]
    constants: Sequence[np.ndarray[Any, Any] | None]
    opset: int
    _read: set[str] = field(default_factory=set)

    def input(self, index: int) -> str:
        """Return an input's name; "" if it is missing."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def fact(self, index: int) -> Fact | None:
        """Return the facts of an input; None if unknown."""
        return self.facts[index] if index < len(self.facts) else None

    def constant(self, index: int, name: str) -> np.ndarray[Any, Any]:
        """Return the value of an input. Raises NotYetKnownError if it is computed."""
        value = self.constants[index] if index < len(self.constants) else None
        if value is None:
            raise NotYetKnownError(f"input {index} (`{name}`) must be a constant")
        return value

    def number(self, name: str, default: float | None = None) -> Any:
        """Return an attribute. Raises Refusal if it is missing and has no default."""
        return self._attribute(name, default)

    def numbers(self, name: str, default: tuple[int, ...] | None = None, count: int = 0) -> tuple[Any, ...]:
        """Return a list attribute; a single number is repeated `count` times. Raises Refusal."""
        value = self._attribute(name, default)
        values = tuple(value) if isinstance(value, list | tuple) else (value,) * max(count, 1)
        if count and len(values) != count:
            raise Refusal(f"attribute `{name}` is {list(values)}: {count} numbers are allowed")
        return values

    def only(self, name: str, allowed: Sequence[Any], default: Any) -> Any:
        """Return an attribute that must be one of `allowed`. Raises Refusal."""
        value = self._attribute(name, default)
        if value not in allowed:
            raise Refusal(f"attribute `{name}` is {_spelled(value)}, allowed: {', '.join(map(_spelled, allowed))}")
        return value

    def ignore(self, *names: str) -> None:
        """Accept attributes without effect."""
        self._read.update(names)

    def check_all_read(self) -> None:
        """Raise Refusal for attributes that were never read: their meaning is unknown."""
        unknown = sorted(set(self.attributes) - self._read)
        if unknown:
            known = ", ".join(sorted(self._read)) or "none"
            raise Refusal(f"unknown attribute `{unknown[0]}` = {_spelled(self.attributes[unknown[0]])}, known: {known}")

    def _attribute(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self.attributes.get(name, default)
        if value is None:
            raise Refusal(f"attribute `{name}` is missing")
        return value.decode() if isinstance(value, bytes) else value


def _spelled(value: Any) -> str:
    return f"`{value.decode() if isinstance(value, bytes) else value}`"
