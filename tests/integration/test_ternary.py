"""examples/distillation/ternary.py: what trains is what transformers loads and what trtkit builds.

The README's own commands run in `make slow` (test_examples.py).
"""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.bitnet import AutoBitLinear

from tests.support import tiny_llm
from tests.support.docs import ROOT
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran

EXAMPLE = ROOT / "examples/distillation"
SMALL = ("--vocab-size", "300", "--hidden-size", "64", "--layers", "2", "--length", "64")
TRAINED = ("--steps", "30", "--learning-rate", "5e-3")
FULL = ("--full-precision",)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(EXAMPLE)
    return runpy.run_path(str(EXAMPLE / "ternary.py"))


def train(script: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Path:
    """Train a tiny model in this process; return its checkpoint."""
    (folder / "text.txt").write_text(tiny_llm.TEXT * 12, encoding="utf-8")
    arguments = [str(folder / "text.txt"), str(folder / "model"), *SMALL, *TRAINED, *words]
    monkeypatch.setattr("sys.argv", ["ternary.py", *arguments])
    script["main"]()
    return folder / "model"


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Keep transformers' ternary layers from compiling parts of themselves, which takes longer than running them."""
    with torch._dynamo.config.patch(disable=True):  # type: ignore[attr-defined]
        yield


def logits(model: Any) -> torch.Tensor:
    ids = torch.randint(0, 300, (2, 33), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found


@pytest.mark.parametrize("words", [(), FULL], ids=["ternary", "twin"])
def test_transformers_loads_the_model_that_was_trained(
    words: tuple[str, ...], script: dict[str, Any], tmp_path: Path
) -> None:
    model = script["new_model"](script["parser"]().parse_args(["text.txt", "out", *SMALL, *words]))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=1.0 if weight.dim() == 1 else 0.0, std=0.3)
    script["save"](model.eval(), tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(model))
    assert logits(model).std() > 0.1


def test_gradients_are_those_of_transformers(script: dict[str, Any]) -> None:
    """Its `online` layers train with the same straight-through estimator."""
    torch.manual_seed(2)
    ours = script["BitLinear"](48, 24, bias=False)
    theirs = AutoBitLinear(48, 24, bias=False, online_quant=True)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 48)
    products, gradients = [], []
    for layer in (ours, theirs):
        inputs = x.clone().requires_grad_()
        product = layer(inputs)
        product.square().sum().backward()
        products.append(product.detach())
        gradients += [inputs.grad, layer.weight.grad]
    torch.testing.assert_close(products[0], products[1])
    torch.testing.assert_close(gradients[:2], gradients[2:])


@pytest.mark.parametrize("words", [(), FULL], ids=["ternary", "twin"])
def test_a_trained_model_builds_and_verifies(
    words: tuple[str, ...],
    script: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trtkit: Callable[..., Ran],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = train(script, tmp_path, monkeypatch, *words)
    losses = [float(line.split()[5]) for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert losses[-1] < 0.6 * losses[0]
    arrays = open_hf_folder(folder).checkpoint
    matrices = [arrays[name] for name in arrays if isinstance(arrays[name], QuantizedMatrix)]
    assert [(each.format, each.block) for each in matrices] == ([] if words else [("int4", 64)] * 14)
    bundle = str(tmp_path / "bundle")
    sizes = [f"--set=llm.{name}=64" for name in ("max_sequence_length", "max_prefill_length")]
    built = trtkit("build", str(folder), *sizes, "--target", "sm80", "-o", bundle)
    assert built.code == 0, built.err
    verified = trtkit("verify", bundle, "--text", str(tmp_path / "text.txt"))
    assert verified.code == 0, verified.err
