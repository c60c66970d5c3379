"""Latent attention: caches, computation of a step, precisions, ranks, refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.decoder_cases import CASES
from tests.support.decoders import graph_of, model_of
from tests.unit.planning.planned import counted
from trtkit.dtypes import FP16
from trtkit.errors import SourceError
from trtkit.models.parallel import Grid
from trtkit.models.registry import decoder_spec
from trtkit.network.decoder_options import DecoderOptions
from trtkit.planning.decoder_model import decoder_model, formulas, workload
from trtkit.planning.formats import FORMATS
from trtkit.planning.shares import grid_shares
from trtkit.quantization.llm.choice import linear_layers

if TYPE_CHECKING:
    from trtkit.models.spec import DecoderSpec

CASE = next(case for case in CASES if case.name == "minicpm3")
# DeepSeek's sizes of attention, in a small model. Source: https://arxiv.org/abs/2412.19437, section 4.2.
FIELDS: dict[str, Any] = {
    "model_type": "minicpm3", "hidden_size": 256, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 101,
    "num_attention_heads": 16, "max_position_embeddings": 4096, "q_lora_rank": 192, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
LAYERS, HEADS, CACHED = 3, 16, 576


def spec_of(**changes: Any) -> DecoderSpec:
    return decoder_spec({**FIELDS, **changes})


def test_a_layer_has_one_cache_that_all_heads_share() -> None:
    caches = [spec for spec in graph_of(model_of(CASE), DecoderOptions(FP16, 32)).inputs if spec.feeder == "cache"]
    assert [(spec.name, spec.shape) for spec in caches] == [
        (f"past_latent_{index}", (-1, 1, 32, 24)) for index in range(2)
    ]
    assert [spec.updated for spec in caches] == ["present_latent_0", "present_latent_1"]


def test_a_plan_counts_576_values_a_token_and_layer() -> None:
    model, counts = decoder_model("tiny", spec_of(), FP16), counted(FIELDS)
    assert model.kv_bytes_per_token == 2 * LAYERS * CACHED
    work = workload(model, 100, 28, concurrency=1, chunk=64)
    assert formulas(model, counts, work).kv_bytes_per_token.counted == 2 * LAYERS * CACHED


def test_a_step_expands_no_cached_token() -> None:
    """A cached token costs two products with each head's query of 576, and softmax: not 512 * (128 + 128) a head."""
    counts = counted(FIELDS)
    short, long = (sum(poly.at((1, 1, length)) for poly in counts.products.values()) for length in (64, 1064))
    assert (long - short) / (1000 * LAYERS * HEADS) == 2 * 2 * CACHED + 5


def test_ranks_share_heads_and_each_has_the_whole_cache() -> None:
    spec, counts = spec_of(), counted(FIELDS)
    model = decoder_model("tiny", spec, FP16)
    shares = {share.grid: share for share in grid_shares(model, counts, spec, Grid(2))}
    one, two = shares[Grid()], shares[Grid(2)]
    assert one.kv_per_token == two.kv_per_token == 2 * LAYERS * CACHED
    whole = {group.name: group.weight_bytes for group in counts.groups}
    halved = {group.name: group.weight_bytes for group in two.counts.groups}
    assert halved["latent projections"] == whole["latent projections"]
    assert halved["latent expansion"] == whole["latent expansion"] // 2


def test_all_matrices_but_the_expansion_are_quantized() -> None:
    names = {layer.name.removeprefix("layers.0.attention.") for layer in linear_layers(spec_of())}
    assert {name for name in names if "." not in name and name != "lm_head"} == {"q_a", "q_b", "kv_a", "o"}


def test_a_plan_offers_8_bit_caches() -> None:
    latent = decoder_model("tiny", spec_of(), FP16)
    assert [form.name for form in FORMATS if form.kv_bits and latent.takes(form)] == [
        "fp8 cache",
        "int4 weights, fp8 cache",
    ]


def test_an_odd_size_that_turns_is_refused() -> None:
    with pytest.raises(SourceError) as caught:
        spec_of(qk_rope_head_dim=5)
    assert "`qk_rope_head_dim` is 5; expected an even number" in str(caught.value)
