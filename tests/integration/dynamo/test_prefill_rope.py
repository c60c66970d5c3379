"""A prefill bundle whose rotary embedding depends on a different maximum length is refused."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support import tiny_llm
from trtkit.builder.build import build_bundle
from trtkit.config.schema import ModelConfig
from trtkit.deployment.dynamo.prefill_bundle import check_prefill_bundle
from trtkit.errors import DeployError
from trtkit.jobs.runner import new_runner
from trtkit.llm.execution.open import open_execution, weights_digest

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle

ORIGINAL, LONG = 32, 64


def bundle_of(folder: Path, length: int) -> Bundle:
    llm = {"max_batch_size": 1, "max_sequence_length": length, "max_prefill_length": 32}
    fields = {"source": {"hf": str(folder / "model")}, "precision": "fp32", "llm": llm}
    return build_bundle(ModelConfig.model_validate(fields), folder / str(length), new_runner(), use_cache=False).bundle


def test_longrope_of_another_length_is_refused(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [3.0, 5.0, 7.0, 9.0]}
    rope = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": ORIGINAL, **factors}
    tiny_llm.save(tmp_path / "model", rope_parameters=rope)
    long, short = (bundle_of(tmp_path, length) for length in (LONG, ORIGINAL))
    check_prefill_bundle(long, long)
    assert weights_digest(long.manifest) == weights_digest(short.manifest)
    with closing(open_execution(long)) as own, closing(open_execution(short)) as other:  # as workers without a fleet
        fault = other.cache.form(4).difference(own.cache.form(4))
    assert "the saved sequence is of model" in fault
    with pytest.raises(DeployError, match="turns positions otherwise"):
        check_prefill_bundle(long, short)
