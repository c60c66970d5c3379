"""A small set of decoder cases that covers every value of every spec field, computed from the specs.

Properties of all families are tested on this set; `make slow` tests all cases.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from trtkit.models.attention import AttentionSpec, LatentSpec, QueryScaling, RelativeSpec
from trtkit.models.registry import decoder_spec
from trtkit.models.spec import LayerSpec
from trtkit.sources.huggingface import auto_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.decoder_case import Case
    from trtkit.models.spec import DecoderSpec

Value = tuple[str, str, object]
"""A dataclass, one of its fields, and the kind of its value."""
# Names of families and weights: they are unique to each family, and networks do not depend on them.
NAMES = {"DecoderSpec": {"model_type", "names", "prefix", "unused", "table_copies"}}
# How keys and values are computed before they are cached, and what happens to the heads' outputs.
_PROJECTED = {
    "AttentionSpec": {
        *("qkv", "has_qkv_bias", "has_key_bias", "has_output_bias", "norm", "qk_norm", "is_rotated_first", "qkv_clip"),
        *("is_gated", "gate", "value_norm", "output_norm"),
    },
    "LatentSpec": {"query_rank"},
}
# What caches contain and what attention reads of them: windows, pages and trees depend on nothing else.
CACHED = {
    (part.__name__, field.name)
    for part in (LayerSpec, AttentionSpec, LatentSpec, RelativeSpec, QueryScaling)
    for field in fields(part)
    if field.name not in _PROJECTED.get(part.__name__, ())
}
# The run time depends on caches, states and positions; windows are already in CACHED.
STEPPED = CACHED | {("RopeSpec", "sections")}
SEEN = {("DecoderSpec", "layers")} | {
    ("AttentionSpec", name) for name in ("sliding_window", "chunk", "has_alibi", "relative")
}
auto_classes.register()


@cache
def spec_of(case: Case) -> DecoderSpec:
    """Return the case's spec without creating its model."""
    config = AutoConfig.for_model(case.model_type, **deepcopy(case.config))  # some configs modify their arguments
    return decoder_spec({**config.to_dict(), "model_type": case.model_type})


@cache
def values_of(case: Case) -> frozenset[Value]:
    """Return the values of all fields of the case's spec."""
    return frozenset(_values(spec_of(case)))


def _values(spec: Any) -> Iterator[Value]:
    owner = type(spec).__name__
    for field in fields(spec):
        if field.name in NAMES.get(owner, ()):
            continue
        value = getattr(spec, field.name)
        yield owner, field.name, _kind(value)
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part):
                yield owner, field.name, type(part).__name__
                yield from _values(part)


def _kind(value: object) -> object:
    """Return a value's kind: numbers' magnitudes hardly matter, everything else does.

    A sequence's kind depends on whether its items are alike, and on its strings.
    """
    if isinstance(value, (bool, str)) or value is None:
        return value
    if isinstance(value, (int, float)):
        return "0" if value == 0 else "1" if value == 1 else "below 0" if value < 0 else "other"
    if isinstance(value, tuple):
        is_text = all(isinstance(item, str) for item in value)
        return value if is_text else "alike" if len(set(map(repr, value))) <= 1 else "unlike"
    return type(value).__name__


def covering(cases: Iterable[Case], values: Callable[[Case], Iterable[Value]] = values_of) -> list[Case]:
    """Return few cases that have all values of all cases, chosen greedily: each adds the most missing values.

    The order of `cases` breaks ties. Cases that later ones make redundant are dropped.
    """
    rest = {case: set(values(case)) for case in cases}
    missing, chosen = set().union(*rest.values()), []
    while missing:
        best = max(rest, key=lambda case: len(rest[case] & missing))
        missing -= rest.pop(best)
        chosen.append(best)
    for case in tuple(chosen):
        others = set().union(*(values(other) for other in chosen if other != case))
        if others >= set(values(case)):
            chosen.remove(case)
    return chosen


def in_covering_set_of(cases: Iterable[Case], parts: Iterable[tuple[str, str]] = ()) -> Callable[..., bool]:
    """Return a predicate for `slow_unless`: whether a test's first parameter is in the covering set of `cases`.

    parts: the (dataclass, field) pairs that the tested property depends on; empty for all.
    """
    read = frozenset(parts)

    def values(case: Case) -> frozenset[Value]:
        return frozenset(value for value in values_of(case) if not read or value[:2] in read)

    names = {case.name for case in covering(cases, values)}
    return lambda case, *_: case.name in names
