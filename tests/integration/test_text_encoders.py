"""Every text encoder computes what transformers does, with mixed lengths in a batch, and TensorRT-RTX builds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.support.hybrids import Case, saved
from tests.support.text_encoders import CASES, builds, has_new_blocks_or_head, make_encoder, texts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = saved(case, tmp_path / "model")
    model.set_attn_implementation("eager")
    encoder = make_encoder(tmp_path / "model")
    most = encoder.spec.ranges["tokens"][2]
    for rows, tokens in ((1, 1), (3, 13), (2, most)):
        feed = texts(encoder, rows, tokens)
        found = encoder.execution.run(feed)
        with torch.inference_mode():
            wanted = model(**feed)
        largest = max(float(getattr(wanted, name).norm()) for name in case.outputs)  # one number may be near zero
        for name in case.outputs:
            assert (found[name] - getattr(wanted, name)).norm() <= 1e-5 * largest, (rows, tokens, name)
    if has_new_blocks_or_head(case):
        assert builds(encoder, most)
