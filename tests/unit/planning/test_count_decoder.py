"""Counts of decoders against torch's FLOP counter, transformers' parameters and caches, and published figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from tests.support.decoder_cases import CASES
from tests.unit.models import test_published_configs as published
from tests.unit.planning.planned import TINY_LLAMA, counted, published_counts, published_model, question
from trtkit.backends import load_backend
from trtkit.dtypes import FP16
from trtkit.models.registry import decoder_spec
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.describe import describe
from trtkit.planning.count_decoder import group_of
from trtkit.planning.decoder_model import decoder_model, formulas
from trtkit.planning.source import architectures
from trtkit.planning.traffic import network_cost
from trtkit.sources.huggingface import auto_classes

if TYPE_CHECKING:
    from tests.support.decoder_case import Case
    from trtkit.network.graph import Graph
    from trtkit.planning.counts import NetworkCounts, Point

GIB = 2**30
NAMES = ("SMOLLM2", "PHI3", "PYTHIA", "GEMMA", "GEMMA2", "GEMMA3", "STARCODER2", "FALCON", "GPT2", "QWEN2", "SMOLLM3")
PUBLISHED = {name: getattr(published, name) for name in NAMES}


def on_meta(fields: dict[str, Any]) -> Any:
    """Return transformers' model without memory."""
    rest = {key: value for key, value in fields.items() if key not in ("model_type", "auto_map")}
    auto_classes.register()
    config = AutoConfig.for_model(fields["model_type"], **rest)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def stored_elements(model: Any) -> int:
    """Return the elements of a model's weights, and of buffers that checkpoints hold: biases of a choice, scalars."""
    model.tie_weights()
    stored = model.state_dict()
    buffers = [buffer for name, buffer in model.named_buffers() if name in stored]
    return sum(weight.numel() for weight in [*model.parameters(), *buffers])


def products(counts: NetworkCounts, point: Point) -> int:
    return sum(poly.at(point) for poly in counts.products.values())


@pytest.mark.parametrize("name", [*PUBLISHED, *architectures()])
def test_parameters_are_those_of_transformers(name: str) -> None:
    fields = PUBLISHED.get(name) or architectures()[name]["fields"]
    model = on_meta(fields)
    assert decoder_model(name, decoder_spec(fields), FP16).parameters == stored_elements(model)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameters_of_every_family_are_those_of_transformers(case: Case) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(case.model_type, **case.config))
    fields = model.config.to_dict()
    assert decoder_model("tiny", decoder_spec(fields), FP16).parameters == stored_elements(model)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 7), (3, 16)])
def test_products_are_those_of_torchs_flop_counter(batch: int, tokens: int) -> None:
    model = on_meta(TINY_LLAMA)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(batch, tokens, dtype=torch.long, device="meta"))
    counts = counted(TINY_LLAMA, logits="all", batching="separate")
    layers, heads = TINY_LLAMA["num_hidden_layers"], TINY_LLAMA["num_attention_heads"]
    softmax = 5 * int(layers) * int(heads) * batch * tokens * tokens  # torch does not count it
    rotation = 2 * batch * tokens * (48 // 6)  # nor does a table of angles need its products
    got = products(counts, (batch, tokens, tokens)) - softmax
    assert got == pytest.approx(counter.get_total_flops(), abs=rotation)


def test_cache_bytes_are_those_of_transformers_cache() -> None:
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **{k: v for k, v in TINY_LLAMA.items() if k != "model_type"}), dtype=torch.float16
    )
    cache = DynamicCache()
    model(torch.zeros(2, 33, dtype=torch.long), past_key_values=cache)
    held = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    counts = counted(TINY_LLAMA)
    assert counts.cache_bytes.at((2, 1, 33)) == held
    assert decoder_model("tiny", decoder_spec(TINY_LLAMA), FP16).kv_bytes_per_token * 2 * 33 == held


def test_a_window_reads_its_part_of_the_caches() -> None:
    """T of a network with a window is what attention reads."""
    counts, windowed = (counted(TINY_LLAMA, kv_window=window) for window in ("full", "used"))
    point = (3, 1, 64)
    assert windowed.cache_bytes.at(point) == counts.cache_bytes.at(point)
    assert windowed.products == counts.products
    assert 0 <= windowed.fused_bytes.at(point) - counts.fused_bytes.at(point) < 100  # where slices begin


@pytest.mark.parametrize("fields", [TINY_LLAMA, {**TINY_LLAMA, "model_type": "mistral", "sliding_window": 24}])
@pytest.mark.parametrize("point", [(1, 1, 48), (5, 1, 200), (2, 9, 130)])
def test_functions_give_what_the_network_of_that_size_is_said_to_cost(fields: dict[str, Any], point: Point) -> None:
    counts, spec, backend = counted(fields, length=point[2]), decoder_spec(fields), load_backend("tensorrt_rtx")
    from trtkit.planning.count_decoder import _network
    from trtkit.quantized_model import QuantizedModel

    graph: Graph = _network(backend, spec, DecoderOptions(FP16, point[2]), QuantizedModel({}))
    shapes = {spec.name: spec.shape_at({"batch": point[0], "new_tokens": point[1]}) for spec in graph.inputs}
    record = describe(backend, graph.network, shapes)
    cost = network_cost(record, group_of)
    assert counts.flops.at(point) == sum(group.flops for group in cost.groups.values()) == record.totals().flops
    assert counts.fused_bytes.at(point) == cost.fused_bytes
    assert counts.activation_bytes(point) == max(cost.alive_bytes)
    assert {g.name: g.bytes.at(point) for g in counts.groups} == {n: g.bytes for n, g in cost.groups.items()}


def test_llama_2_7b_caches_512_kib_a_token_and_2_gib_at_4096() -> None:
    model = question("llama-2-7b").model
    assert model.parameters == 6_738_415_616
    assert model.kv_bytes_per_token == 512 * 1024
    assert published_counts("llama-2-7b").cache_bytes.at((1, 1, 4096)) == 2 * GIB


def test_opt_175b_is_what_flexgen_states() -> None:
    """Weights of 325 GB and a cache of 1.2 TB at 512 prompts of 512 + 32 tokens, in binary units."""
    model = published_model("opt-175b")
    assert model.weight_bytes / GIB == pytest.approx(325, rel=0.02)
    assert model.kv_bytes_per_token * 512 * (512 + 32) / 2**40 == pytest.approx(1.2, rel=0.02)


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-8b", "mistral-7b"])
def test_formulas_of_the_papers_agree_with_the_network(name: str) -> None:
    asked = question(name)
    found = formulas(asked.model, asked.counts, asked.work)
    assert found.decode_flops.ratio == pytest.approx(1, rel=0.002)
    assert found.kv_bytes_per_token.formula == found.kv_bytes_per_token.counted


def test_weights_are_read_once_and_tables_by_row() -> None:
    model, counts = question("llama-2-7b").model, published_counts("llama-2-7b")
    norms = 65 * 4096 * 2  # their weights are constants in fp32
    assert counts.weight_bytes == pytest.approx(model.weight_bytes - 2 * model.looked_up + norms, rel=1e-6)
    cached = counts.cache_bytes.at((1, 1, 100))
    read = counts.fused_bytes.at((1, 1, 100)) - cached
    assert read == pytest.approx(counts.weight_bytes + model.kv_bytes_per_token, rel=1e-4)


def test_experts_are_all_counted_and_the_chosen_ones_told() -> None:
    """Mixtral 8x7B: 46.7 B parameters, 12.9 B of them for a token (arXiv 2401.04088 says 47 B and 13 B)."""
    model = published_model("mixtral-8x7b")
    assert model.parameters / 1e9 == pytest.approx(46.7, abs=0.05)
    assert model.active_parameters / 1e9 == pytest.approx(12.9, abs=0.05)


def test_deepseek_v3_caches_576_values_a_token_and_layer() -> None:
    """671 B parameters, 37 B of them for a token (arXiv 2412.19437); the cache has no keys and values of 128 heads."""
    model = published_model("deepseek-v3")
    assert model.parameters / 1e9 == pytest.approx(671, abs=0.5)
    assert model.active_parameters / 1e9 == pytest.approx(37, abs=0.7)
    assert model.kv_bytes_per_token == 2 * 61 * 576
