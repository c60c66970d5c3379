"""Pillar scatter in plain torch. Source: PointPillars, https://arxiv.org/abs/1812.05784, section 2.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from .op import PillarScatterAttributes


def reference(inputs: Sequence[Tensor | None], attributes: PillarScatterAttributes) -> list[Tensor]:
    """Put each pillar's features into its cell; other cells stay zero."""
    features, coordinates, count = inputs
    assert features is not None
    assert coordinates is not None
    height, width = attributes.grid
    canvas = torch.zeros(attributes.batch, features.shape[1], height, width, dtype=features.dtype)
    pillars = len(features) if count is None else int(count)
    for pillar in range(pillars):
        cloud, _, row, column = coordinates[pillar].tolist()
        if 0 <= cloud < attributes.batch and 0 <= row < height and 0 <= column < width:
            canvas[cloud, :, row, column] = features[pillar]
    return [canvas]
