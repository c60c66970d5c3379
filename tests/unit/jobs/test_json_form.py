from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from trtkit.config.targets import Target
from trtkit.jobs.json_form import from_json, to_json


@dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...]
    pair: tuple[str, float]


@dataclass(frozen=True)
class Outer:
    name: Literal["a", "b"]
    path: Path
    inner: Inner | None
    items: list[Inner]
    shapes: dict[str, tuple[int, ...]]
    target: Target
    anything: Any = None
    is_set: bool = False


INNER = Inner((1, 2), ("x", 0.5))
OUTER = Outer("a", Path("/p"), INNER, [INNER], {"x": (1, -1)}, Target(name="t", compute_capabilities=(80,)), {"k": [1]})


def test_values_come_back_equal_through_json() -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(OUTER)))) == OUTER


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "c"}, "Outer.name: expected"),
        ({"path": 1}, "Outer.path: expected Path, got '1'"),
        ({"is_set": 1}, "Outer.is_set: expected bool, got '1'"),
        ({"inner": {"sizes": [1]}}, "Outer.inner: `pair` is missing"),
        ({"items": [{"sizes": ["1"], "pair": ["x", 1]}]}, r"Outer.items\[0\].sizes\[0\]: expected int, got '1'"),
        ({"items": [{"sizes": [True], "pair": ["x", 1]}]}, r"Outer.items\[0\].sizes\[0\]: expected int, got 'True'"),
        ({"items": [{"sizes": [1], "pair": ["x"]}]}, r"Outer.items\[0\].pair: expected"),
        ({"shapes": {"x": 1}}, "Outer.shapes.x: expected"),
        ({"more": 1}, "Outer: `more` is unknown"),
    ],
)
def test_data_of_other_types_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        from_json(Outer, {**to_json(OUTER), **change})


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json(object())
