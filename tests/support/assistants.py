"""Tiny Gemma 4 models with assistants (draft models that read the model's caches), and their folders."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import Gemma4AssistantConfig, Gemma4ForCausalLM, Gemma4TextConfig

from tests.support import tiny_llm
from tests.support.decoder_case import SIZES
from tests.support.decoders import model_of, rtx
from tests.support.generation import LENGTH, MAX_PREFILL, PAGE_TOKENS, case_of
from trtkit.builder.speculators import open_speculator
from trtkit.drafts.gemma4_assistant.reference import new_assistant
from trtkit.dtypes import FP32
from trtkit.llm.execution import DecoderNetwork, ReferenceDecoder
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.speculators import build_speculator

if TYPE_CHECKING:
    from transformers import Gemma4AssistantForCausalLM

MODEL: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 5,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"] + ["full_attention"] * 2,
    "sliding_window": 7,
    "global_head_dim": 12,
    "hidden_size_per_layer_input": 6,
    "final_logit_softcapping": 5.0,
}
LAYERS: dict[str, Any] = {
    **SIZES,
    "hidden_size": 20,
    "intermediate_size": 28,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "global_head_dim": 12,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
}
"""Config of an assistant for the tiny Gemma 4."""


def assistant(layers: dict[str, Any] | None = None, **fields: Any) -> Gemma4AssistantForCausalLM:
    """Return an assistant with random weights. layers, fields: changes to its text config and to its own config."""
    text = Gemma4TextConfig(**deepcopy({**LAYERS, **(layers or {})}))
    model = new_assistant(Gemma4AssistantConfig(text_config=text, **{"backbone_hidden_size": 42, **fields}))
    _randomize(model, 4)
    return model


def save_assistant(folder: Path, model: Gemma4AssistantForCausalLM) -> Path:
    """Write an assistant's folder."""
    model.save_pretrained(folder)
    return folder


def save_model(folder: Path, **changes: Any) -> Gemma4ForCausalLM:
    """Write a tiny Gemma 4 with a tokenizer; return it."""
    vocabulary = {name: len(tiny_llm.tokenizer()) for name in ("vocab_size", "vocab_size_per_layer_input")}
    config = Gemma4TextConfig(**deepcopy({**MODEL, **vocabulary, **changes}))
    model = Gemma4ForCausalLM._from_config(config, attn_implementation="eager").eval()
    _randomize(model, 5)
    model.save_pretrained(folder)
    tiny_llm.tokenizer().save_pretrained(folder)
    return model


@cache
def networks(
    page_tokens: int | None, *, in_place: bool, has_tree: bool, is_packed: bool
) -> tuple[DecoderNetwork, DecoderNetwork]:
    """Return the networks of the tiny Gemma 4 and its assistant. in_place: the model reads pages in place."""
    model, options = model_of(case_of("gemma4_text")), DecoderOptions(FP32, LENGTH, page_tokens=page_tokens)
    weights = find_weights(model.spec, model.checkpoint)
    with TemporaryDirectory() as folder:
        read = open_speculator(save_assistant(Path(folder), assistant()), model.spec)
        own = {path: np.array(array) for path, array in read.weights(weights).items()}
    graph, head = Graph(rtx()), Graph(rtx())
    own_options = {"has_all_logits": True, "has_pages_in_place": in_place, "gives_last_hidden": True}
    own_options |= {"has_tree": has_tree, "is_packed": is_packed}
    build_decoder(graph, model.spec, weights, replace(options, **own_options))
    build_speculator(head, read.spec, read.ids, own, options)
    sizes, is_paged = (67, LENGTH, MAX_PREFILL), page_tokens is not None
    return (
        DecoderNetwork(graph.layers(), graph.inputs, *sizes, has_all_logits=True, has_read_only_caches=is_paged),
        DecoderNetwork(head.layers(), head.inputs, *sizes, has_all_logits=False, has_read_only_caches=is_paged),
    )


def decoder_with_assistant(
    slots: int, pages: int | None, *, in_place: bool = False, has_tree: bool = False, is_packed: bool = False
) -> ReferenceDecoder:
    """Return the tiny Gemma 4 with its assistant, in fp64. pages: number of pages; None for linear caches."""
    network, head = networks(
        None if pages is None else PAGE_TOKENS, in_place=in_place, has_tree=has_tree, is_packed=is_packed
    )
    model = ReferenceDecoder(network, slots, widen="fp64", pool=PoolSize(pages, speculator=tuple(head.inputs)))
    model.speculator = ReferenceDecoder(head, slots, widen="fp64", pool=PoolSize(model=model.cache))
    return model


@torch.no_grad()
def _randomize(model: torch.nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("token_ordering"):
            weight.copy_(torch.randperm(len(weight)))
        elif weight.dim() > 1:
            weight.normal_(0.0, 1.5 * weight.shape[-1] ** -0.5)
        elif "norm" in name or name.endswith("layer_scalar"):
            weight.normal_(1.0, 0.3)
        elif name.endswith("bias"):
            weight.normal_(0.0, 0.3)
