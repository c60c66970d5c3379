"""The cases that properties are tested on have every value of every field that any case has."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from tests.selection import slow_unless
from tests.support.covering import CACHED, SEEN, STEPPED, covering, in_covering_set_of, spec_of, values_of
from tests.support.decoder_case import Case
from tests.support.decoder_cases import CASES
from tests.support.decoders import model_of
from trtkit.models.attention import AttentionSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec, RoutingSpec
from trtkit.models.spec import BlockSpec, DecoderSpec, HeadSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tests.support.covering import Value


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(CASES), CASES), ids=str)
def test_a_spec_without_a_model_is_the_model_s(case: Case) -> None:
    assert spec_of(case) == model_of(case).spec


@pytest.mark.parametrize("parts", [(), CACHED, STEPPED, SEEN], ids=["all", "cached", "stepped", "seen"])
def test_the_covering_set_has_every_value_and_no_case_too_many(parts: Collection[tuple[str, str]]) -> None:
    is_kept = in_covering_set_of(CASES, parts)
    held = {case: {v for v in values_of(case) if not parts or v[:2] in parts} for case in CASES}
    chosen = {case: values for case, values in held.items() if is_kept(case)}
    assert set().union(*chosen.values()) == set().union(*held.values())
    for case, values in chosen.items():
        assert values - set().union(*(others for other, others in chosen.items() if other != case)), case


def test_fields_of_every_part_are_read() -> None:
    """A field that the walk missed would have no value at all."""
    read = {value[:2] for case in CASES for value in values_of(case)}
    for spec in (AttentionSpec, MlpSpec, MoeSpec, RoutingSpec, BlockSpec, HeadSpec):
        assert {(spec.__name__, field.name) for field in fields(spec)} <= read
    names = {"model_type", "names", "prefix", "unused", "table_copies"}
    assert {("DecoderSpec", field.name) for field in fields(DecoderSpec) if field.name not in names} <= read


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ({"a": "12", "b": "34", "c": "123", "d": "4"}, ["c", "b"]),
        ({"a": "12", "b": "12"}, ["a"]),
        ({"large": "1234", "left": "125", "right": "346"}, ["left", "right"]),  # both have all that `large` has
    ],
)
def test_each_chosen_case_adds_the_most_that_is_missing(values: Mapping[str, str], chosen: list[str]) -> None:
    def values_of_named(case: Case) -> set[Value]:
        return {("Spec", "field", digit) for digit in values[case.name]}

    found = covering([Case(name, "llama", {}) for name in values], values_of_named)
    assert sorted(case.name for case in found) == sorted(chosen)


def test_a_family_with_a_new_value_enters_by_itself() -> None:
    """Only LFM2 has convolutions as mixers, so without it a set of all other cases lacks them."""
    (own,) = (case for case in CASES if case.name == "lfm2")
    others = [case for case in CASES if case != own]
    assert ("LayerSpec", "mixer", "ConvSpec") not in {value for case in others for value in values_of(case)}
    assert own in covering([*others, own])
