"""The job that counts a decoder-only LLM: its real network is written with zero weights, and described.

All weights share one block of memory that is never touched, so a model of any size is counted in a few hundred MiB,
from its config alone.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from trtkit.backends import load_backend
from trtkit.builder.active_neurons import sparse_spec
from trtkit.builder.decoders import is_packed, llm_options, network_options
from trtkit.jobs.events import Phase
from trtkit.lora.targets import adapted_layers
from trtkit.models.feed_forward import MlpSpec, MoeSpec
from trtkit.models.registry import decoder_spec
from trtkit.models.spec import LearnedPositions
from trtkit.models.weights import model_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.describe import describe
from trtkit.network.graph import Graph
from trtkit.planning.count_network import layer_of
from trtkit.planning.counts import EXPERTS, FEED_FORWARD, ActiveRows, Mixture, counts_of, fit, sample_points
from trtkit.planning.traffic import network_cost, repeated
from trtkit.quantization.llm.choice import linear_layers
from trtkit.quantized_model import EXPERTS_PATH, QuantizedModel
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from trtkit.backends import Backend
    from trtkit.dtypes import DType
    from trtkit.jobs.job import JobContext
    from trtkit.models.feed_forward import ActiveBlocks
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.decoder_options import DecoderOptions
    from trtkit.network.input_spec import Role
    from trtkit.network.record import LayerRecord, NetworkRecord, TensorRecord
    from trtkit.planning.counts import NetworkCounts, Point
    from trtkit.planning.jobs import CountRequest
    from trtkit.planning.traffic import NetworkCost


Json = dict[str, Any]
# Distance between the two cached lengths at which counts are taken.
_STEP = 8
# Periods of repeated layers that are counted; they are counted again with one period more.
_FEW = 2
_BLOCK_NUMBER = re.compile(r"^layers\.(\d+)\.")
_BLOCK = re.compile(r"^layers\.\d+/")
_RECURRENT = re.compile(r"^layers\.\d+/(conv|delta|mamba)/")
_ATTENTION = re.compile(r"/attention/(?:(\w+)/)?")
_ATTENTION_GROUPS = {
    **dict.fromkeys(("q", "k", "v", "qkv", "q_b"), "q, k, v projections"),
    **dict.fromkeys(("q_a", "kv_a"), "latent projections"),
    "kv_b": "latent expansion",
    "o": "output projection",
}


def count_decoder(request: CountRequest, context: JobContext) -> NetworkCounts:
    """Count the network of a config.

    Caches are linear; `NetworkCounts.with_gathered_pages` applies the change for pages. If the network accepts a
    limited number of new tokens, counts are exact for one token and for that number, and for multiples of it they are
    those of as many calls; in between, layers whose cost grows with its square or cube are interpolated linearly.
    """
    backend, spec = load_backend(request.backend), decoder_spec(request.fields, request.where)
    options, first = network_options(resolve(request.config)), _first_length(spec, request.length)
    lora = llm_options(request.config).lora
    adapted, ranks = (frozenset[str](), 0) if lora is None else (adapted_layers(spec, lora), lora.max_rank_sum)
    # Counts are multilinear; a packed call computes only the logits that are read, see `PackedRoom`.
    plain = replace(
        options,
        has_all_logits=options.has_all_logits and not is_packed(request.config),
        experts="all",
        adapted=adapted,
        page_tokens=None,
        is_packed=False,
    )
    most = spec.most_new_tokens
    points = sample_points((1, 1, first), _STEP, 1 if most is None else most - 1)
    check = (3, 5 if most is None else most, first + _STEP)
    quantized = request.quantized or QuantizedModel({})

    def costs_of(layers: int) -> Iterator[tuple[Point, NetworkCost]]:
        shortened = replace(spec, layers=spec.layers[:layers])
        for length in (first, first + _STEP):
            graph = _network(backend, shortened, replace(plain, max_sequence_length=length), quantized)
            for point in (p for p in (*points, check) if p[2] == length):
                record = as_quantized(_record(backend, graph, point, ranks), quantized.kv_cache)
                cost = network_cost(record, place_of if request.by_layer else group_of)
                if quantized.kv_cache is not None:
                    alive = zip(cost.alive_bytes, read_bytes(record, options.dtype), strict=True)
                    cost.alive_bytes = [results + read for results, read in alive]
                yield point, cost

    costs = _with_repeats(_repeats(spec, quantized, plain.deepstack), costs_of, context) or dict(
        costs_of(len(spec.layers))
    )
    measured = costs.pop(check)
    active = _active_rows(sparse_spec(spec, request.config, request.where), options)
    counts = counts_of(costs, fit, _mixture(spec, options, quantized), active)
    assert counts.fused_bytes.at(check) == measured.fused_bytes, "bytes are not multilinear"
    assert counts.flops.at(check) == sum(group.flops for group in measured.groups.values()), "FLOPs are not multilinear"
    return counts


class _Repeats(NamedTuple):
    """`period` layers that repeat `times` times, up to the last layer. start: number of layers before them."""

    start: int
    period: int
    times: int


def _repeats(spec: DecoderSpec, quantized: QuantizedModel, deepstack: int = 0) -> _Repeats:
    """Return how layers repeat up to the last one; among several periods, the one that needs the fewest layers counted.

    deepstack: number of first layers after which image vectors are added.
    """
    forms: dict[str, dict[str, object]] = defaultdict(dict)
    for name, form in quantized.layers.items():
        if block := _BLOCK_NUMBER.match(name):
            forms[block[1]][name[block.end() :]] = form
    layers = [(layer, forms[str(number)], number < deepstack) for number, layer in enumerate(spec.layers)]
    candidates = []
    for period in range(1, len(layers) // 2 + 1):
        start = len(layers) - period
        while start >= period and layers[start - period : start] == layers[-period:]:
            start -= period
        candidates.append(_Repeats(start, period, (len(layers) - start) // period))
    return min(
        candidates, key=lambda repeats: repeats.start + _FEW * repeats.period, default=_Repeats(len(layers), 1, 0)
    )


def _with_repeats(
    repeats: _Repeats, costs_of: Callable[[int], Iterable[tuple[Point, NetworkCost]]], context: JobContext
) -> dict[Point, NetworkCost] | None:
    """Return a network's costs extrapolated from two versions with fewer layers; None if layers are few or not alike.

    Every count grows by the same amount with each period, unless the sizes of live results change. costs_of: maps a
    number of first layers to their cost at each point.
    """
    if repeats.times <= 2 * _FEW:
        return None
    numbers = [repeats.start + count * repeats.period for count in (_FEW, _FEW + 1)]
    context.report(Phase(f"count {numbers[1]} layers of {repeats.start + repeats.times * repeats.period}"))
    few, more = (dict(costs_of(number)) for number in numbers)
    if any(set(few[point].alive_bytes) != set(more[point].alive_bytes) for point in few):
        return None
    return {point: repeated(few[point], more[point], repeats.times - _FEW - 1) for point in few}


def group_of(name: str, kind: str) -> str:
    """Return the group of a decoder's layer by its name and type."""
    if "/moe/experts/" in name:
        return EXPERTS
    if kind in ("ATTENTION_INPUT", "ATTENTION_OUTPUT"):
        return "attention"
    if kind == "KV_CACHE_UPDATE":
        return "kv cache update"
    if "/lora/" in name:
        return "LoRA adapters"
    if kind == "MATRIX_MULTIPLY":
        return _product_group(name)
    return "embedding" if kind == "GATHER" and "embedding/" in name else "norms and element-wise"


def place_of(name: str, kind: str = "") -> str:
    """Return a layer's name without its block's number: `layers.*/mlp/up/matmul`."""
    return _BLOCK.sub("layers.*/", layer_of(name, kind))


def _product_group(name: str) -> str:
    """Return the group of a matrix product."""
    attention = _ATTENTION.search(name)
    if attention is not None:
        return _ATTENTION_GROUPS.get(attention[1], "attention")
    if _RECURRENT.search(name):
        return "recurrent layers"
    return "lm head" if name.startswith("lm_head") else FEED_FORWARD


def _active_rows(spec: DecoderSpec, options: DecoderOptions) -> ActiveRows | None:
    """Return the rows that a step reads only for active neurons; None if it reads all rows in every layer."""
    mlps = [layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, MlpSpec)]
    layers: list[tuple[int, int, ActiveBlocks]] = []
    matrices: tuple[str, ...] = ("down",)
    for mlp in mlps:
        if mlp.active is not None:
            matrices = ("up", "down") if mlp.is_gated else ("down",)
            size = options.dtype.size_bytes(len(matrices) * mlp.intermediate_size * spec.hidden_size)
            layers.append((size, mlp.active.count_of(mlp.intermediate_size), mlp.active))
    return ActiveRows(tuple(layers), matrices) if layers else None


def _mixture(spec: DecoderSpec, options: DecoderOptions, quantized: QuantizedModel) -> Mixture | None:
    """Return the mixture of which a step reads only the chosen experts; None if it reads all, or if layers differ."""
    moes = [layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, MoeSpec)]
    sizes = {(moe.num_experts, moe.routing.top_k) for moe in moes}
    forms = [form for name, form in quantized.layers.items() if EXPERTS_PATH in name]
    is_chosen = all(form.is_packed for form in forms) if forms else options.experts != "all"
    if not is_chosen or len(sizes) != 1 or not all(moe.reads_chosen for moe in moes):
        return None
    experts, top_k = sizes.pop()
    widest = max(
        (3 if moe.expert.is_gated else 2) * moe.expert.intermediate_size * moe.expert_inputs(spec.hidden_size)
        for moe in moes
    )
    layers = [layer for layer in linear_layers(spec) if EXPERTS_PATH in layer.name and layer.name in quantized.layers]
    stored = sum(quantized.layers[layer.name].size_bytes(layer.rows, layer.size, options.dtype) for layer in layers)
    wide = sum(options.dtype.size_bytes(layer.rows * layer.size) for layer in layers)
    return Mixture(experts, top_k, options.dtype.size_bytes(experts * widest), wide / stored if stored else 1.0)


def _first_length(spec: DecoderSpec, length: int) -> int:
    """Return a short cached length of the same kind as `length`: it exceeds the same windows."""
    windows = [attention.sliding_window or 0 for attention in spec.attentions]
    first = max([window for window in windows if window < length] + [spec.most_new_tokens or 0]) + _STEP
    positions = spec.embedding.positions
    limit = positions.count if isinstance(positions, LearnedPositions) else math.inf
    return first if first + _STEP <= limit else _STEP


def _network(backend: Backend, spec: DecoderSpec, options: DecoderOptions, quantized: QuantizedModel) -> Graph:
    """Write the network with zero weights."""
    graph = Graph(backend)
    build_decoder(graph, spec, _zeros(spec, options.dtype, quantized), options)
    return graph


def _zeros(spec: DecoderSpec, dtype: DType, quantized: QuantizedModel) -> Mapping[str, Any]:
    """Return zeros for every weight, all in the same memory, which the system does not allocate until it is read.

    Scales of quantized matrices have their own memory.
    """
    import ml_dtypes
    import numpy as np

    weights = model_weights(spec)
    numpy_type = ml_dtypes.bfloat16 if dtype.name == "bf16" else np.dtype(dtype.numpy)
    memory = np.zeros(max(math.prod(weight.shape) for weight in weights), numpy_type)
    arrays: dict[str, Any] = {}
    sizes = {layer.name: (layer.rows, layer.size) for layer in linear_layers(spec)}
    for weight in weights:
        name = weight.path.removesuffix(".weight")
        if name in quantized.layers:
            arrays[weight.path] = quantized.layers[name].matrix(*sizes[name], memory.view(np.uint8))
        else:
            arrays[weight.path] = memory[: math.prod(weight.shape)].reshape(weight.shape)
    return arrays


def _record(backend: Backend, graph: Graph, point: Point, ranks: int) -> NetworkRecord:
    """Return the network's record at (B, S, T); T is the network's window, all of which attention reads.

    ranks: of resident adapters.
    """
    sizes: dict[Role, int] = {"batch": point[0], "new_tokens": point[1], "kv_window": point[2], "adapter_rank": ranks}
    shapes = {spec.name: spec.shape_at(sizes) for spec in graph.inputs}
    return describe(backend, graph.network, shapes)


def as_quantized(record: NetworkRecord, cache: str | None) -> NetworkRecord:
    """Return the record with caches in the type `cache`, if given, and with fp4 inputs for products with fp4 matrices.

    The network with 8-bit caches attends to new keys after the cached ones, which is the same amount of work: here its
    caches hold both, as in all other networks. fp4 inputs were written as fp8: see `LayerForm.matrix`.
    """
    types = dict.fromkeys(_fp4_inputs(record), "fp4")
    if cache is not None:
        types |= dict.fromkeys(_caches(record), cache)
    layers = tuple(_layer(layer, types, cache) for layer in record.layers)
    inputs, outputs = (_typed(tensors, types) for tensors in (record.inputs, record.outputs))
    return replace(record, inputs=inputs, outputs=outputs, layers=layers)


def read_bytes(record: NetworkRecord, dtype: DType) -> list[int]:
    """Return, by layer, the bytes of keys and values that attention reads in `dtype` from low-precision caches."""
    caches = _caches(record)
    return [
        sum(dtype.size_bytes(math.prod(tensor.shape)) for tensor in layer.inputs if tensor.name in caches)
        if layer.type == "ATTENTION_INPUT"
        else 0
        for layer in record.layers
    ]


def _caches(record: NetworkRecord) -> set[str]:
    """Return the names of caches before and after their updates."""
    updates = [layer for layer in record.layers if layer.type == "KV_CACHE_UPDATE"]
    return {tensor.name for layer in updates for tensor in (layer.inputs[0], *layer.outputs)}


def _fp4_inputs(record: NetworkRecord) -> set[str]:
    """Return the quantized inputs of products with fp4 matrices."""
    codes = {layer.outputs[0].name: layer.inputs[0] for layer in record.layers if layer.type == "DEQUANTIZE"}
    pairs = [
        [codes.get(tensor.name) for tensor in layer.inputs[:2]]
        for layer in record.layers
        if layer.type == "MATRIX_MULTIPLY"
    ]
    return {x.name for x, weight in pairs if x is not None and weight is not None and weight.dtype == "fp4"}


def _layer(layer: LayerRecord, types: Mapping[str, str], cache: str | None) -> LayerRecord:
    """Return a layer with tensors in other types; data written to a cache has the cache's type."""
    own_types = dict(types)
    if cache is not None and layer.type == "KV_CACHE_UPDATE":
        own_types[layer.inputs[1].name] = cache
    return replace(layer, inputs=_typed(layer.inputs, own_types), outputs=_typed(layer.outputs, own_types))


def _typed(tensors: tuple[TensorRecord, ...], types: Mapping[str, str]) -> tuple[TensorRecord, ...]:
    return tuple(replace(tensor, dtype=types.get(tensor.name, tensor.dtype)) for tensor in tensors)
