"""DETR3D end to end: one engine or two against the torch model, real camera matrices, the authors' checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from trtkit.runtime.model import open_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "detr3d"))
import scene

TINY = {
    "image": [64, 112],
    "blocks": [1, 1, 2, 1],
    "width": 8,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "decoder_layers": 2,
    "intermediate_size": 48,
    "num_queries": 60,
    "max_detections": 40,
}
torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("one_export")


@pytest.fixture
def model(workspace: Path) -> Path:
    """A folder with a tiny model, a scene beside it, and a config."""
    folder = workspace / "model"
    scene.write_model(folder, TINY)
    images = np.random.default_rng(0).normal(0, 50, (1, 6, 3, 64, 112)).astype(np.float32)
    np.savez(workspace / "scene.npz", images=images, lidar2img=scene.lidar2img((64, 112)))
    (workspace / "d.yaml").write_text("source: {hf: model}\nprofiles: [{batch: [1, 1, 2]}]\n")
    return folder


def errors(found: Any) -> dict[str, float]:
    return {name: output["relative_rms_error"] for name, output in found["outputs"].items()}


@pytest.mark.parametrize(
    ("compose", "quantize", "most"),
    [
        ("fused", "null", 1e-4),
        ("chained", "null", 1e-4),
        pytest.param("fused", "{parts: {decoder: int8_wo}}", 1e-4, marks=pytest.mark.slow),
        pytest.param("fused", "{method: int8, calibration: {data: scene.npz}}", 0.1, marks=pytest.mark.slow),
    ],
)
def test_detr3d_equals_the_torch_model(
    compose: str, quantize: str, most: float, model: Path, trtkit: Callable[..., Ran]
) -> None:
    quantize = quantize.replace("scene.npz", str(model.parent / "scene.npz"))
    asked = ("--set", f"compose={compose}", "--set", f"quantize={quantize}")
    ran = trtkit("build", "d.yaml", *asked, "--json")
    assert ran.code == 0, ran.err
    engines = ran.json()["manifest"]["engines"]
    assert len(engines) == (1 if compose == "fused" else 2)
    ran = trtkit("verify", "bundles/d", "--inputs", "scene.npz", "--json")
    assert ran.code == 0, ran.err + ran.out
    assert max(errors(ran.json()).values()) <= most


def test_points_are_seen_under_real_camera_matrices(model: Path, trtkit: Callable[..., Ran]) -> None:
    assert trtkit("build", "d.yaml").code == 0
    run, given = open_model("bundles/d").run, dict(np.load("scene.npz"))
    found = run(given)
    blind = run({**given, "images": given["images"] * 0})
    assert np.abs(found["logits"] - blind["logits"]).max() > 1e-2  # so the images matter
    assert found["boxes"].shape == (1, 40, 9)
    assert (np.diff(found["scores"][0]) <= 0).all()


def test_fp16_keeps_geometry_in_fp32(model: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("verify", "d.yaml", "--set", "precision=fp16", "--inputs", "scene.npz", "--json")
    assert ran.code == 0, ran.err + ran.out[:2000]
    found = errors(ran.json())
    assert found.keys() == {
        "scores",
        "logits",
        "codes",
    }  # near ties may change places
    assert found["logits"] <= 5e-3
    assert found["codes"] <= 1e-3


def test_the_authors_checkpoint_layout_loads(model: Path, workspace: Path, trtkit: Callable[..., Ran]) -> None:
    state = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    meta = {"mmdet3d_version": "0.17.1", "CLASSES": ("car", "truck"), "epoch": 24}
    torch.save({"meta": meta, "state_dict": state}, model / "epoch_24.pth")
    ran = trtkit("verify", "d.yaml", "--inputs", "scene.npz", "--json")
    assert ran.code == 0, ran.err + ran.out


class Trap:
    """What a pickle would run."""

    def __reduce__(self) -> Any:
        return (open, ("ran.txt", "w"))


def test_a_checkpoint_with_code_is_refused(model: Path, refuses: Callable[..., str]) -> None:
    (model / "model.safetensors").unlink()
    torch.save({"state_dict": {}, "extra": Trap()}, model / "bad.pth")
    assert "the checkpoint holds more than plain tensors" in refuses("build", "d.yaml")
    assert not Path("ran.txt").exists()


def edit(folder: Path, **fields: Any) -> None:
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**stated, **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cameras": 5}, "has shape [24, 32]; expected [20, 32]"),
        ({"max_detections": 1000}, "`max_detections` 1000 is above the 600 that queries and classes give"),
        ({"num_attention_heads": 5}, "`hidden_size` 32 is not a multiple of `num_attention_heads` 5"),
        ({"deformable": [False]}, "`deformable` and `blocks` name different numbers of stages"),
        ({"camera": 6}, "`camera` is `6`"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    fields: dict[str, Any], message: str, model: Path, refuses: Callable[..., str]
) -> None:
    edit(model, **fields)
    assert message in refuses("build", "d.yaml")


def test_missing_weights_are_named(model: Path, refuses: Callable[..., str]) -> None:
    state = load_file(model / "model.safetensors")
    del state["pts_bbox_head.transformer.reference_points.bias"]
    save_file(state, model / "model.safetensors")
    message = refuses("build", "d.yaml")
    assert "`pts_bbox_head.transformer.reference_points.bias` is missing" in message


def test_a_wrong_number_of_cameras_is_refused_at_run_time(model: Path, trtkit: Callable[..., Ran]) -> None:
    from trtkit.errors import SourceError

    assert trtkit("build", "d.yaml").code == 0
    given = dict(np.load("scene.npz"))
    with pytest.raises(SourceError, match="dimension 1 of `lidar2img` is 5; the profile allows 6 to 6"):
        open_model("bundles/d").run({**given, "lidar2img": given["lidar2img"][:, :5]})


@pytest.mark.slow
def test_full_size_detr3d_builds(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    scene.write_model(workspace / "full", {"image": [928, 1600]})
    ran = trtkit("build", "detr3d", "--set", f"source.hf={workspace}/full", "--json")
    assert ran.code == 0, ran.err
    shapes = {item["name"]: item["shape"] for item in ran.json()["manifest"]["inputs"]}
    assert shapes == {"images": [-1, 6, 3, 928, 1600], "lidar2img": [-1, 6, 4, 4]}
