"""Quantized models as plans count them: against TensorRT's described networks, real checkpoints, and by their bits."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.quantized_checkpoints import FORMATS, save_gpt2, save_llama
from tests.unit.planning.planned import TINY_LLAMA, counted
from trtkit.backends import load_backend
from trtkit.config.quantize import QuantizeOptions
from trtkit.dtypes import FP16
from trtkit.errors import PlanError
from trtkit.jobs.json_form import from_json, to_json
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.planning.decoder_model import DecoderModel, decoder_model, workload
from trtkit.planning.gpus import find_gpus
from trtkit.planning.llm import plan_llm
from trtkit.planning.memory import Footprint
from trtkit.planning.quantized_by import by_config, by_options, by_source
from trtkit.planning.question import PlanningQuestion
from trtkit.quantization.llm.choice import linear_layers
from trtkit.quantized_model import LayerForm, QuantizedModel
from trtkit.sources.decoder_source import open_hf_folder

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.planning.counts import NetworkCounts

FIELDS = {**TINY_LLAMA, "hidden_size": 384, "intermediate_size": 768}  # heads of 64
SPEC = decoder_spec(FIELDS)
PLAIN = decoder_model("tiny", SPEC, FP16)
POINT = (3, 2, 40)
SMALL_TO_LARGE = (
    LayerForm("int4", 128), LayerForm("int4", 32), LayerForm("fp4", 16), LayerForm("int4", 32, has_offsets=True),
    LayerForm("fp8", None), LayerForm("int8"), LayerForm("mxfp8", 32),
)  # fmt: skip
ranks = st.lists(st.integers(0, len(SMALL_TO_LARGE)), min_size=21, max_size=21)


def planned(**options: Any) -> tuple[DecoderModel, NetworkCounts]:
    """Return the tiny model quantized, and its counts."""
    quantized = by_options(SPEC, QuantizeOptions(**options))
    return PLAIN.quantized_as(SPEC, quantized), counted(FIELDS, quantized=quantized)


@pytest.mark.parametrize(
    ("method", "product"),
    [
        ("int8_wo", "fp16"), ("int8_sq", "int8"), ("int4_wo", "fp16"), ("int4_awq", "fp16"), ("fp8", "fp8"),
        ("fp8_pc", "fp8"), ("nvfp4", "fp4"), ("mxfp8", "fp8"),
    ],
)  # fmt: skip
def test_weights_and_products_are_those_of_the_described_network(method: str, product: str) -> None:
    model, counts = planned(method=method)
    plain = counted(FIELDS)
    saved = plain.weight_bytes - counts.weight_bytes
    assert saved == pytest.approx(PLAIN.weight_bytes - model.weight_bytes, abs=21 * 6)  # scales of inputs, outer ones
    linear = sum(
        group.products["fp16"].at(POINT)
        for group in plain.groups
        if group.name in ("q, k, v projections", "output projection", "mlp")
    )
    extra = counts.products[product].at(POINT) - linear
    assert extra == (plain.products["fp16"].at(POINT) - linear if product == "fp16" else 0)
    assert counts.fused_bytes.at(POINT) == pytest.approx(plain.fused_bytes.at(POINT) - saved, rel=0.01)


@pytest.mark.parametrize("zero_points", [False, True])
def test_offsets_are_counted(zero_points: bool) -> None:
    model, counts = planned(method="int4_wo", block=32, zero_points=zero_points)
    elements = sum(layer.rows * layer.size for layer in linear_layers(SPEC) if layer.name != "lm_head")
    bits = 4 + 16 * (2 if zero_points else 1) / 32
    assert PLAIN.weight_bytes - model.weight_bytes == elements * (16 - bits) / 8
    assert counted(FIELDS).weight_bytes - counts.weight_bytes == elements * (16 - bits) / 8


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_caches_in_eight_bits_are_half_and_keep_new_ones_apart(kind: str) -> None:
    model, counts = planned(method="none", kv_cache=kind)
    plain = counted(FIELDS)
    assert model.kv_bytes_per_token * 2 == PLAIN.kv_bytes_per_token
    assert counts.cache_bytes.at(POINT) * 2 == plain.cache_bytes.at(POINT)
    assert counts.cache_bytes.at(POINT) == POINT[0] * POINT[2] * model.kv_bytes_per_token
    written = POINT[0] * POINT[1] * model.kv_bytes_per_token
    less = plain.fused_bytes.at(POINT) - counts.fused_bytes.at(POINT)
    assert less == counts.cache_bytes.at(POINT) + written
    assert counts.products == plain.products
    footprint = Footprint(counts, model.weight_bytes, model.kv_bytes_per_token, 16, model.vocab_size, model.keeps_new)
    assert footprint.need(3, 40).kv_cache == 3 * (40 + 16) * model.kv_bytes_per_token
    one_layer = 2 * POINT[0] * POINT[2] * FP16.size_bytes(2 * 64)
    grown = counts.activation_bytes(POINT) - plain.activation_bytes(POINT)
    assert 0 <= grown <= one_layer


def test_layers_of_their_own_methods_and_excluded_ones_are_counted_so() -> None:
    layers = {"*.mlp.down": "fp8", "*.mlp.up": "none"}
    found = by_options(SPEC, QuantizeOptions(method="int4_wo", layers=layers, exclude=("layers.0.*",)))
    assert set(found.layers) == {
        f"layers.{index}.{name}"
        for index in (1, 2)
        for name in ("attention.q", "attention.k", "attention.v", "attention.o", "mlp.gate", "mlp.down")
    }
    assert found.layers["layers.1.mlp.down"] == LayerForm("fp8", None, "fp8")
    assert found.layers["layers.1.mlp.gate"] == LayerForm("int4", 128)
    assert found.types == ("fp8", "int4")
    assert from_json(QuantizedModel, json.loads(json.dumps(to_json(found)))) == found


@given(ranks, ranks)
def test_memory_grows_with_the_bits_of_every_layer(one: list[int], other: list[int]) -> None:
    def weight_bytes(chosen: list[int]) -> int:
        pairs = zip(linear_layers(SPEC), chosen, strict=False)
        forms = {layer.name: SMALL_TO_LARGE[rank] for layer, rank in pairs if rank < len(SMALL_TO_LARGE)}
        return PLAIN.quantized_as(SPEC, QuantizedModel(forms)).weight_bytes

    low, high = ([pick(pair) for pair in zip(one, other, strict=True)] for pick in (min, max))
    assert weight_bytes(low) <= weight_bytes(high) <= PLAIN.weight_bytes


@pytest.mark.parametrize("name", [*FORMATS, "gpt2/gptq", "gpt2/awq"])
def test_a_config_alone_tells_what_the_checkpoint_holds(name: str, tmp_path: Path) -> None:
    save, _, kind = name.rpartition("/")
    opened = open_hf_folder(save_gpt2(tmp_path, kind) if save else save_llama(tmp_path, kind))
    asked = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    asked["ignore"] = ["lm_head"]  # as llm-compressor writes where the head stays, which it does here
    spec = decoder_spec(opened.config)
    assert by_config(spec, asked, "config.json") == by_source(spec, opened)


@pytest.mark.parametrize("name", FORMATS)
def test_a_network_tells_how_its_writer_wrote_each_layer(name: str, tmp_path: Path) -> None:
    opened = open_hf_folder(save_llama(tmp_path, name))
    spec = decoder_spec(opened.config)
    weights = find_weights(spec, opened.checkpoint, opened.where)
    graph = Graph(load_backend("tensorrt_rtx"))
    build_decoder(graph, spec, weights, DecoderOptions(FP16, 64, kv_cache=opened.kv_cache))
    held = by_source(spec, opened)
    assert held is not None
    assert graph.quantized == held.layers


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"quant_method": "hqq"}, "`quant_method` is `hqq`"),
        ({"quant_method": "gptq", "bits": 3}, "TensorRT does not support 3-bit weights"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "`quant_algo` is `W4A8_AWQ`"),
        ({"quant_method": "gptq", "group_size": 36}, "a block size of 36 does not divide the 384 columns of"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}, "caches in NVFP4 are not supported"),
    ],
)
def test_configs_that_no_network_is_written_for_are_refused(asked: dict[str, Any], what: str) -> None:
    with pytest.raises(PlanError, match=what):
        by_config(SPEC, asked, "config.json")


def test_gpus_without_the_type_do_not_take_the_model() -> None:
    model, counts = planned(method="nvfp4")
    question = PlanningQuestion(model, counts, workload(model, 20, 12, concurrency=1, chunk=16), SPEC)
    takes = {gpu.key: plan_llm(question, gpu).takes_precision for gpu in find_gpus(["t4", "h200", "rtx5090"])}
    assert takes == {"t4": False, "h200": False, "rtx5090": True}
