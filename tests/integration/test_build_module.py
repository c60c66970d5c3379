"""`trtkit.build` of an in-memory PyTorch module, compared with the module."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import onnx
import pytest
import torch

import trtkit
from tests.support import models
from trtkit.errors import ConfigError, SourceError
from trtkit.runtime.tasks.answers import Classes
from trtkit.sources.torch.attempts import check_examples

if TYPE_CHECKING:
    from pathlib import Path


class Net(torch.nn.Module):
    """A classifier whose answers dropout would change."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop, self.head = torch.nn.Conv2d(3, 8, 3, 2), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4)

    def forward(self, images: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        x = self.drop(self.conv(images).relu().mean((2, 3)))
        return self.head(x if weights is None else x * weights)


def test_a_module_is_built_and_answers_as_in_torch(workspace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    net, x = Net(), torch.rand(2, 3, 32, 32)
    state = torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bundle = trtkit.build(
            net,
            example_inputs=x,
            shapes={"images": ["batch", 3, 32, 32]},
            profiles=[{"batch": [1, 2, 8]}],
            preprocess={"resize": {"exact": [32, 32]}},
            task={"kind": "classification"},
        )
    assert capfd.readouterr().err == ""
    assert net.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert bundle.path.as_posix() == "bundles/net"
    assert (workspace / "bundles" / "net.onnx").is_file()
    model = trtkit.open_model(bundle)
    net.eval()
    more = torch.rand(5, 3, 32, 32)
    with torch.inference_mode():
        assert torch.allclose(torch.from_numpy(model(more.numpy())), net(more), atol=1e-5)
        pixels = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8)
        expected = net(pixels.permute(2, 0, 1)[None] / 255).softmax(-1)[0]
    (answer,) = model.predict(pixels.numpy())
    assert isinstance(answer, Classes)
    assert answer.ids[0] == int(expected.argmax())
    assert answer.scores[0] == pytest.approx(float(expected.max()), abs=1e-5)
    assert trtkit.verify(bundle, corners=False).passed


IMAGES = torch.zeros(1, 3, 8, 8)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "a PyTorch module needs `example_inputs`\nfix: give a tensor for each input"),
        ({"example_inputs": IMAGES.double()}, "example_inputs: `images` has type float64\nfix: give one of float32"),
        ({"example_inputs": (IMAGES,) * 3}, "example_inputs: 3 examples; `forward` takes images, weights"),
        ({"example_inputs": {"weights": IMAGES}}, "the inputs weights are not the first of `forward`: images, weights"),
        ({"example_inputs": ["cat.png"]}, "example_inputs: an example is a str, not a tensor"),
        ({"example_inputs": []}, "example_inputs: there is no example"),
        ({"example_inputs": IMAGES, "shapes": {"images": [2, 3, 8, 8]}}, "`images` is [2, 3, 8, 8], and its example"),
        ({"example_inputs": IMAGES, "shapes": {"image": [1]}}, "`image` is not an input\nfix: the inputs are images"),
    ],
)
def test_examples_that_do_not_fit_are_refused(options: dict[str, Any], error: str, workspace: Path) -> None:
    with pytest.raises((ConfigError, SourceError)) as refused:
        trtkit.build(Net(), **options)
    assert error in str(refused.value)
    assert list(workspace.iterdir()) == []


def test_examples_are_for_modules_only() -> None:
    with pytest.raises(ConfigError, match="`example_inputs` and `shapes` are for a PyTorch module"):
        trtkit.build("efficientnet-lite0", example_inputs=IMAGES)
    wrong: Any = 3
    with pytest.raises(ConfigError, match="expected a model's path, name, ModelConfig or PyTorch module, got int"):
        trtkit.build(wrong)


def test_a_file_that_answers_otherwise_is_noticed(tmp_path: Path) -> None:
    model = models.classifier()
    onnx.save(model, str(tmp_path / "other.onnx"))

    class Zeros(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(images), 5)

    with pytest.raises(SourceError, match="output 0 differs from torch's"):
        check_examples(Zeros(), [torch.rand(2, 3, 16, 16)], tmp_path / "other.onnx")
