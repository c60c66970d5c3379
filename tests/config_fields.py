"""Other values for every field of a config of transformers, and what transformers raises for those it does not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What transformers raises for values that it does not take, by the depth at which it notices.
REFUSALS = (
    StrictDataclassError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


def changes(value: object) -> Iterator[object]:
    """Yield other values that a field might have."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2, value // 2, 0)
    elif isinstance(value, float):
        yield from (value * 2 + 0.25, 0.0)
    elif value is None:
        yield from (True, 3, 0.5)
    elif isinstance(value, str):
        yield from ("relu", "gelu")


def changed_configs(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field's name with what differs, fields inside mappings too."""
    for name, value in config.items():
        if name in {"model_type", "transformers_version"}:
            continue
        yield from ((name, {name: other}) for other in changes(value))
        if isinstance(value, dict) and name.startswith("rope"):
            for key, inner in value.items():
                yield from ((f"{name}.{key}", {name: {**value, key: other}}) for other in changes(inner))
