from __future__ import annotations

import pytest
import torch

from trtkit.dtypes import FP32
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, Refusal
from trtkit.verification.custom_ops.outcomes import Trial, trials

torch.set_num_threads(1)
OP = find("Detr3dSample")


def _as_published(inputs: list[torch.Tensor], trial: Trial) -> torch.Tensor:
    """Compute with torch's grid_sample, step by step as `feature_sampling` of the authors' code does."""
    points, lidar2img, weights, *features = inputs
    attributes = trial.case.attributes
    low, high = points.new_tensor(attributes.pc_range).reshape(2, 3)
    points = torch.cat((points * (high - low) + low, torch.ones_like(points[..., :1])), -1)
    batch, queries = points.shape[:2]
    cameras = lidar2img.shape[1]
    points = points.view(batch, 1, queries, 4).repeat(1, cameras, 1, 1).unsqueeze(-1)
    matrices = lidar2img.view(batch, cameras, 1, 4, 4).repeat(1, 1, queries, 1, 1)
    at = torch.matmul(matrices, points).squeeze(-1)
    eps = 1e-5
    mask = at[..., 2:3] > eps
    at = at[..., 0:2] / torch.maximum(at[..., 2:3], torch.ones_like(at[..., 2:3]) * eps)
    at[..., 0] /= attributes.image_width
    at[..., 1] /= attributes.image_height
    at = (at - 0.5) * 2
    mask = mask & (at[..., 0:1] > -1.0) & (at[..., 0:1] < 1.0) & (at[..., 1:2] > -1.0) & (at[..., 1:2] < 1.0)
    sampled = []
    for feature in features:
        flat = feature.flatten(0, 1)
        grid = at.reshape(batch * cameras, queries, 1, 2)
        seen = torch.nn.functional.grid_sample(flat, grid, align_corners=False)
        sampled.append(seen.view(batch, cameras, -1, queries).permute(0, 2, 3, 1))
    stacked = torch.stack(sampled, -1)  # [B, C, Q, N, L]
    share = weights.unsqueeze(1) * mask.squeeze(-1).permute(0, 2, 1).unsqueeze(1).unsqueeze(-1)
    return (stacked * share).sum(-1).sum(-1).permute(0, 2, 1)


@pytest.mark.parametrize("trial", trials(OP, ("fp32",)), ids=str)
def test_the_reference_is_what_the_authors_compute(trial: Trial) -> None:
    inputs = [torch.from_numpy(x).double() for x in trial.inputs if x is not None]
    torch.testing.assert_close(torch.from_numpy(trial.expected[0]), _as_published(inputs, trial))


def test_points_are_seen_and_unseen() -> None:
    seen = [abs(trial.expected[0]).sum(-1) > 0 for trial in trials(OP, ("fp32",))]
    assert all(mask.any() for mask in seen)
    assert not all(mask.all() for mask in seen)


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ([(1, 9, 3), (1, 6, 4, 4), (1, 9, 6, 2), (1, 6, 8, 5, 5)], "2 levels in `weights`, 1 inputs `features`"),
        ([(1, 9, 3), (1, 6, 4, 4), (1, 9, 6, 1), (1, 5, 8, 5, 5)],
         "`features` 0 has shape [1, 5, 8, 5, 5]: 6 cameras, 8 channels wanted"),
        ([(1, 9, 3), (1, 6, 4, 4), (1, 9, 5, 1), (1, 6, 8, 5, 5)],
         "input `weights` of shape [1, 9, 5, 1]: N is 5 here and 6 before"),
        ([(1, 9, 3), (1, 6, 4, 4)], "2 inputs, at least 4 wanted: points, lidar2img, weights, features"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_say_why(shapes: list[tuple[int, ...]], what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.check([Fact(FP32, shape) for shape in shapes], OP.attributes(232, 400))
    assert refused.value.what == what
