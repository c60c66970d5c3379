from __future__ import annotations

import torch

from trtkit.reference.layer import RunMemo


def test_a_result_is_computed_once_per_run_and_tensor() -> None:
    calls = []

    def total(x: torch.Tensor, power: int) -> float:
        calls.append(power)
        return float((x**power).sum())

    memo, x = RunMemo(), torch.arange(4.0)
    with memo:
        assert [memo.once(total, x, 2), memo.once(total, x, 2), memo.once(total, x, 1)] == [14.0, 14.0, 6.0]
        assert memo.once(total, x.clone(), 2) == 14.0
    assert calls == [2, 1, 2]
    x += 1
    with memo:
        assert memo.once(total, x, 2) == 30.0


def test_temporary_tensors_are_never_taken_for_each_other() -> None:
    memo = RunMemo()
    with memo:
        found = [memo.once(torch.Tensor.item, torch.tensor(float(number))) for number in range(500)]
    assert found == [float(number) for number in range(500)]
