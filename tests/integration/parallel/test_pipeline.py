"""Packed calls on pipeline stages, in parts, give what transformers gives; TensorRT builds every stage."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.integration.test_packed_calls import LENGTH, LINEAR, PAGED, SLOTS, WINDOW, check_steps, logits_of
from tests.selection import slow_unless
from tests.support.decoders import builds, model_of, read_network, rtx
from tests.support.generation import case_of
from trtkit.dtypes import FP16, FP32, DType
from trtkit.llm.distributed.micro_batches import split_packed
from trtkit.llm.execution import ReferenceDecoder
from trtkit.llm.execution.network import DecoderNetwork
from trtkit.models.parallel import Grid, rank_spec
from trtkit.models.rank_weights import RankWeights
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.decoder_case import Case
    from trtkit.llm.execution.packed import PackedCall

FAMILIES = ("llama", "gemma2", "gpt_oss", "deepseek_v2", "opt", "bloom", "mamba2", "falcon_h1", "qwen3_5_text")
QUICK = {("llama", "paged"), ("gpt_oss", "window"), ("falcon_h1", "paged"), ("mamba2", "linear"), ("opt", "linear")}
CACHES: dict[str, dict[str, Any]] = {"linear": LINEAR, "window": WINDOW, "paged": PAGED}
PAIRS = [
    (case_of(name), kind)
    for name, kind in itertools.product(FAMILIES, CACHES)
    if kind == "linear" or name not in ("mamba2", "qwen3_5_text")  # whose first stage has no KV caches
]


def graphs_of(case: Case, stages: int, dtype: DType = FP32, **options: Any) -> Iterator[Graph]:
    """Yield the packed networks of all stages."""
    model, grid = model_of(case), Grid(pipeline=stages)
    whole = find_weights(model.spec, model.checkpoint)
    for stage in range(stages):
        spec, graph = rank_spec(model.spec, grid, stage), Graph(rtx())
        weights = RankWeights(model.spec, spec, whole)
        build_decoder(graph, spec, weights, DecoderOptions(dtype, LENGTH, is_packed=True, **options))
        yield graph


class Stages:
    """The stages of a pipeline, one after the other, which run each call in some parts."""

    def __init__(self, case: Case, stages: int, **options: Any) -> None:
        self._random, sizes = random.Random(stages), (model_of(case).spec.vocab_size, LENGTH, LENGTH, True)
        self._decoders = [
            ReferenceDecoder(
                read_network(
                    DecoderNetwork(graph.layers(), graph.inputs, *sizes, has_read_only_caches="page_tokens" in options)
                ),
                SLOTS,
            )
            for graph in graphs_of(case, stages, **options)
        ]
        self.cache, self.packed, self.calls, self.parts = self._decoders[0].cache, self, 0, 0
        for decoder in self._decoders[1:]:
            decoder.cache.follow()
        self._needs_neighbors = any(decoder.cache.needs_neighbors for decoder in self._decoders)

    def forward_packed(self, call: PackedCall) -> torch.Tensor:
        """Return the logits [N, V] of the last stage."""
        parts, logits = split_packed(call.placed(self.cache.assign), self._random.randint(1, 4), LENGTH), []
        self.calls, self.parts = self.calls + 1, self.parts + len(parts)
        for part in parts:
            hidden = None
            for decoder in self._decoders:
                hidden = decoder.forward_packed(replace(part, hidden=hidden))
            assert hidden is not None
            logits.append(hidden)
        return torch.cat(logits)


@pytest.mark.parametrize(
    ("case", "kind"), slow_unless(lambda case, kind: (case.model_type, kind) in QUICK, PAIRS), ids=str
)
def test_stages_give_what_transformers_gives(case: Case, kind: str) -> None:
    """In calls in which slots decode, with guesses, and others read pieces of any length."""
    stages = Stages(case, min(3, len(model_of(case).spec.layers)), **CACHES[kind])
    check_steps(stages, logits_of(case), are_neighbors=stages._needs_neighbors)
    assert stages.parts > 1.5 * stages.calls


BUILT = [case_of(name) for name in ("nemotron_h", "llama", "gpt_oss", "deepseek_v2", "mamba2", "falcon_h1")]


@pytest.mark.parametrize("case", slow_unless(lambda case: case.model_type == "nemotron_h", BUILT), ids=str)
def test_every_stage_builds_with_both_profiles(case: Case) -> None:
    """A stage of Nemotron-H may have neither attention nor states."""
    stages = len(model_of(case).spec.layers)
    for graph in graphs_of(case, stages, FP16):
        assert builds(graph, has_decode=True)
