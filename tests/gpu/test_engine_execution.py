"""What only a GPU can tell: the engine itself against the reference executor. Run with `pytest -m gpu tests/gpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.models import classifier, save
from trtkit.backends import list_gpus
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not list_gpus(), reason="there is no NVIDIA GPU")]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_an_engine_computes_what_the_reference_executor_computes(tmp_path: Path, precision: str) -> None:
    from trtkit.config.load import config_for_source
    from trtkit.engine.build import build_bundle
    from trtkit.verification.verify import Request, verify_bundle

    config = config_for_source("onnx", save(classifier(), tmp_path / "model.onnx"), [f"precision={precision}"])
    bundle = build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False).bundle
    report = verify_bundle(bundle, Request(), new_runner())
    assert report.engine is not None
    assert report.engine.passed, report.engine
