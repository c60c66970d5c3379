"""EAGLE-3 heads against the library `speculators` (golden/speculators/make.py), and against transformers' layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.decoders import model_of, relative_rms, rtx
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.generation import case_of
from trtkit.builder.speculators import open_speculator
from trtkit.drafts.eagle3.network import build_network
from trtkit.drafts.eagle3.reference import Eagle3Reference
from trtkit.dtypes import FP32
from trtkit.models.speculators import open_kind
from trtkit.models.weights import find_weights
from trtkit.network.blocks.weights import Weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.input_spec import BATCH, NEW_TOKENS, Axis, InputSpec
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN, fused
from trtkit.reference import Executor, read_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.builder.speculators import OpenedSpeculator

T = 24
GOLDEN = Path(__file__).parents[2] / "golden" / "speculators"
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrow": {
        "hidden_size": 40,
        "target_hidden_size": 42,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
    },
    "norms": {"norm_before_residual": True, "norm_output": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "rope": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


def opened(folder: Path, head: Head, **saved: Any) -> OpenedSpeculator:
    """Save a head and open it for the tiny Llama."""
    return open_speculator(save_head(folder, head, **saved), model_of(case_of("llama")).spec)


def fused_network(graph: Graph, read: OpenedSpeculator) -> None:
    """Write what a model computes for its head, of given hidden states."""
    axes = (BATCH, NEW_TOKENS, Axis("hidden_size", read.spec.target_hidden_size))
    states = {
        layer: graph.take(InputSpec(f"hidden_{layer}", "fp32", axes, "stage")) for layer in read.spec.fusion.layers
    }
    graph.output(fused(Weights(graph, read.fusion, FP32), states, read.spec.fusion), "fused")


def step(place: slice, ids: torch.Tensor, hidden: torch.Tensor, counts: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return a head's inputs for the tokens and hidden states of some positions, of which rows have `counts`."""
    last = torch.tensor(counts) - 1
    return {
        "input_ids": ids.int(),
        DRAFT_HIDDEN: hidden,
        "position_ids": torch.arange(place.start, place.stop).expand(len(ids), -1).int(),
        "write_indices": torch.full((len(ids),), place.start).int(),
        "kv_lengths": (place.start + 1 + last).int(),
        "last_token_index": last.int(),
    }


@pytest.mark.parametrize("form", ["plain", "normed", "qwen3"])
@torch.inference_mode()
def test_chains_of_guesses_match_the_library(form: str) -> None:
    folder = GOLDEN / form
    target = replace(model_of(case_of("llama")).spec, hidden_size=24, layers=model_of(case_of("llama")).spec.layers * 3)
    read, known = open_speculator(folder, target), load_file(folder / "expected.safetensors")
    ids, states = known["input_ids"][None], known["hidden_states"][None].chunk(3, -1)
    assert read.spec.fusion.layers == (1, 2, 4)
    feed = {f"hidden_{layer}": state for layer, state in zip((1, 2, 4), states, strict=True)}
    hidden = executor(fused_network, read)[1].run(feed)["fused"]
    graph, run = executor(build_network, read.spec, read.ids, read.arrays, DecoderOptions(FP32, T))
    theirs = Eagle3Reference(read, read.arrays)  # what `trtkit verify` compares with
    of_each = {layer: state[0] for layer, state in zip((1, 2, 4), states, strict=True)}
    assert relative_rms(theirs.fuse(of_each), hidden[0]) < 1e-5
    assert relative_rms(theirs(ids[0].tolist(), hidden[0])[0], known["logits"][0]) < 1e-5
    caches = [spec for spec in graph.inputs if spec.is_kept]
    for length in (1, 2, 7, 10):  # after each, the tokens that follow as guesses, as the library does
        past = {spec.name: torch.full(spec.shape_at({"batch": 1}), 100.0) for spec in caches}
        spans = [slice(0, length), *(slice(at, at + 1) for at in range(length, length + 2))]
        new = hidden[:, :length]
        for index, span in enumerate(spans):
            outputs = run.run({**step(span, ids[:, span], new, [span.stop - span.start]), **past})
            past, new = {spec.name: outputs[spec.updated] for spec in caches}, outputs[NEXT_DRAFT_HIDDEN][:, None]
            logits = outputs["logits"][0]
            assert relative_rms(logits[read.ids.tolist()], known["logits"][index, length - 1]) < 1e-5
            assert int(logits.argmax()) in read.ids


def executor(build: Any, *arguments: Any) -> tuple[Graph, Executor]:
    """Return a network and what runs it."""
    graph = Graph(rtx())
    build(graph, *arguments)
    return graph, Executor(read_layers(rtx(), graph.network, graph.constants))


@pytest.mark.parametrize("form", FORMS)
@torch.inference_mode()
def test_head_matches_torch(form: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    head = Head(
        fields_of(67, draft_vocab_size=31, eagle_config={"eagle_aux_hidden_state_layer_ids": [0]}, **FORMS[form]),
        layers=1,
    )
    read = opened(tmp_path, head, ids=list(range(3, 65, 2)), is_nested=form == "norms")
    assert read.spec.fusion.layers == ((0,) if form == "norms" else (1,))  # in `eagle_config`, the output of layer 0
    options = DecoderOptions(FP32, T)
    arrays = {"embedding.weight": head.embed_tokens.weight.numpy(), **read.arrays}
    graph, run = executor(build_network, read.spec, read.ids, arrays, options)
    size, caches = read.spec.decoder.hidden_size, [spec for spec in graph.inputs if spec.is_kept]
    past = {spec.name: torch.full(spec.shape_at({"batch": 2}), 100.0) for spec in caches}
    ids, hidden = torch.randint(67, (2, 13)), torch.randn(2, 13, size)
    logits, states = head(ids, hidden)
    for start, stop in ((0, 6), (6, 7), (7, 13)):
        counts = [stop - start, max(1, stop - start - 2)]  # the second row has padding
        feed = step(slice(start, stop), ids[:, start:stop], hidden[:, start:stop], counts)
        outputs = run.run({**feed, **past})
        past = {spec.name: outputs[spec.updated] for spec in caches}
        for row in range(2 if start == 0 else 1):
            last = start + counts[row] - 1
            assert relative_rms(outputs["logits"][row, read.ids.tolist()], logits[row, last]) < 1e-5
            assert relative_rms(outputs[NEXT_DRAFT_HIDDEN][row], states[row, last]) < 1e-5


@pytest.mark.parametrize("norm", [False, True])
@torch.inference_mode()
def test_model_gives_its_head_hidden_states(norm: bool, tmp_path: Path) -> None:
    model = model_of(case_of("llama"))
    fields = fields_of(67, eagle_aux_hidden_state_layer_ids=[1, 0], norm_before_fc=norm)
    read = opened(tmp_path, head := Head(fields, fc_bias=norm, layers=2))
    arrays = {**find_weights(model.spec, model.checkpoint), **read.fusion}
    graph, run = executor(build_decoder, model.spec, arrays, DecoderOptions(FP32, T, fusion=read.spec.fusion))
    past = {spec.name: torch.full(spec.shape_at({"batch": 1}), 100.0) for spec in graph.inputs if spec.is_kept}
    ids = torch.randint(67, (1, 11))
    feed = {
        "input_ids": ids.int(),
        "position_ids": torch.arange(11)[None].int(),
        "write_indices": torch.zeros(1).int(),
        "kv_lengths": torch.full((1,), 11).int(),
        "last_token_index": torch.full((1,), 10).int(),
    }
    outputs, states = run.run({**feed, **past}), model.hf(ids, output_hidden_states=True).hidden_states
    assert relative_rms(outputs[NEXT_DRAFT_HIDDEN], head.fuse(torch.cat(states[:2], -1))) < 1e-5


@pytest.mark.parametrize(
    ("model_type", "obstacle"),
    [
        ("mamba2", "recurrent states"),
        ("granite", "scales, norms or adds positions"),
        ("gemma3n_text", "one hidden state"),
    ],
)
def test_models_that_no_head_fits_are_named(model_type: str, obstacle: str) -> None:
    spec = model_of(case_of(model_type)).spec
    assert obstacle in " ".join(open_kind("eagle3").obstacles(spec))
    assert not list(open_kind("medusa").obstacles(spec))
