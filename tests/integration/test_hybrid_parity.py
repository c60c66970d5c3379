"""Every hybrid family computes what transformers does, as one network or several, and TensorRT-RTX builds it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch

from tests.selection import slow_unless
from tests.support.decoders import relative_rms
from tests.support.hybrids import CASES, Case, answers, make, saved
from trtkit.verification.detections import paired_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_export")
LIMITS = {"DetrForObjectDetection": 1.5e-5}
"""Relative RMS errors if not 1e-5: this backbone's convolutions are summed in another order (1.2e-5)."""


def paired(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the rows in transformers' order: near-equal scores of proposals may swap them."""
    arrays = [{name: value.numpy() for name, value in given.items()} for given in (found, wanted)]
    return {name: torch.from_numpy(value) for name, value in paired_rows(*arrays).items()}


def is_kept(case: Case, compose: str) -> bool:
    """Whether a composition is tested every time: one of every family, both of a classifier's and of a detector's."""
    if case.model_type.startswith("rt_detr"):  # ten seconds each, most of it in torch.export
        return (str(case), compose) in {
            ("RTDetrForObjectDetection", "fused"),  # its sampling is that of V2, whose offsets are scaled
            ("RTDetrV2ForObjectDetection-discrete", "fused"),
        }
    return compose == "fused" or str(case) in {"ViTForImageClassification", "DetrForObjectDetection"}


@pytest.mark.parametrize(
    ("case", "compose"), slow_unless(is_kept, itertools.product(CASES, ("fused", "chained"))), ids=str
)
def test_outputs_are_those_of_transformers(case: Case, compose: str, tmp_path: Path) -> None:
    model = saved(case, tmp_path / "model")
    made = make(case, tmp_path / "model", compose)
    for batch in (1, 3):
        pixels = torch.randn(batch, 3, *case.size, generator=torch.Generator().manual_seed(batch))
        found, wanted = made.run(pixels), answers(model, case, pixels)
        if made.spec.has_unordered_rows:
            found = paired(found, wanted)
        for name in case.outputs:
            assert relative_rms(found[name], wanted[name]) <= LIMITS.get(str(case), 1e-5), (batch, name)
    assert made.builds()
