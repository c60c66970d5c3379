"""Every shipped config builds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trtkit.config import shipped_configs
from trtkit.config.load import load_config
from trtkit.sources.package_file import SCHEME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran


# Plan bytes by weight bytes, at least. ResNet-50's graph repeats constants, and a plan stores equal weights once.
SMALLEST_PLAN = {"resnet50": 0.3}


def has_own_source(name: str) -> bool:
    """Whether a config's weights come with a package; others name a folder of the user's."""
    source = load_config(name).source
    return source.hf is None and (source.onnx is None or source.onnx.startswith(SCHEME))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_configs() if has_own_source(name)])
def test_shipped_config_builds(name: str, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("build", name, "--json")
    if "is not installed" in ran.err or "does not import" in ran.err:
        pytest.skip(ran.err.strip())
    assert ran.code == 0, ran.err
    manifest = ran.json()["manifest"]
    plan = workspace / "bundles" / name / manifest["engines"][0]["path"]
    weights = sum(manifest["totals"]["weight_bytes"].values())
    assert plan.stat().st_size > SMALLEST_PLAN.get(name, 0.9) * weights, "the plan does not hold the weights"
    assert manifest["totals"]["flops"] > 1e7


@pytest.mark.slow
def test_vit_costs_what_is_published(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "vit", "-q").code == 0  # the one of the test above
    found: Any = trtkit("inspect", "bundles/vit", "--json").json()["network"]
    kinds = {"CONVOLUTION", "MATRIX_MULTIPLY", "ATTENTION_OUTPUT", "EINSUM"}
    flops = sum(layer["flops"] for layer in found["layers"] if layer["type"] in kinds)
    (batch, *_), *_ = found["shapes"].values()
    assert flops / batch / 2e9 == pytest.approx(17.56, rel=0.01)  # torchvision's ViT-B/16: 17.56 G multiply-adds
    assert found["totals"]["weight_bytes"]["fp32"] / 4 == pytest.approx(86.6e6, rel=0.01)
