"""Ranks as gloo processes compute what ranks as threads do."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from tests.support.gloo import gloo_ranks
from trtkit.errors import RankError
from trtkit.reference import Executor, Options, ThreadGroup, read_layers, run_ranks
from trtkit.reference.ranks import gloo_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.reference import Rank

OPERATIONS = [
    ("ALL_REDUCE", "SUM", -1),
    ("ALL_GATHER", "NONE", -1),
    ("BROADCAST", "NONE", 1),
    ("REDUCE", "MAX", 1),
    ("REDUCE_SCATTER", "AVG", -1),
    ("ALL_TO_ALL", "NONE", -1),
    ("GATHER", "NONE", 1),
    ("SCATTER", "NONE", 1),
]


def network(backend: Any, logger: Any, operation: str, reduce_op: str, root: int) -> Any:
    """Return one collective of fp16 [4, 3]."""
    trt = backend.trt
    definition = trt.Builder(logger).create_network(0)
    x = definition.add_input("x", trt.float16, (4, 3))
    operations, reductions = trt.CollectiveOperation, trt.ReduceOperation
    layer = definition.add_dist_collective(x, getattr(operations, operation), getattr(reductions, reduce_op), root, [])
    layer.num_ranks = 2
    stated = {"operation": operation, "reduce_op": reduce_op, "root": root}
    layer.metadata = json.dumps({"collective": stated})
    layer.get_output(0).name = "y"
    definition.mark_output(layer.get_output(0))
    return definition


def outputs(backend: Any, networks: list[Any], ranks: Sequence[Rank]) -> list[torch.Tensor]:
    executors = [
        Executor(read_layers(backend, each), Options(ranks=rank)) for each, rank in zip(networks, ranks, strict=True)
    ]
    feeds = [{"x": torch.randn(4, 3, generator=torch.Generator().manual_seed(rank)).half()} for rank in (0, 1)]
    return [answer["y"] for answer in run_ranks(executors, feeds)]


def test_processes_exchange_what_threads_do(backend: Any, logger: Any) -> None:
    gloo, group = gloo_ranks(2), ThreadGroup(2)
    threads = [group.member(rank) for rank in range(2)]
    for operation in OPERATIONS:
        networks = [network(backend, logger, *operation) for _ in range(2)]
        expected = outputs(backend, networks, threads)
        assert all(map(torch.equal, outputs(backend, networks, gloo), expected)), operation
        assert expected[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64])
def test_tensors_of_any_type_are_exchanged(dtype: torch.dtype) -> None:
    parts = [torch.tensor(rank).to(dtype) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda rank, part: rank.exchange("layer", part), gloo_ranks(2), parts))
    assert all(answer[rank].item() == parts[rank].item() for answer in answers for rank in range(2))


def test_ranks_at_different_layers_are_told(backend: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        ranks = zip(gloo_ranks(2), ("layers.0/o", "layers.1/o"), strict=True)
        futures = [pool.submit(rank.exchange, key, torch.zeros(2)) for rank, key in ranks]
        with pytest.raises(RankError) as error:
            futures[0].result()
    assert str(error.value) == (
        "layers.0/o: rank 1 is at another layer than rank 0, or brings another shape than "
        "`layers.0/o torch.float32 [2]`\nfix: give every rank the same bundle and the same calls"
    )


def test_a_rank_does_not_wait_forever() -> None:
    rank, _ = gloo_ranks(2, timeout_s=0.1)
    with pytest.raises(RankError, match=r"layers.0/o: rank 0 waited for the others in vain: .*[Tt]imed out"):
        rank.exchange("layers.0/o", torch.zeros(2))


def test_ranks_that_do_not_connect_are_told() -> None:
    with pytest.raises(RankError, match="rank 0 cannot reach the other ranks: "):
        gloo_group(HashStore(), 0, 2, timeout_s=0.2)
