"""Run a DETR3D bundle on a scene and draw its boxes from above, with each camera's field of view."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from trtkit.runtime.model import open_model

SIZE, METRES = 800, 62.0
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")


def pixel(x: float, y: float) -> tuple[float, float]:
    """Return the pixel of a point in metres: x to the right, y up."""
    return (x / METRES + 1) * SIZE / 2, (1 - y / METRES) * SIZE / 2


def corners(box: np.ndarray) -> list[tuple[float, float]]:
    """Return the corners of a box seen from above: cx, cy, cz, w, l, h, yaw, ..."""
    cx, cy, width, length, yaw = box[0], box[1], box[3], box[4], box[6]
    turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
    edges = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]]) * [length / 2, width / 2]
    return [pixel(cx + x, cy + y) for x, y in edges @ turn.T]


def view(lidar2img: np.ndarray, image: tuple[int, int]) -> list[tuple[float, float]]:
    """Return a camera's field of view on the ground: a triangle from its position, 50 m along both image edges."""
    inverse = np.linalg.inv(lidar2img)
    place = inverse @ [0, 0, 0, 1]
    rays = [(inverse @ [u * 50, image[0] / 2 * 50, 50, 1])[:2] for u in (0, image[1])]
    return [pixel(place[0], place[1]), *(pixel(x, y) for x, y in rays)]


def main() -> None:
    """Run the bundle, print the best boxes, and draw all boxes in range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("scene", type=Path)
    parser.add_argument("--out", type=Path, default=Path("birds_eye.png"))
    arguments = parser.parse_args()
    scene = dict(np.load(arguments.scene))
    found = open_model(arguments.bundle).run(scene)
    canvas = Image.new("RGB", (SIZE, SIZE), "white")
    draw = ImageDraw.Draw(canvas, "RGBA")
    for camera in scene["lidar2img"][0]:
        draw.polygon(view(camera, scene["images"].shape[-2:]), fill=(120, 160, 220, 40), outline=(90, 120, 180, 160))
    kept = [index for index in range(len(found["scores"][0])) if found["is_inside"][0, index]]
    for index in kept:
        draw.polygon(corners(found["boxes"][0, index]), outline=COLOURS[found["labels"][0, index]], width=2)
    canvas.save(arguments.out)
    print(f"{len(kept)} of {len(found['scores'][0])} boxes inside, best score {found['scores'][0, 0]:.2f}")


if __name__ == "__main__":
    main()
