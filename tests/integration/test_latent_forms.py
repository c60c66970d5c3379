"""Latent attention with expanded keys and values, from the caches of the compressed form, against transformers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tests.integration.test_latent_attention import FIELDS, HEADS, LAYERS
from tests.selection import slow_unless
from tests.support.covering import CACHED, in_covering_set_of, spec_of
from tests.support.decoder_case import LATENT, NO_HEAD_DIM, Case, case
from tests.support.decoder_cases import CASES
from tests.support.decoders import Runner, T, builds, graph_of, model_of, relative_rms
from tests.support.engine_decoders import config_of
from tests.support.generation import network_of
from tests.unit.planning.planned import counted
from trtkit.builder.build import build_bundle
from trtkit.dtypes import FP16, FP32
from trtkit.errors import ConfigError
from trtkit.jobs.runner import new_runner
from trtkit.llm.execution.call import Call
from trtkit.llm.execution.reference import ReferenceDecoder
from trtkit.network.decoder_options import DecoderOptions

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.randint(3, 67, (6, 21), generator=torch.Generator().manual_seed(1))
EXPANDED = DecoderOptions(FP32, T, has_all_logits=True, expands_latent=True)
MINICPM = {**LATENT, "scale_emb": 3, "scale_depth": 1.2, "dim_model_base": 16}
VALUES = [case(f"values-of-{size}", "minicpm3", *NO_HEAD_DIM, **{**MINICPM, "v_head_dim": size}) for size in (16, 18)]
FAMILIES = [*(each for each in CASES if any(own.latent for own in spec_of(each).attentions)), *VALUES]
families = pytest.mark.parametrize("case", FAMILIES, ids=str)


@cache
def runner_of(case: Case) -> Runner:
    return Runner(graph_of(model_of(case), EXPANDED))


@families
@pytest.mark.parametrize("chunk", [21, 8, 1])
def test_logits_are_those_of_transformers(case: Case, chunk: int) -> None:
    runner = runner_of(case)
    runner.reset(6)
    logits = torch.cat([runner.step(part)["logits"] for part in IDS.split(chunk, 1)], 1)
    assert relative_rms(logits, model_of(case).logits(IDS)) <= 1e-5


@families
def test_slots_of_different_lengths_give_what_each_gives_alone(case: Case) -> None:
    runner, counts = runner_of(case), [13, 1, 6]
    runner.reset(3)
    runner.step(IDS[:3, :13], counts)
    column = torch.stack([row[count] for row, count in zip(IDS[:3], counts, strict=True)])
    decoded = runner.step(column[:, None])["logits"]
    for slot, count in enumerate(counts):
        want = model_of(case).logits(IDS[slot : slot + 1, : count + 1])[0, -1]
        assert relative_rms(decoded[slot, 0], want) <= 1e-5


@pytest.mark.parametrize("page_tokens", [None, 8])
def test_what_one_form_has_cached_the_other_reads(page_tokens: int | None) -> None:
    """As a worker that computes prompts lends them to one that generates."""
    tested = FAMILIES[0]
    prompts, steps = (
        ReferenceDecoder(network_of(tested, page_tokens=page_tokens, expands_latent=expands), 2)
        for expands in (True, False)
    )
    ids = IDS[:1].numpy()
    prompts.forward(Call(0, ids[:, :8], np.array([0]), np.array([8])))
    prompts.forward(Call(0, ids[:, 8:15], np.array([8]), np.array([7])))
    steps.cache.load(1, prompts.cache.save(0, 15))
    for at in range(15, 21):
        logits = steps.forward(Call(1, ids[:, at : at + 1], np.array([at]), np.array([1])))
        want = model_of(tested).logits(IDS[:1, : at + 1])[0, -1]
        assert relative_rms(logits[0], want) <= 1e-5


@pytest.mark.parametrize("case", slow_unless(in_covering_set_of(FAMILIES, CACHED), FAMILIES), ids=str)
def test_networks_build_in_fp16(case: Case) -> None:
    """With caches in slots, of which a step reads a part, and in pages."""
    for options in ({"has_kv_window": True}, {"page_tokens": 8}):
        assert builds(
            graph_of(model_of(case), DecoderOptions(FP16, T, expands_latent=True, **options)), has_decode=True
        )


def test_heads_of_published_sizes_have_fused_attention() -> None:
    """DeepSeek's have 192 elements in this form and 576 in the other, for which TensorRT-RTX has no fused kernel."""
    sizes = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    model = model_of(case("published-heads", "minicpm3", *NO_HEAD_DIM, **{**MINICPM, **sizes}))
    for expands, size in ((True, 192), (False, 576)):
        graph = graph_of(model, DecoderOptions(FP16, T, expands_latent=expands))
        layers = [graph.backend.typed(graph.network.get_layer(index)) for index in range(graph.network.num_layers)]
        attention = [layer for layer in layers if layer.type == graph.backend.trt.LayerType.ATTENTION_INPUT]
        assert [layer.get_input(0).shape[-1] for layer in attention] == [size] * 2
        for layer in attention:
            layer.attention.decomposable = False  # TensorRT-RTX then refuses what has no fused kernel
        assert builds(graph) == expands


def test_a_plan_counts_the_keys_and_values_of_every_cached_token() -> None:
    """Next to attention among heads of 192: two products of 512 elements with 128 + 192 rows, zeros among these."""
    counts = counted(FIELDS, latent_attention="expanded")
    short, long = (sum(poly.at((1, 1, length)) for poly in counts.products.values()) for length in (64, 1064))
    assert (long - short) / (1000 * LAYERS * HEADS) == 2 * 512 * (128 + 192) + 2 * 2 * 192 + 5


def test_a_model_without_latent_attention_is_refused(tmp_path: Path) -> None:
    config = config_of(CASES[0], tmp_path, latent_attention="expanded")
    with pytest.raises(ConfigError, match=r"llm.latent_attention: `expanded` does not apply to a model without latent"):
        build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False)
    assert not (tmp_path / "bundle").exists()
