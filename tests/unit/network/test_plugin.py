from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trtkit.dtypes import FP16, FP32, INT32, INT64
from trtkit.network.aot import load_kernels, pointer
from trtkit.network.custom_op import CustomOp, find, load_ops
from trtkit.network.foreign import Fact
from trtkit.network.plugin import (
    Plugin,
    Size,
    attribute_types,
    attributes_of,
    ceil_div,
    compute_capability,
    plain,
    refusal,
    sizes_of,
    type_of,
)
from trtkit.verification.custom_ops.outcomes import trials

pytest.importorskip("triton")
OPS = [op for op in load_ops().values() if op.has_part("plugin")]


@dataclass(frozen=True)
class Expression:
    """An expression as TensorRT has them: a product has the expression on its left; no other arithmetic here."""

    value: int

    def __mul__(self, other: Any) -> Expression:
        return Expression(self.value * (other.value if isinstance(other, Expression) else other))


def _cdiv(value: Any, by: int) -> Any:
    divide = SimpleNamespace(cdiv=lambda expression, divisor: Expression(-(-expression.value // divisor)))
    return ceil_div(divide, value, by)


def _numbers(values: Any) -> list[int]:
    plained = [plain(value) for value in values]
    return [value.value if isinstance(value, Expression) else value for value in plained]


def _batch_is_open(op: CustomOp, shapes: Any) -> list[list[Any]]:
    """Return shapes whose first axis is an expression where it is a batch, a number of boxes or of pillars."""
    words = [op.inputs[min(place, len(op.inputs) - 1)].dims.split()[0] for place in range(len(shapes))]
    return [
        [Size(Expression(shape[0])) if word in {"N", "B", "R", "P"} else shape[0], *shape[1:]]
        for word, shape in zip(words, shapes, strict=True)
    ]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_batch_known_at_run_time_starts_the_same_programs(op: CustomOp) -> None:
    typical, kernels = op.part("cases").TYPICAL, load_kernels(op)
    known = kernels.plan(typical.shapes, typical.attributes, _cdiv)
    symbolic = kernels.plan(_batch_is_open(op, typical.shapes), typical.attributes, _cdiv)
    assert any(isinstance(size, Size) for size in (*symbolic.grid, *symbolic.scalars.values()))
    assert _numbers(symbolic.grid) == list(known.grid)
    assert _numbers(symbolic.scalars.values()) == list(known.scalars.values())
    assert symbolic.constants == known.constants


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_inputs_scalars_and_output_stand_in_the_order_that_tensorrt_passes_them(op: CustomOp) -> None:
    plugin: Plugin = op.part("plugin").PLUGIN
    typical, kernels = op.part("cases").TYPICAL, load_kernels(op)
    started = kernels.plan(typical.shapes, typical.attributes, _cdiv)
    kinds = [kind for kind in kernels.to_compile(FP16, started).signature.values() if kind != "constexpr"]
    types = [pointer(type_of(kind, FP16)) for kind in plugin.types_of(typical.attributes)]
    count = len(plugin.inputs)
    assert kinds == [*types[:count], *["i32"] * len(started.scalars), *types[count:]]
    assert count == len(typical.shapes)
    assert len(types) == count + len(op.outputs)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_plugins_outputs_are_what_the_op_infers(op: CustomOp) -> None:
    plugin: Plugin = op.part("plugin").PLUGIN
    for trial in trials(op, ("fp16",)):
        given = [fact for fact in trial.facts if fact is not None]
        if len(given) + len(plugin.missing(given)) != len(plugin.inputs):
            continue
        shapes = [x.shape for x in trial.inputs if x is not None]
        made = plugin.shapes(shapes, trial.case.attributes)
        types = [
            type_of(types, given[plugin.data].dtype)
            for types in plugin.types_of(trial.case.attributes)[len(plugin.inputs) :]
        ]
        assert [tuple(shape) for shape in made] == [want.shape for want in trial.expected]
        assert types == [fact.dtype for fact in trial.outputs]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_attributes_pass_through_tensorrts_types(op: CustomOp) -> None:
    given = op.part("cases").TYPICAL.attributes
    types = attribute_types(op)
    sent = {
        name: np.array(value, types[name].__args__[1].__args__[0]) if isinstance(value, tuple) else types[name](value)
        for name, value in vars(given).items()
    }
    found = attributes_of(op, sent)
    for name, value in vars(given).items():
        assert (
            getattr(found, name) == pytest.approx(value) if isinstance(value, tuple) else getattr(found, name) == value
        )


def test_sizes_are_numbers_where_they_are_known() -> None:
    batch, height = Expression(2), Expression(5)
    desc = SimpleNamespace(shape=[-1, 5], shape_expr=[batch, height])
    assert sizes_of(desc) == [Size(batch), 5]


def test_sizes_multiply_from_both_sides() -> None:
    assert 3 * Size(Expression(4)) == Size(Expression(12)) == Size(Expression(3)) * Size(Expression(4))


@pytest.mark.parametrize(("present", "chosen"), [(80, 80), (86, 80), (89, 80), (90, 90), (103, 90), (121, 120)])
def test_kernels_are_compiled_for_what_the_gpu_can_run(present: int, chosen: int) -> None:
    assert compute_capability(present) == chosen


def test_an_op_without_the_part_says_so() -> None:
    assert not find("deform_conv").has_part("autotune")


def test_every_op_has_a_plugin() -> None:
    assert list(load_ops().values()) == OPS


X, ROIS, IMAGES = Fact(FP16, (-1, 8, 20, 20)), Fact(FP32, (-1, 4)), Fact(INT64, (-1,))


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ([X, ROIS, IMAGES], ""),
        ([X, Fact(FP32, (-1, 5)), None], "2 inputs, its plugin takes 3: x, rois, images"),
        ([X, Fact(FP16, (-1, 4)), IMAGES], "input `rois` has type fp16, its plugin takes FP32"),
        ([X, ROIS, Fact(INT32, (-1,))], "input `images` has type int32, its plugin takes INT64"),
        ([Fact(FP16, (9, 512, 800, 1088)), ROIS, IMAGES],
         "a tensor of shape [9, 512, 800, 1088], its plugin takes fewer than 2**31 elements"),
    ],
)  # fmt: skip
def test_what_a_plugin_cannot_take_stays_with_the_lowering(facts: list[Fact | None], why: str) -> None:
    op = find("roi_align")
    assert refusal(op, facts, op.attributes((7, 7), 2)) == why
