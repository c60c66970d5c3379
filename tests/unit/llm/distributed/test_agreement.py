"""A rank whose logits differ from the others' is an error that names it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch

from tests.support.gloo import gloo_groups, gloo_ranks
from trtkit.errors import RankError
from trtkit.llm.distributed.channel import Channel
from trtkit.llm.distributed.stage import COMPARE_EVERY, GridPosition, StageRunner, check_values
from trtkit.llm.execution import Call
from trtkit.models.parallel import Grid
from trtkit.reference import GlooRank

if TYPE_CHECKING:
    from trtkit.llm.execution.execution import RankExecution
    from trtkit.reference import Rank

CALL = Call(0, np.ones((2, 1), np.int64), np.zeros(2, np.int64), np.ones(2, np.int64))
FIX = "fix: restart; if it happens again, see whether every rank has the same engine files, GPU and NCCL"


class Drifting:
    """Gives logits that choose token 3, and from a call on 1 in the second row."""

    hidden = None
    has_all_logits = False

    def __init__(self, from_call: int) -> None:
        self._from, self.calls = from_call, 0

    def forward(self, _call: Call) -> torch.Tensor:
        logits = torch.eye(5)[[3, 1 if self.calls >= self._from else 3]]
        self.calls += 1
        return logits


def test_a_rank_that_drifts_is_noticed_at_the_next_comparison() -> None:
    grid = Grid(tensor=2)
    executions = [Drifting(10**6), Drifting(5)]
    runners = [
        StageRunner(cast("RankExecution", execution), Channel(group), GridPosition(rank, grid, GlooRank(group)))
        for rank, (execution, group) in enumerate(zip(executions, gloo_groups(2), strict=True))
    ]

    def run(runner: StageRunner) -> None:
        for _ in range(COMPARE_EVERY + 1):
            runner.forward(CALL)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(run, runner) for runner in runners]:
            with pytest.raises(RankError) as error:
                future.result()
            assert str(error.value) == (
                "ranks: rank 1 has drifted: row 1 of its logits chooses token 1, that of rank 0 chooses 3\n" + FIX
            )
    assert [execution.calls for execution in executions] == [COMPARE_EVERY + 1] * 2


@pytest.mark.parametrize(
    ("logits", "what"),
    [
        ([1.0, 2.0], None),
        ([1.0, 2.001], None),
        ([1.0, 3.0], "the logits of rank 5 differ from those of rank 4 by 0.45, relative RMS; at most 0.02 is allowed"),
        ([1.0, float("nan")], "rank 5 gives logits that are not finite"),
    ],
)
def test_logits_are_compared_at_the_start(logits: list[float], what: str | None) -> None:
    def check(members: Rank) -> RankError | None:
        try:
            check_values(torch.tensor([[1.0, 2.0]] if members.rank == 0 else [logits]), members, 4)
        except RankError as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(check, gloo_ranks(2)))
    assert [error and error.what for error in errors] == [what, what]
