"""Gemma 4's assistant against transformers: its guesses, of slots out of step, from the model's own caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.assistants import assistant, save_assistant
from tests.support.decoder_case import SIZES, YARN_ROPE, case
from tests.support.decoders import builds, model_of, relative_rms, rtx
from trtkit.builder.speculators import open_speculator
from trtkit.drafts.gemma4_assistant.reference import what_assistants_read
from trtkit.dtypes import BF16, FP16, FP32
from trtkit.models.weights import find_weights
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.speculators import DRAFT_HIDDEN, NEXT_DRAFT_HIDDEN, build_speculator
from trtkit.reference import Executor, read_layers

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.dtypes import DType

T = 24
SLIDING, FULL = "sliding_attention", "full_attention"
TARGET = {"num_hidden_layers": 8, "sliding_window": 7, "global_head_dim": 12, "hidden_size_per_layer_input": 0}
SHARING = {**TARGET, "num_kv_shared_layers": 2}
ROPES = {FULL: YARN_ROPE, SLIDING: {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}}
ONE_MATRIX = {**TARGET, "num_hidden_layers": 4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
ONE_MATRIX["layer_types"] = [FULL, SLIDING, SLIDING, FULL]
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # the model, the assistant's layers, it
    "plain": (SHARING, {}, {}),
    "untied": (SHARING, {"sliding_window": 1, "attention_bias": True}, {"tie_word_embeddings": False}),
    "clusters": (
        {**SHARING, "vocab_size": 70},
        {"vocab_size": 70, "layer_types": [SLIDING, SLIDING, FULL]},
        {"use_ordered_embeddings": True, "num_centroids": 14, "centroid_intermediate_top_k": 3},
    ),
    "one matrix": (ONE_MATRIX, {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "sliding_window": 6}, {}),
    "unshared, other ropes": (
        {**TARGET, "rope_parameters": ROPES, "global_head_dim": 8},
        {"rope_parameters": ROPES, "global_head_dim": 8, "num_hidden_layers": 1, "layer_types": [FULL]},
        {"use_ordered_embeddings": True, "num_centroids": 1, "centroid_intermediate_top_k": 1},
    ),
}


def target_of(form: str) -> Case:
    return case(f"assisted {form}", "gemma4_text", **{**SIZES, **FORMS[form][0]})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", ["linear", "window", "paged"])
@torch.inference_mode()
def test_guesses_of_slots_out_of_step_match_transformers(form: str, memory: str, tmp_path: Path) -> None:
    target, theirs = model_of(target_of(form)), assistant(FORMS[form][1], **FORMS[form][2])
    read, page = open_speculator(save_assistant(tmp_path, theirs), target.spec), 4 if memory == "paged" else None
    options, graph = DecoderOptions(FP32, T, has_kv_window=memory == "window", page_tokens=page), Graph(rtx())
    arrays = read.weights(find_weights(target.spec, target.checkpoint))
    build_speculator(graph, read.spec, read.ids, arrays, options)
    run, table = Executor(read_layers(rtx(), graph.network, graph.constants)), target.hf.get_input_embeddings()
    rows = [torch.randint(3, 67, (length,)).tolist() for length in (13, 1, 8)]
    states, shared = zip(*(what_assistants_read(target.hf, ids) for ids in rows), strict=True)
    feed = cached(
        graph, [{i: each[kind] for i, kind in enumerate(target.hf.config.layer_types)} for each in shared], page
    )
    feed["kv_lengths"] = torch.tensor([len(ids) for ids in rows]).int()
    tokens, hidden = torch.tensor([[5], [9], [40]]), torch.cat(states)
    for _ in range(3):
        outputs = run.run({**feed, "input_ids": tokens.int(), DRAFT_HIDDEN: hidden})
        given = [
            theirs(
                inputs_embeds=torch.cat([table(tokens[row : row + 1]), states[row]], -1),
                position_ids=torch.tensor([[len(ids)]]),
                shared_kv_states=shared[row],
            )
            for row, ids in enumerate(rows)
        ]
        hidden, states = outputs[NEXT_DRAFT_HIDDEN][:, None], [each.last_hidden_state for each in given]
        for row, each in enumerate(given):
            assert relative_rms(outputs["logits"][row], each.logits[0, 0]) < 1e-5
            assert relative_rms(hidden[row], states[row][0]) < 1e-5
        tokens = outputs["logits"].argmax(-1)[:, None]


def cached(graph: Graph, caches: list[dict[int, Any]], page: int | None) -> dict[str, torch.Tensor]:
    """Return the inputs that hold keys and values of layers; what a slot does not hold is large, so that it shows."""
    feed = {}
    for spec in graph.inputs:
        if spec.feeder == "cache":
            kind, index = spec.name.removeprefix("past_").split("_")
            slots = torch.full((len(caches), spec.shape[1], T, spec.shape[3]), 100.0)
            for slot, layers in zip(slots, caches, strict=True):
                held = layers[int(index)][kind == "value"][0]
                slot[:, : held.shape[1]] = held
            pages = [torch.cat(slots.split(page, 2)), torch.full((1, *spec.shape[1:]), 100.0)] if page else []
            feed[spec.name] = torch.cat(pages) if page else slots
    if page:
        count = len(caches)
        feed["page_table"] = (torch.arange(count)[:, None] + count * torch.arange(16 // page)).int()
    if any(spec.name == "key_positions" for spec in graph.inputs):
        feed["key_positions"] = torch.arange(16).int()
    return feed


@pytest.mark.parametrize(("form", "dtype", "page"), [("clusters", FP16, 4), ("plain", BF16, None)])
def test_engine_of_an_assistant_builds(form: str, dtype: DType, page: int | None, tmp_path: Path) -> None:
    target, theirs = model_of(target_of(form)), assistant(FORMS[form][1], **FORMS[form][2])
    read, graph = open_speculator(save_assistant(tmp_path, theirs), target.spec), Graph(rtx())
    arrays = read.weights(find_weights(target.spec, target.checkpoint))
    build_speculator(graph, read.spec, read.ids, arrays, DecoderOptions(dtype, T, page_tokens=page))
    assert builds(graph, has_decode=True)
