"""Tests of every op: each implementation matches the reference, and TensorRT builds each lowering."""

from __future__ import annotations

import pytest
import torch

from trtkit.backends import load_backend
from trtkit.network.custom_op import load_ops
from trtkit.verification.custom_ops.outcomes import KERNEL, Trial, build, network_of, outcomes, parsed_function, trials

torch.set_num_threads(1)
BACKEND = load_backend("tensorrt_rtx")
OPS = list(load_ops().values())
# Each op's cases alternate between fp32 and fp16; the other type of each case is slow.
TRIALS = [
    pytest.param(trial, marks=() if index % 4 in (0, 3) or len(tried) == 2 else pytest.mark.slow)
    for op in OPS
    for tried in [trials(op)]
    for index, trial in enumerate(tried)
]
BUILDS = [(trial, form) for op in OPS for trial in trials(op, ("fp16",)) for form in trial.forms]


def _name(value: Trial | str) -> str:
    return f"{value.op.name}: {value}" if isinstance(value, Trial) else value


@pytest.mark.parametrize("trial", TRIALS, ids=_name)
def test_every_implementation_matches_the_reference(trial: Trial) -> None:
    results = list(outcomes(BACKEND, trial))
    assert [outcome for outcome in results if not outcome.is_within] == []
    assert any(outcome.route == KERNEL for outcome in results)


@pytest.mark.parametrize(
    ("trial", "form"), BUILDS, ids=lambda value: f"{value.op.name}: {value}" if isinstance(value, Trial) else value
)
def test_tensorrt_builds_every_lowering(trial: Trial, form: str) -> None:
    assert build(network_of(BACKEND, trial, form), trial) > 0
    assert build(parsed_function(BACKEND, trial, form), trial) > 0
