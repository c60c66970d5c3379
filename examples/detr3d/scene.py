"""Write a DETR3D model with random weights, and a scene: an .npz of images with real camera matrices."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from trtkit.sources.torch.models.detr3d import Detr3d

SMALL = {
    "image": [128, 224],
    "blocks": [1, 1, 2, 1],
    "width": 16,
    "hidden_size": 64,
    "decoder_layers": 3,
    "intermediate_size": 96,
    "num_queries": 100,
    "max_detections": 60,
}
RIG = json.loads((Path(__file__).parent / "cameras.json").read_text())


def write_model(folder: Path, sizes: dict[str, Any]) -> None:
    """Write config.json and random weights: the real structure, untrained."""
    torch.manual_seed(0)
    model = Detr3d(**{name: value for name, value in sizes.items() if name != "max_detections"})
    for name, weight in model.named_parameters():
        if "conv_offset" in name:
            torch.nn.init.normal_(weight, std=0.1)
        elif name.endswith("query_embedding.weight"):
            torch.nn.init.normal_(weight, std=2.0)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "detr3d", **sizes}, indent=1))


def matrix(pose: dict[str, Any]) -> np.ndarray:
    """Return the 4x4 transform from a sensor's frame to the vehicle's, from a unit quaternion (w, x, y, z)."""
    w, x, y, z = pose["rotation"]
    found = np.eye(4)
    found[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    found[:3, 3] = pose["translation"]
    return found


def lidar2img(image: tuple[int, int]) -> np.ndarray:
    """Return [1, 6, 4, 4]: transforms from the lidar's frame to pixels of each camera's image, scaled to `image`."""
    scale = image[1] / RIG["image"][1]
    found = []
    for camera in RIG["cameras"].values():
        intrinsics = np.eye(4)
        intrinsics[0, 0] = intrinsics[1, 1] = camera["focal"] * scale
        intrinsics[:2, 2] = np.array(camera["center"]) * scale
        found.append(intrinsics @ np.linalg.inv(matrix(camera)) @ matrix(RIG["lidar"]))
    return np.array(found, np.float32)[None]


def main() -> None:
    """Write the folder and the scene."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--full", action="store_true", help="the paper's R101 at 928 x 1600 instead of a small one")
    arguments = parser.parse_args()
    sizes = {"image": [928, 1600]} if arguments.full else SMALL
    write_model(arguments.folder, sizes)
    images = np.random.default_rng(0).normal(0, 50, (1, 6, 3, *sizes["image"])).astype(np.float32)
    matrices = lidar2img((sizes["image"][0], sizes["image"][1]))
    np.savez(arguments.folder / "scene.npz", images=images, lidar2img=matrices)


if __name__ == "__main__":
    main()
