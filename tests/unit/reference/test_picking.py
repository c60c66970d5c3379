"""A gather of joined constants reads those that it picks, and gives what torch does."""

from __future__ import annotations

import pytest
import torch

from tests.unit.network.ops.evaluate import backend, random
from trtkit.dtypes import INT32
from trtkit.errors import ExecutionError
from trtkit.network.graph import Graph
from trtkit.network.ops.gather import entries
from trtkit.network.ops.shape import concat
from trtkit.reference import Executor, read_layers
from trtkit.reference.compile import FOLD_LIMIT_BYTES

PARTS = [random(1, 1, 40, 500) for _ in range(20)]
PLACES = [3, 3, 19, 0, -1]


def executor(axis: int, parts: list[torch.Tensor], has_sum: bool = False) -> Executor:
    graph = Graph(backend())
    joined = concat([graph.constant(part.numpy(), f"part{index}") for index, part in enumerate(parts)], axis)
    picked = entries(joined, axis, graph.input("places", INT32, (-1,)))
    graph.output(picked, "picked")
    if has_sum:
        graph.output(joined + joined, "doubled")
    return Executor(read_layers(graph.backend, graph.network, graph.constants))


def names(network: Executor) -> list[str]:
    seen: list[str] = []
    network.run({"places": torch.tensor(PLACES, dtype=torch.int32)}, on_layer=lambda name, _: seen.append(name))
    return seen


@pytest.mark.parametrize("axis", [0, 1])
def test_picked_constants_are_not_joined_first(axis: int) -> None:
    assert sum(part.nbytes for part in PARTS) > FOLD_LIMIT_BYTES
    network = executor(axis, PARTS)
    got = network.run({"places": torch.tensor(PLACES, dtype=torch.int32)})["picked"]
    assert torch.equal(got, torch.cat(PARTS, axis).index_select(axis, torch.tensor(PLACES) % 20))
    assert names(network) == ["gather"]


def test_what_others_read_too_is_joined() -> None:
    network = executor(1, PARTS, has_sum=True)
    results = network.run({"places": torch.tensor(PLACES, dtype=torch.int32)})
    assert torch.equal(results["doubled"], 2 * torch.cat(PARTS, 1))
    assert torch.equal(results["picked"], torch.cat([PARTS[place] for place in PLACES], 1))
    assert "concat" in names(network)


def test_parts_of_several_elements_are_joined() -> None:
    parts = [random(1, 2, 40, 500) for _ in range(20)]
    network = executor(1, parts)
    got = network.run({"places": torch.tensor(PLACES, dtype=torch.int32)})["picked"]
    assert torch.equal(got, torch.cat(parts, 1).index_select(1, torch.tensor(PLACES) % 40))
    assert "concat" in names(network)


def test_a_place_outside_is_an_error() -> None:
    with pytest.raises(ExecutionError):
        executor(1, PARTS).run({"places": torch.tensor([20], dtype=torch.int32)})
