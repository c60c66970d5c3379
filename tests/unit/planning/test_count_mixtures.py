"""A mixture's plan against what the network that is built moves and computes: chosen experts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.decoder_cases import case
from tests.support.decoders import T, model_of, rtx
from tests.unit.planning.planned import counted
from trtkit.dtypes import FP16
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.describe import describe
from trtkit.network.graph import Graph
from trtkit.planning.count_decoder import _network, group_of
from trtkit.planning.roofline import compute_bound_batch, floor, mixed_floor
from trtkit.planning.traffic import network_cost
from trtkit.quantization.llm.choice import linear_layers
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.quantized_model import EXPERTS_PATH, LayerForm, QuantizedModel

if TYPE_CHECKING:
    from trtkit.network.input_spec import Role

EXPERTS, TOP_K = 24, 3
MIXTURE = case("mixture", "qwen3_moe", num_experts=EXPERTS, num_experts_per_tok=TOP_K, moe_intermediate_size=40)
FEW, ALL = [(1, 1), (3, 1), (2, 2)], [(8, 1), (9, 2), (1, 30)]


@pytest.mark.parametrize(("batch", "new"), [*FEW, *ALL])
def test_a_step_costs_what_the_network_that_is_built_does(batch: int, new: int) -> None:
    model, point = model_of(MIXTURE), (batch, new, T)
    graph = _network(rtx(), model.spec, DecoderOptions(FP16, T, experts="auto"), QuantizedModel({}))
    shapes = {spec.name: spec.shape_at({"batch": batch, "new_tokens": new}) for spec in graph.inputs}
    cost = network_cost(describe(rtx(), graph.network, shapes), group_of)
    step = counted(model.config).of_step(point)
    found, experts = cost.groups["experts"], next(group for group in step.groups if group.name == "experts")
    assert experts.flops.at(point) == found.flops
    assert {name: poly.at(point) for name, poly in experts.products.items()} == found.products
    assert experts.bytes.at(point) == pytest.approx(found.bytes, rel=0.01)
    assert step.fused_bytes.at(point) == pytest.approx(cost.fused_bytes, abs=400)  # where slices begin and end


@pytest.mark.parametrize(("rows", "chunk"), [(2, 1), (3, 4), (2, 6), (9, 40)])
def test_a_mixed_step_reads_the_experts_that_the_packed_network_reads(rows: int, chunk: int) -> None:
    """Rows and a prompt choose experts together: 2 and 6 tokens read all of them, which neither part alone does."""
    model, tokens = model_of(MIXTURE), rows + chunk
    graph = _network(rtx(), model.spec, DecoderOptions(FP16, T, experts="auto", is_packed=True), QuantizedModel({}))
    sizes: dict[Role, int] = {"batch": rows, "tokens": tokens, "prompt_tokens": chunk, "prompts": 1, "logit_rows": rows}
    sizes |= {"prompt_length": chunk, "new_tokens": 1, "kv_window": T, "prompt_window": T}
    record = describe(rtx(), graph.network, {spec.name: spec.shape_at(sizes) for spec in graph.inputs})
    parts = (rows, 1, T), (1, chunk, T)
    counts = counted(model.config)
    step, built = counts.of_step(*parts), network_cost(record, group_of).groups["experts"]
    experts = next(group for group in step.groups if group.name == "experts")
    assert experts.flops.at(*parts) == built.flops
    assert {name: poly.at(*parts) for name, poly in experts.products.items()} == built.products
    assert experts.bytes.at(*parts) == pytest.approx(built.bytes, rel=0.01)
    weights = 2 * sum(array.numel() for name, array in model.checkpoint.items() if ".experts." in name)
    assert experts.weight_bytes == weights * min(tokens * TOP_K, EXPERTS) // EXPERTS
    slow = Roof(1e9)  # memory decides
    apart_s = sum(floor(counts, part, slow).seconds for part in parts)
    saved_s = apart_s - mixed_floor(counts, parts, slow).seconds
    each = [weights * min(batch * new * TOP_K, EXPERTS) // EXPERTS for batch, new, _ in parts]
    shared = counts.fused_bytes.at() - weights
    assert saved_s == pytest.approx((shared + sum(each) - experts.weight_bytes) / slow.bandwidth_bytes_per_s)


def test_a_decode_step_reads_the_chosen_experts_share() -> None:
    model = model_of(MIXTURE)
    counts, all_read = (counted(model.config, experts=which) for which in ("chosen", "all"))
    weights = 2 * sum(array.numel() for name, array in model.checkpoint.items() if ".experts." in name)
    point = (1, 1, T)
    saved = all_read.fused_bytes.at(point) - counts.of_step(point).fused_bytes.at(point)
    assert saved == weights - weights * TOP_K // EXPERTS
    assert counts.of_step((EXPERTS // TOP_K, 1, T)).fused_bytes == all_read.fused_bytes
    assert all_read.mixture is None


def test_copies_of_experts_need_memory() -> None:
    counts, all_read = (counted(model_of(MIXTURE).config, experts=which) for which in ("chosen", "all"))
    one_layer = 2 * EXPERTS * 3 * 40 * 42
    copied = counts.activation_bytes((1, 16, T)) - all_read.activation_bytes((1, 16, T))
    assert copied == one_layer
    assert counts.activation_bytes((1, 1, T)) - all_read.activation_bytes((1, 1, T)) == one_layer * TOP_K // EXPERTS


@pytest.mark.parametrize("quantized", [False, True])
def test_quantized_experts_are_all_read(quantized: bool) -> None:
    name = "layers.0.moe.experts.0.gate" if quantized else "layers.0.attention.q"
    form = QuantizedModel({name: LayerForm("int8", 0)})
    assert (counted(model_of(MIXTURE).config, quantized=form).mixture is None) == quantized


@pytest.mark.parametrize(("batch", "new"), [*FEW, *ALL])
def test_a_step_reads_codes_as_the_network_that_is_built_does(batch: int, new: int) -> None:
    """What the plan takes from matrices in int4, the network reads as words."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": EXPERTS, "num_experts_per_tok": TOP_K}
    model, point = model_of(case("packed", "qwen3_moe", **sizes)), (batch, new, T)
    named = {layer.name: layer for layer in linear_layers(model.spec) if EXPERTS_PATH in layer.name}
    form = LayerForm("mxfp4", 32)
    step = counted(model.config, quantized=QuantizedModel(dict.fromkeys(named, form)).as_read("auto")).of_step(point)
    weights: dict[str, Any] = dict(find_weights(model.spec, model.checkpoint))
    for name, layer in named.items():
        codes = np.zeros((layer.rows, layer.size // 2), np.uint8)
        weights[f"{name}.weight"] = QuantizedMatrix("mxfp4", codes, np.ones((layer.rows, layer.size // 32), np.float32))
    graph = Graph(rtx())
    build_decoder(graph, model.spec, weights, DecoderOptions(FP16, T, experts="auto"))
    shapes = {spec.name: spec.shape_at({"batch": batch, "new_tokens": new}) for spec in graph.inputs}
    record = describe(rtx(), graph.network, shapes)
    lookups = [layer for layer in record.layers if layer.inputs[:1] and "values" in layer.inputs[0].name]
    assert len(lookups) == len(named) // EXPERTS
    moved = network_cost(record, group_of).fused_bytes - sum(layer.outputs[0].size_bytes for layer in lookups)
    assert step.fused_bytes.at(point) == pytest.approx(moved, abs=400)  # where slices begin and end
    stored = sum(form.as_read("auto").size_bytes(layer.rows, layer.size, FP16) for layer in named.values())
    experts = next(group for group in step.groups if group.name == "experts")
    assert experts.weight_bytes == stored * min(batch * new * TOP_K, EXPERTS) // EXPERTS


@pytest.mark.parametrize("length", [0, 640])
def test_the_batch_that_compute_bounds_is_the_first_whose_compute_takes_longer(length: int) -> None:
    """A mixture reads more experts up to some batch, so that both times bend there."""
    counts = counted(model_of(MIXTURE).config)
    for rate in (1e3, 1e4, 1e5, 1e6):
        roof = Roof(rate)
        batch = compute_bound_batch(counts, length, roof)
        bound = [b for b in range(1, 400) if floor(counts, (b, 1, length), roof).bound == "compute"]
        assert batch == (bound[0] if bound else None) or (batch is not None and batch >= 400)


@dataclass(frozen=True)
class Roof:
    """A machine of so many operations for each byte that it moves in a second."""

    operations: float
    bandwidth_bytes_per_s: float = 1e3

    def rate(self, _dtype: str) -> float:
        return self.operations
