"""Functions that double at each level, or call themselves, are refused before anything expands them."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from tests.support import models
from trtkit.errors import SourceError
from trtkit.network.onnx.function import check_size

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """A function that calls others in a row."""
    names = ["x", *(f"t{index}" for index in range(1, len(calls))), "y"]
    nodes = [
        helper.make_node(call, [names[index]], [names[index + 1]], domain="" if call == "Relu" else "d")
        for index, call in enumerate(calls)
    ]
    return helper.make_function("d", name, ["x"], ["y"], nodes, OPSETS)


def calling(name: str, functions: list[onnx.FunctionProto]) -> onnx.ModelProto:
    node = helper.make_node(name, ["x"], ["y"], domain="d")
    model = models.model([node], [models.tensor("x", 4)], [models.tensor("y", 4)], domains=["d"])
    model.functions.extend(functions)
    return model


def test_functions_that_double_at_each_level_are_refused() -> None:
    doubling = [function("f0", "Relu"), *(function(f"f{n}", f"f{n - 1}", f"f{n - 1}") for n in range(1, 40))]
    with pytest.raises(SourceError) as caught:
        check_size(calling("f39", doubling), "m.onnx")
    assert str(caught.value) == (
        "m.onnx: its functions expand to 5.5e+11 nodes, at most 1000000 are taken\n"
        "fix: export the model without functions that call each other"
    )
    check_size(calling("f10", doubling[:11]), "m.onnx")


def test_functions_that_call_themselves_are_refused() -> None:
    with pytest.raises(SourceError, match=r"function `d::.` calls itself"):
        check_size(calling("a", [function("a", "b"), function("b", "a")]), "m.onnx")


def test_a_function_that_two_others_call_is_no_circle() -> None:
    shared = [
        function("top", "a", "b", "leaf"),
        function("a", "leaf"),
        function("b", "leaf", "a"),
        function("leaf", "Relu"),
    ]
    check_size(calling("top", shared), "m.onnx")
