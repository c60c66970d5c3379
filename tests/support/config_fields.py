"""Changed values for every config field, older forms of rotary fields, and the errors of transformers' refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from huggingface_hub.errors import StrictDataclassError

from tests.support.decoder_case import LLAMA3_ROPE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Errors of transformers for unsupported values, at whatever depth it notices them.
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
    """Yield other values for a field."""
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
    """Yield a field's name and changed values, for every field, including those in mappings."""
    for name, value in config.items():
        if name in {"model_type", "transformers_version"}:
            continue
        yield from ((name, {name: other}) for other in changes(value))
        if isinstance(value, dict) and name.startswith("rope"):
            for key, inner in value.items():
                yield from ((f"{name}.{key}", {name: {**value, key: other}}) for other in changes(inner))


_SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"type": "linear", "factor": 3.0},
    {"type": "dynamic", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    LLAMA3_ROPE,
)
OLD_ROPES: tuple[dict[str, Any], ...] = (
    {},
    {"rope_theta": 77.0},
    {"rope_theta": 77.0, "rope_scaling": None},
    {"rope_theta": 77.0, "rope_local_base_freq": 55.0},
    {"rope_theta": 77.0, "partial_rotary_factor": 0.5},
    {"rotary_emb_base": 77, "rotary_pct": 0.5},
    {"original_max_position_embeddings": 16, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    *({"rope_scaling": scaling} for scaling in _SCALINGS),
    *({"rope_theta": 77.0, "rope_scaling": scaling} for scaling in _SCALINGS),
)
"""Rotary fields in configs from before transformers 5."""
_ROTARY = ("rope", "rotary", "partial_rotary")


def rewritten_configs(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield configs with a missing or null field, or with older rotary fields, alone or next to the current ones."""
    for name in config.keys() - {"model_type", "transformers_version"}:
        yield f"without {name}", {key: value for key, value in config.items() if key != name}
        yield f"{name} null", {**config, name: None}
    rest = {key: value for key, value in config.items() if not key.startswith(_ROTARY)}
    ropes = config.get("rope_parameters") or {}
    nested = {kind: {"type": "linear", "factor": 3.0} for kind, value in ropes.items() if isinstance(value, dict)}
    yield "type instead of rope_type", {**rest, "rope_parameters": nested or {"type": "linear", "factor": 3.0}}
    for name in ropes:
        yield f"without {name} of ropes", {**config, "rope_parameters": {k: v for k, v in ropes.items() if k != name}}
        yield f"{name} of ropes null", {**config, "rope_parameters": {**ropes, name: None}}
    for old in OLD_ROPES:
        yield f"only {old}", {**rest, **old}
        yield f"with {old}", {**config, **old}
