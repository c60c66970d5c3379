"""What rounding inputs costs is foretold by their statistics, as rounding them shows."""

from __future__ import annotations

import pytest
import torch

from trtkit.quantization.llm.calibration import CalibrationStatistics, LayerStatistics
from trtkit.quantization.llm.choice import LinearLayer
from trtkit.quantization.llm.modelopt import kept_in_16_bits, rounding_error

OUT, IN, TOKENS = 48, 64, 512


def statistics(inputs: torch.Tensor, weight: torch.Tensor) -> LayerStatistics:
    """Return what calibration finds for inputs [tokens, in]."""
    inverse = float((1 / (inputs @ weight.T).square().sum(1)).mean())
    return LayerStatistics(inputs.abs().amax(0), inputs.square().mean(0), inverse, len(inputs))


def measured_error(inputs: torch.Tensor, weight: torch.Tensor, alpha: float) -> float:
    """Round the smoothed inputs; return the mean squared relative error of the outputs."""
    factors = inputs.abs().amax(0) ** alpha / weight.abs().amax(0) ** (1 - alpha)
    smooth = inputs / factors
    step = smooth.abs().max() / 127
    rounded = (smooth / step).round() * step * factors
    exact = inputs @ weight.T
    return float((((rounded - inputs) @ weight.T).square().sum(1) / exact.square().sum(1)).mean())


def inputs_with_outlier(factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs [tokens, in] with one channel that is large in one token of 64, and a weight [out, in]."""
    torch.manual_seed(0)
    inputs, weight = torch.randn(TOKENS, IN), torch.randn(OUT, IN)
    inputs[::64, 5] *= factor
    return inputs, weight


@pytest.mark.parametrize("alpha", [0.5, 0.8])
@pytest.mark.parametrize("factor", [1.0, 30.0, 300.0])
def test_the_foretold_error_is_what_rounding_does(alpha: float, factor: float) -> None:
    inputs, weight = inputs_with_outlier(factor)
    foretold = rounding_error(statistics(inputs, weight), weight, alpha)
    assert foretold == pytest.approx(measured_error(inputs, weight, alpha), rel=0.25)


def test_layers_that_share_inputs_keep_them_together() -> None:
    inputs, weight = inputs_with_outlier(3000.0)
    plain, _ = inputs_with_outlier(1.0)
    quiet = 1e3 * torch.randn(OUT, IN)
    layers = {name: LinearLayer(name, name, OUT, IN) for name in ("q", "k", "o")}
    measured = CalibrationStatistics(
        {"q": statistics(inputs, weight), "k": statistics(inputs, quiet), "o": statistics(plain, weight)}
    )
    weights = {layers["q"]: weight, layers["k"]: quiet, layers["o"]: weight}
    assert kept_in_16_bits(weights, measured, 0.8) == {layers["q"], layers["k"]}


def test_statistics_of_two_windows_are_those_of_both() -> None:
    inputs, weight = inputs_with_outlier(30.0)
    whole, parts = statistics(inputs, weight), [statistics(part, weight) for part in (inputs[:100], inputs[100:])]
    joined = parts[0].joined(parts[1])
    assert torch.equal(joined.peaks, whole.peaks)
    assert joined.squares == pytest.approx(whole.squares, rel=1e-5)
    assert joined.inverse_outputs == pytest.approx(whole.inverse_outputs, rel=1e-5)
    assert joined.tokens == TOKENS
