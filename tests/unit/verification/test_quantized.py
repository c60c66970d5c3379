from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trtkit.config.schema import ModelConfig
from trtkit.network.onnx.io import OnnxTensorSpec
from trtkit.verification.quantized import calibration_samples, has_calibration, quantized_tolerance

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = [OnnxTensorSpec("x", "fp32", ("batch", 3))]


def config(quantize: Any = None, **verify: Any) -> ModelConfig:
    return ModelConfig.model_validate({"source": {"onnx": "m.onnx"}, "quantize": quantize, "verify": verify})


@pytest.mark.parametrize(
    ("method", "expected"), [("int8", 0.4), ("fp8", 0.4), ("int8_wo", 0.2), ("int4_wo", 0.4), ("int8_sq", 0.0)]
)
def test_methods_have_tolerances_of_their_own(method: str, expected: float) -> None:
    assert quantized_tolerance(config({"method": method})) == expected


def test_a_config_without_quantize_or_with_its_own_limit_has_none() -> None:
    assert quantized_tolerance(config()) == 0.0
    assert quantized_tolerance(config({"method": "int8"}, max_relative_rms_error=0.01)) == 0.0


def test_verification_falls_back_on_calibration_data_as_long_as_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    asked = config({"method": "int8", "calibration": {"data": str(path)}})
    assert not has_calibration(asked)
    assert calibration_samples(asked, INPUTS) == []
    np.savez(path, x=np.arange(6, dtype=np.float32).reshape(2, 3))
    assert [sample.inputs["x"].tolist() for sample in calibration_samples(asked, INPUTS)] == [[[0, 1, 2]], [[3, 4, 5]]]
    assert calibration_samples(config(), INPUTS) == []
