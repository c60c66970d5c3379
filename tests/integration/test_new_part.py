"""A new kind of part, a fixed lookup table, is this one file: spec, writer and reference."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from trtkit.dtypes import INT32
from trtkit.models.hybrids import registry
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, PartPort, Seam
from trtkit.models.weights import Weight
from trtkit.network.ops.gather import embedding
from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.hybrids.registry import HybridOptions
    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor

ROWS, SIZE = 11, 6


def write_table(weights: Weights, _model: None, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Look rows up: codes [B, 4] -> vectors [B, 4, D]."""
    return {"vectors": embedding(inputs["codes"], weights.get("table"))}


def write_sum(_weights: Weights, model: float, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scale and shift: vectors [B, 4, D] -> y [B, 4, D]."""
    return {"y": inputs["vectors"] * model + 1.0}


def spec(config: HfConfig, _options: HybridOptions) -> HybridSpec:
    """Return a table, and a part behind it."""
    codes, vectors = (
        PartPort("codes", ("batch", 4), "int32"),
        PartPort("vectors", ("batch", 4, SIZE), reference="table"),
    )
    table = NetworkPart(
        "lookup", (codes,), (vectors,), f"{__name__}:write_table", None, (Weight("table", "table", (ROWS, SIZE)),)
    )
    last = NetworkPart(
        "scale",
        (vectors,),
        (PartPort("y", vectors.shape, "fp32"),),
        f"{__name__}:write_sum",
        float(config.need("scale")),
    )
    seams = (Seam("lookup.vectors", "scale.vectors"),)
    return HybridSpec("toy_lookup", (table, last), seams, ("scale.y",), f"{__name__}:reference")


class Whole(torch.nn.Module):
    """The whole model in torch."""

    def __init__(self, table: torch.Tensor, scale: float) -> None:
        super().__init__()
        self.table, self.scale = torch.nn.Embedding.from_pretrained(table), scale

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.table(codes) * self.scale + 1.0
        return y


def reference(folder: str, outputs: list[str]) -> Whole:
    assert outputs == ["y"]
    table = torch.from_numpy(load_file(f"{folder}/model.safetensors")["table"])
    return Whole(table, 0.5)


@pytest.fixture
def config(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(registry.HYBRIDS, "toy_lookup", "toy_lookup")
    monkeypatch.setitem(sys.modules, "trtkit.models.hybrids.toy_lookup", sys.modules[__name__])
    (workspace / "toy").mkdir()
    (workspace / "toy/config.json").write_text(json.dumps({"model_type": "toy_lookup", "scale": 0.5}))
    table = np.random.default_rng(0).standard_normal((ROWS, SIZE)).astype(np.float32)
    save_file({"table": table}, workspace / "toy/model.safetensors")
    samples = {"codes": np.array([[0, 1, 2, 10], [3, 3, 9, 4]], np.int32)}
    np.savez(workspace / "codes.npz", **samples)  # type: ignore[arg-type]
    (workspace / "m.yaml").write_text(
        "source: {hf: toy}\nprofiles: [{batch: [1, 2, 4]}]\nverify: {inputs: [codes.npz]}\n"
    )
    return workspace / "m.yaml"


@pytest.mark.parametrize("compose", ["fused", "chained"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_part_of_a_new_kind_is_built_verified_and_run(
    compose: str, precision: str, config: Path, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    words = ("--set", f"compose={compose}", "--set", f"precision={precision}", "-o", "b", "--no-cache")
    built = trtkit("build", config.name, *words, "--json")
    assert built.code == 0, built.err
    manifest = built.json()["manifest"]
    assert (manifest["model_type"], len(manifest["stages"])) == ("toy_lookup", 1 if compose == "fused" else 2)
    report = trtkit("verify", "b", "--json").json()
    assert report["passed"], report
    assert [part["name"] for part in report["parts"]] == ["lookup.vectors"]
    codes = np.load("codes.npz")["codes"]
    y = open_model("b").run({"codes": codes})["y"]
    expected = load_file("toy/model.safetensors")["table"][codes] * 0.5 + 1.0
    np.testing.assert_allclose(y, expected, atol=1e-6 if precision == "fp32" else 4e-3)
    assert INT32.name == manifest["inputs"][0]["dtype"]
