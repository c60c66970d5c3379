"""The script of examples/speculation: it trains what `speculators` computes, and its heads guess for a tiny model.

The README's own commands, on SmolLM2, run in `make slow` (test_examples.py).
"""

from __future__ import annotations

import json
import random
import re
import runpy
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support import tiny_llm
from tests.support.docs import ROOT
from trtkit import LLM

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.conftest import Ran

EXAMPLE = ROOT / "examples/speculation"
PLAIN = ROOT / "tests/golden/speculators/plain"
SMALL = ("--draft-tokens", "320", "--length", "32", "--batch", "8", "--steps", "60", "--learning-rate", "3e-3")


def train(folder: Path, out: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Train a head of the tiny model in this process; return its folder."""
    monkeypatch.syspath_prepend(EXAMPLE)
    arguments = [str(folder / name) for name in ("m.yaml", "text.txt", out)]
    monkeypatch.setattr("sys.argv", ["train.py", *arguments, *SMALL])
    runpy.run_path(str(EXAMPLE / "train.py"), run_name="__main__")
    return folder / out


def test_all_guesses_at_once_are_those_of_speculators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    kind: Any = runpy.run_path(str(EXAMPLE / "head.py"))["Head"]
    weights, wanted = load_file(PLAIN / "model.safetensors"), load_file(PLAIN / "expected.safetensors")
    config = json.loads((PLAIN / "config.json").read_text())
    layer, layers = LlamaConfig(**config["transformer_layer_config"]), config["eagle_aux_hidden_state_layer_ids"]
    ids = weights.pop("d2t") + torch.arange(config["draft_vocab_size"])
    table, guesses = weights.pop("embed_tokens.weight"), len(wanted["logits"])
    assert weights.pop("t2d")[ids].all()
    head = kind(layer, table, ids, tuple(layers))
    head.load_state_dict({name.removeprefix("layers.0."): weight for name, weight in weights.items()})
    count = len(wanted["input_ids"]) - guesses + 1
    logits = head(wanted["input_ids"][None], wanted["hidden_states"][None, :count], guesses)
    torch.testing.assert_close(torch.cat(logits), wanted["logits"][:, :count], rtol=0, atol=1e-5)


def save_counting_model(folder: Path) -> None:
    """Write a Llama that prefers the token after the last one: its logits' matrix is the embedding, moved by a row."""
    model = LlamaForCausalLM.from_pretrained(tiny_llm.save(folder, num_hidden_layers=7, num_key_value_heads=6))
    with torch.no_grad():
        table = torch.nn.functional.normalize(model.model.embed_tokens.weight)
        model.model.embed_tokens.weight.copy_(table)
        model.lm_head.weight.copy_(table.roll(1, 0))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.01)
            layer.mlp.down_proj.weight.mul_(0.01)
    model.save_pretrained(folder)


def test_a_trained_head_builds_and_its_guesses_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trtkit: Callable[..., Ran]
) -> None:
    config, bundle = tiny_llm.save_to_quantize(tmp_path), str(tmp_path / "bundle")
    save_counting_model(tmp_path / "model")
    letters = "".join(random.Random(0).choices(ascii_lowercase, k=4000))
    (tmp_path / "text.txt").write_text(letters)
    head = train(tmp_path, "head", monkeypatch)
    right = [int(share) for share in re.findall(r"right (\d+)%", capsys.readouterr().out)]
    assert right[0] < 10, right
    assert right[-1] > 80, right
    ran = trtkit("build", str(config), "--set", "quantize=null", "--set", f"llm.speculator={head}", "-o", bundle)
    assert ran.code == 0, ran.err
    accepted = {}
    for guesses in (0, 3):
        with LLM(bundle, runtime="reference", speculate=guesses) as llm:
            output = llm.generate(["kqxa"], tiny_llm.GREEDY)[0]
        assert output.outputs[0].text == "bcdefghijklm"
        accepted[guesses] = output.metrics.accepted_tokens
    assert accepted[0] == 0
    assert accepted[3] > 4
