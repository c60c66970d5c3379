"""Medusa heads against ModelOpt (golden/speculators/make_medusa.py), in each published format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.decoders import model_of, relative_rms, rtx
from tests.support.generation import case_of
from tests.support.medusa import save_medusa
from trtkit.builder.speculators import open_speculator
from trtkit.drafts.medusa.network import build_network
from trtkit.drafts.medusa.reference import medusa_logits
from trtkit.dtypes import FP32
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.speculators import DRAFT_HIDDEN
from trtkit.reference import Executor, read_layers

if TYPE_CHECKING:
    import numpy as np

    from trtkit.builder.speculators import OpenedSpeculator
    from trtkit.models.spec import DecoderSpec

GOLDEN = Path(__file__).parents[2] / "golden" / "speculators"
TOKENS = torch.tensor([66, 3, 12, 40, 5])
Weights = dict[str, torch.Tensor]


def target() -> DecoderSpec:
    """Return a model of the golden heads' sizes."""
    return replace(model_of(case_of("llama")).spec, hidden_size=20)


def logits_of(head: OpenedSpeculator, hidden: torch.Tensor, of_model: dict[str, np.ndarray] | None = None) -> Any:
    """Return the network's logits [heads, S, V] of hidden states, and those of the reference for known tokens."""
    graph, arrays = Graph(rtx()), head.weights(of_model or {})
    build_network(graph, head.spec, head.ids, arrays, DecoderOptions(FP32, 8))
    run = Executor(read_layers(rtx(), graph.network, graph.constants))
    logits = run.run({DRAFT_HIDDEN: hidden})["logits"]
    return logits.view(len(hidden), head.spec.heads, -1).transpose(0, 1), medusa_logits(head.spec, arrays, hidden)


@pytest.mark.parametrize("form", ["medusa", "medusa_deep", "medusa_flat"])
def test_heads_match_modelopt(form: str) -> None:
    expected = load_file(GOLDEN / form / "expected.safetensors")
    ours, reference = logits_of(open_speculator(GOLDEN / form, target()), expected["hidden_states"])
    assert relative_rms(ours, expected["logits"]) < 1e-5
    assert relative_rms(reference, expected["logits"]) < 1e-5  # what `trtkit verify` compares with


def as_vllm(weights: Weights, tokens: torch.Tensor | None) -> Weights:
    """Return FasterDecoding's weights, of one layer a head, by vLLM's names."""
    renamed = {}
    for name, weight in weights.items():
        head, layer, *rest = name.split(".")
        renamed[f"blocks.{head}.layers.0.{rest[-1]}" if layer == "0" else f"lm_heads.{head}.weight"] = weight
    return renamed if tokens is None else {**renamed, "token_map": tokens}


def vllm_fields(**changes: Any) -> dict[str, Any]:
    sizes = {"hidden_size": 20, "vocab_size": 67, "num_heads": 3, "num_hidden_layers": 1, "medusa_fc_bias": True}
    idle = {"max_paths": 64, "topk": 10, "torch_dtype": "float16"}
    return {"model_type": "medusa", "architectures": ["MedusaModel"], **sizes, **idle, **changes}


@pytest.mark.parametrize("rows", ["all", "own"])
def test_vllms_heads_guess_some_tokens(rows: str, tmp_path: Path) -> None:
    golden, expected = load_file(GOLDEN / "medusa/model.safetensors"), load_file(GOLDEN / "medusa/expected.safetensors")
    if rows == "own":
        golden = {name: weight[TOKENS] if name.endswith(".1.weight") else weight for name, weight in golden.items()}
    fields = vllm_fields(truncated_vocab_size=len(TOKENS), logit_scale=0.5)
    head = open_speculator(save_medusa(tmp_path, as_vllm(golden, TOKENS), **fields), target())
    ours, reference = logits_of(head, expected["hidden_states"])
    theirs = 0.5 * expected["logits"][..., TOKENS]
    assert relative_rms(ours[..., TOKENS], theirs) < 1e-5
    assert relative_rms(reference, theirs) < 1e-5
    assert set(ours.argmax(-1).unique().tolist()) <= set(TOKENS.tolist())


def test_vllms_heads_share_one_matrix_and_have_no_biases(tmp_path: Path) -> None:
    golden = load_file(GOLDEN / "medusa/model.safetensors")
    weights = {name: weight for name, weight in golden.items() if not name.endswith("bias")}
    zeros = {name: torch.zeros_like(weight) for name, weight in golden.items() if name.endswith("bias")}
    shared = {f"{head}.1.weight": weights["0.1.weight"] for head in range(3)}
    apart = save_medusa(
        tmp_path / "apart", {k: v.clone() for k, v in {**weights, **zeros, **shared}.items()}, medusa_num_heads=3
    )
    for name in ("1.1.weight", "2.1.weight"):
        weights.pop(name)
    fields = vllm_fields(original_lm_head=True)
    fields.pop("medusa_fc_bias")
    joined = save_medusa(tmp_path / "joined", as_vllm(weights, None), **fields)
    hidden = load_file(GOLDEN / "medusa/expected.safetensors")["hidden_states"]
    heads = [open_speculator(folder, target()) for folder in (joined, apart)]
    ours, reference = logits_of(heads[0], hidden)
    theirs = logits_of(heads[1], hidden)[0]
    assert relative_rms(ours, theirs) < 1e-5
    assert relative_rms(reference, theirs) < 1e-5


@pytest.mark.parametrize("is_tied", [False, True])
def test_heads_without_matrices_use_the_models(is_tied: bool, tmp_path: Path) -> None:
    golden, expected = load_file(GOLDEN / "medusa/model.safetensors"), load_file(GOLDEN / "medusa/expected.safetensors")
    matrix = golden["1.1.weight"]
    weights = {name: weight for name, weight in golden.items() if not name.endswith(".1.weight")}
    spec = replace(target(), head=replace(target().head, is_tied=is_tied))
    head = open_speculator(save_medusa(tmp_path, weights, medusa_num_heads=3, version="2"), spec)
    name = "embedding.weight" if is_tied else "lm_head.weight"
    ours, _ = logits_of(head, expected["hidden_states"], {name: matrix.numpy()})
    assert relative_rms(ours[1], expected["logits"][1]) < 1e-5
    assert relative_rms(ours[0], expected["logits"][0]) > 0.1


@pytest.mark.parametrize(
    ("prefix", "fields"),
    [
        ("medusa_heads.", {"medusa": {"num_medusa_heads": 3, "num_medusa_layers": 1}}),  # ModelOpt
        ("medusa_head.", {"medusa_num_heads": 3, "medusa_num_layers": 1}),  # FasterDecoding
    ],
)
def test_heads_that_are_stored_with_their_model(prefix: str, fields: dict[str, Any], tmp_path: Path) -> None:
    golden, expected = load_file(GOLDEN / "medusa/model.safetensors"), load_file(GOLDEN / "medusa/expected.safetensors")
    weights = {f"{prefix}{name}": weight for name, weight in golden.items()} | {"model.norm.weight": torch.ones(20)}
    of_model = {"model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 7, "rope_theta": 5}
    head = open_speculator(save_medusa(tmp_path, weights, **of_model, **fields), target())
    assert relative_rms(logits_of(head, expected["hidden_states"])[0], expected["logits"]) < 1e-5


def test_first_heads_of_the_files_are_used_as_the_config_says(tmp_path: Path) -> None:
    """FasterDecoding's `medusa-vicuna-7b-v1.3` has five heads and a config of two."""
    golden, expected = load_file(GOLDEN / "medusa/model.safetensors"), load_file(GOLDEN / "medusa/expected.safetensors")
    fields = {"medusa_num_heads": 2, "medusa_num_layers": 1, "model_type": "llama", "version": "1"}
    head = open_speculator(save_medusa(tmp_path, golden, **fields), target())
    assert relative_rms(logits_of(head, expected["hidden_states"])[0], expected["logits"][:2]) < 1e-5
    assert "heads: 2 of 3, layers in each: 1" in head.spec.description
