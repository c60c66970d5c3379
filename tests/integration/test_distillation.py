"""The scripts of examples/distillation on a tiny model: training brings a compressed model closer to the original.

The README's own commands, on SmolLM2, run in `make slow` (test_examples.py).
"""

from __future__ import annotations

import json
import runpy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import kl_div

from tests.support import tiny_llm
from tests.support.docs import ROOT
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm, encoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

Compress = Any
SIZES = ("--batch", "2", "--length", "64")
TRAINED = ("--steps", "30", "--learning-rate", "1e-3")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llm.save_to_quantize(tmp_path_factory.mktemp("distill")).parent


@pytest.fixture
def compress(models: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Run a script on the tiny model in this process; return its checkpoint."""

    def run(script: str, out: str, *words: str) -> Path:
        folder = ROOT / "examples/distillation"
        arguments = [
            f"{script}.py",
            str(models / "m.yaml"),
            str(models / "text.txt"),
            str(models / out),
            *SIZES,
            *words,
        ]
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setattr("sys.argv", arguments)
        runpy.run_path(str(folder / f"{script}.py"), run_name="__main__")
        return models / out

    return run


def distance(models: Path, folder: Path) -> float:
    """Return how far a checkpoint is from the original on the text, in nats per token."""
    original = open_hf_folder(models / "model")
    ids = torch.tensor([encoder(original).encode((models / "text.txt").read_text())[:256]])
    with torch.inference_mode():
        ours, theirs = (
            causal_lm(opened)(ids).logits[0].double().log_softmax(-1) for opened in (open_hf_folder(folder), original)
        )
    return float(kl_div(ours, theirs, reduction="batchmean", log_target=True))


def test_training_with_quantizers_regains_loss_and_the_checkpoint_builds(
    compress: Callable[..., Path], models: Path, trtkit: Callable[..., Ran]
) -> None:
    plain, trained = compress("quantize", "plain", "--steps", "0"), compress("quantize", "trained", *TRAINED)
    assert 0 < distance(models, trained) < 0.6 * distance(models, plain)
    arrays = open_hf_folder(trained).checkpoint
    matrices = [arrays[name] for name in arrays if isinstance(arrays[name], QuantizedMatrix)]
    assert [(each.format, each.block) for each in matrices] == [("int4", 32)] * 14
    bundle, source = str(models / "bundle"), ("--set", f"source.hf={trained}", "--set", "quantize=null")
    assert trtkit("build", str(models / "m.yaml"), *source, "--target", "sm80", "-o", bundle).code == 0
    verified = trtkit("verify", bundle, "--text", str(models / "text.txt"))
    assert verified.code == 0, verified.err


def test_no_training_is_what_trtkit_quantize_writes(
    compress: Callable[..., Path], models: Path, trtkit: Callable[..., Ran]
) -> None:
    plain, own = compress("quantize", "untrained", "--steps", "0"), models / "own"
    ran = trtkit("quantize", str(models / "m.yaml"), "--method", "int4_wo", "--block", "32", "-o", str(own))
    assert ran.code == 0, ran.err
    ours, theirs = (open_hf_folder(folder).checkpoint for folder in (own, plain))
    names = [name for name in ours if isinstance(ours[name], QuantizedMatrix)]
    assert len(names) == 14
    for name in names:
        assert (ours[name].codes == theirs[name].codes).all(), name


PRUNED = {
    ("--layers", "1"): {"num_hidden_layers": 1},
    ("--intermediate-size", "96", "--key-value-heads", "1"): {"intermediate_size": 96, "num_attention_heads": 2},
}


@pytest.mark.parametrize("keep", PRUNED)
def test_training_a_pruned_model_regains_loss_and_the_checkpoint_verifies(
    keep: tuple[str, ...], compress: Callable[..., Path], models: Path, trtkit: Callable[..., Ran]
) -> None:
    plain, trained = compress("prune", "cut", "--steps", "0", *keep), compress("prune", "cut-trained", *TRAINED, *keep)
    assert 0 < distance(models, trained) < 0.75 * distance(models, plain)
    config = open_hf_folder(trained).config
    assert {key: config[key] for key in PRUNED[keep]} == PRUNED[keep]
    source = ("--set", f"source.hf={trained}", "--set", "quantize=null")
    verified = trtkit("verify", str(models / "m.yaml"), *source, "--text", str(models / "text.txt"))
    assert verified.code == 0, verified.err


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("num_hidden_layers", 2, "`model.layers.1.self_attn.q_proj.weight` is missing"),
        ("intermediate_size", 256, "`model.layers.0.mlp.gate_proj.weight`"),
    ],
)
def test_a_config_that_was_not_pruned_with_its_weights_is_refused(
    field: str, value: int, named: str, compress: Callable[..., Path], models: Path, trtkit: Callable[..., Ran]
) -> None:
    out = compress("prune", f"stale-{field}", "--steps", "0", "--layers", "1", "--intermediate-size", "96")
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, field: value}))
    ran = trtkit("build", str(models / "m.yaml"), "--set", f"source.hf={out}", "--set", "quantize=null")
    assert ran.code != 0
    assert named in ran.err
