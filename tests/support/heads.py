"""Tiny Llamas with draft heads of each kind, in fp64."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from tests.support.decoders import model_of, rtx
from tests.support.eagle3 import Head, fields_of, save_head
from tests.support.generation import LENGTH, MAX_PREFILL, PAGE_TOKENS, case_of
from tests.support.medusa import save_random
from trtkit.builder.speculators import open_speculator
from trtkit.dtypes import FP32
from trtkit.llm.execution import DecoderNetwork, ReferenceDecoder
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.network.speculators import build_speculator

LAYERS = (0, 1)
"""Layers whose inputs the heads read."""


@cache
def torch_head() -> Head:
    """Return a head with random weights, for the tiny Llama."""
    torch.manual_seed(3)
    fields = fields_of(67, eagle_aux_hidden_state_layer_ids=list(LAYERS))
    return Head(fields, layers=len(LAYERS)).eval()


def saved_head(folder: Path, kind: str) -> Path:
    """Save a head of a kind for the tiny Llama."""
    return save_head(folder, torch_head()) if kind == "eagle3" else save_random(folder, (42, 67), heads=4)


@cache
def networks(
    page_tokens: int | None, kind: str, *, in_place: bool, has_tree: bool, is_packed: bool
) -> tuple[DecoderNetwork, DecoderNetwork]:
    """Return the networks of the model and its head. in_place: the model reads pages in place."""
    model, options = model_of(case_of("llama")), DecoderOptions(FP32, LENGTH, page_tokens=page_tokens)
    own_options = replace(
        options, has_all_logits=True, has_pages_in_place=in_place, has_tree=has_tree, is_packed=is_packed
    )
    with TemporaryDirectory() as folder:
        read = open_speculator(saved_head(Path(folder), kind), model.spec)
        fusion, own = ({path: np.array(array) for path, array in each.items()} for each in (read.fusion, read.arrays))
    graph, head = Graph(rtx()), Graph(rtx())
    own_options = replace(own_options, fusion=read.spec.fusion, gives_last_hidden=read.spec.fusion is None)
    weights = {**find_weights(model.spec, model.checkpoint), **fusion}
    build_decoder(
        graph,
        model.spec,
        weights,
        replace(own_options, fusion=read.spec.fusion, gives_last_hidden=read.spec.fusion is None),
    )
    build_speculator(head, read.spec, read.ids, own, options)
    sizes, is_paged = (67, LENGTH, MAX_PREFILL), page_tokens is not None
    return (
        DecoderNetwork(graph.layers(), graph.inputs, *sizes, has_all_logits=True, has_read_only_caches=is_paged),
        DecoderNetwork(head.layers(), head.inputs, *sizes, has_all_logits=False, has_read_only_caches=is_paged),
    )


def decoder_with_head(
    slots: int,
    pages: int | None,
    kind: str = "eagle3",
    *,
    in_place: bool = False,
    has_tree: bool = False,
    is_packed: bool = False,
) -> ReferenceDecoder:
    """Return the tiny Llama with its head. pages: number of pages; None for linear caches."""
    page_tokens = None if pages is None else PAGE_TOKENS
    network, head = networks(page_tokens, kind, in_place=in_place, has_tree=has_tree, is_packed=is_packed)
    model = ReferenceDecoder(network, slots, widen="fp64", pool=PoolSize(pages, speculator=tuple(head.inputs)))
    model.speculator = ReferenceDecoder(head, slots, widen="fp64", pool=PoolSize(model=model.cache))
    return model
