"""Quantized experts: a step gathers only the selected experts' codes and dequantizes them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch

from tests.support.decoders import Runner, T, builds, relative_rms, rtx
from tests.support.quantized_checkpoints import WEIGHT_ONLY, save_mixture
from trtkit.dtypes import FP16, FP32, DType
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.sources.decoder_source import DecoderSource, open_hf_folder
from trtkit.sources.huggingface.model import causal_lm

IDS = torch.randint(3, 72, (2, 21), generator=torch.Generator().manual_seed(1))
PACKED = [name for name in WEIGHT_ONLY if name != "gptq-act-order"]


@cache
def opened(name: str) -> DecoderSource:
    return open_hf_folder(save_mixture(Path(mkdtemp()), name))


def packed(name: str, dtype: DType) -> Graph:
    source, graph = opened(name), Graph(rtx())
    spec = decoder_spec(source.config)
    options = DecoderOptions(dtype, T, has_all_logits=True, experts="chosen")
    build_decoder(graph, spec, find_weights(spec, source.checkpoint), options)
    return graph


def packed_layers(graph: Graph) -> set[str]:
    return {name for name, form in graph.quantized.items() if form.is_packed}


@pytest.mark.parametrize("name", PACKED)
def test_logits_are_those_of_transformers_on_the_dequantized_weights(name: str) -> None:
    """Zero points too. A prefill reads all five experts, a step of one token two."""
    graph = packed(name, FP32)
    assert len(packed_layers(graph)) == 2 * 5 * 3
    runner = Runner(graph)
    with torch.inference_mode():
        want = causal_lm(opened(name))(IDS).logits
    for rows, sizes in ((slice(2), (21,)), (slice(1), (7, *[1] * 14))):
        runner.reset(len(IDS[rows]))
        found = [runner.step(part)["logits"] for part in IDS[rows].split(sizes, 1)]
        assert relative_rms(torch.cat(found, 1), want[rows]) < 1e-5


@pytest.mark.parametrize("name", ["gptq", "fp8-blocks"])
def test_networks_build(name: str) -> None:
    assert builds(packed(name, FP16), [89 if "fp8" in name else 80])


def test_experts_that_change_their_inputs_are_all_read() -> None:
    assert not packed_layers(packed("gptq-act-order", FP32))
    assert not packed_layers(packed("int8-by-token", FP32))
