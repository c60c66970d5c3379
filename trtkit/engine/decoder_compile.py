"""The job that writes a decoder-only LLM as a network and lets TensorRT build it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from trtkit.backends import load_backend
from trtkit.bundle.manifest import DecoderRecord
from trtkit.dtypes import dtype_of
from trtkit.engine.decoders import (
    checked_spec,
    decoder_profiles,
    decoder_size,
    head_note,
    llm_options,
    network_options,
    open_model_source,
    rope_note,
    takes_embeddings,
)
from trtkit.engine.embeddings import embedding_table, write_embeddings
from trtkit.engine.jobs import CompiledDecoder
from trtkit.engine.plan_file import Buildable, CompiledNetwork, write_plan
from trtkit.engine.room import Load, check_room
from trtkit.jobs.events import Phase, Progress
from trtkit.jobs.steps import Steps
from trtkit.models.weights import find_weights, model_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.describe import describe
from trtkit.network.graph import Graph
from trtkit.network.targets import check_types
from trtkit.sources.checkpoint import check_finite

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.config.schema import ModelConfig
    from trtkit.engine.jobs import DecoderRequest
    from trtkit.engine.plan_file import Profiles
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Context
    from trtkit.models.spec import DecoderSpec
    from trtkit.network.record import NetworkRecord
    from trtkit.sources.decoder_source import DecoderSource


def compile_decoder(request: DecoderRequest, context: Context) -> CompiledDecoder:
    """Read a model, write its network, describe it, and build it if a plan is requested."""
    config, backend = request.config, load_backend(request.backend)
    steps = Steps(context.report)
    context.report(Phase("read source"))
    opened = open_model_source(config, str(request.quantized or ""))
    spec = checked_spec(config, opened)
    parameters = sum(math.prod(weight.shape) for weight in model_weights(spec))
    size = decoder_size(spec, parameters, config, opened.kv_cache)
    note = "".join(f"; {one}" for one in (opened.note, head_note(spec, opened)) if one)
    steps.add("source", f"{spec.model_type}, {len(spec.layers)} layers, {parameters / 1e6:.1f} M parameters{note}")
    if rotary := rope_note(spec, llm_options(config)):
        steps.add("rope", rotary)
    check_room(Load(size.weight_bytes), request.folder)
    graph = _write_network(backend, config, (spec, opened), steps, context.severity)
    record, profiles = _describe(backend, graph, config, opened)
    check_types(record, request.target.name, request.target.compute_capabilities, backend.features)
    steps.add("describe", f"{len(record.layers)} layers")
    if opened.quantized_by:
        size = replace(size, weight_bytes=sum(record.totals().weight_bytes.values()))
    _carry(opened, request.folder, steps)
    if takes_embeddings(config):
        table = embedding_table(spec, find_weights(spec, opened.checkpoint, opened.where), dtype_of(config.precision))
        path = write_embeddings(table, request.folder)
        steps.add("embeddings", f"{path.name}, {path.stat().st_size / 2**20:.1f} MiB, is read beside the engine")
    plan = None
    if request.plan is not None:
        buildable = Buildable(graph.network, graph.builder, profiles, size.weight_bytes)
        plan = write_plan(backend, buildable, request.plan, context)
    seconds = {step.name: step.seconds for step in steps.done}
    compiled = CompiledNetwork(record, backend.version, seconds["network"], seconds["describe"], plan)
    return CompiledDecoder(
        compiled, tuple(steps.done), profiles, DecoderRecord(model_type=spec.model_type, **asdict(size))
    )


def decoder_graph(
    backend: Backend,
    config: ModelConfig,
    model: tuple[DecoderSpec, DecoderSource],
    weights: Mapping[str, Any],
    severity: str | None = None,
) -> Graph:
    """Return the network of a model with `weights` by path. severity: as Graph takes it."""
    spec, opened = model
    graph = Graph(backend, severity=severity)
    build_decoder(graph, spec, weights, replace(network_options(config), kv_cache=opened.kv_cache))
    return graph


class Reported(Mapping[str, Any]):
    """Weights that are checked as they are read, and tell how far the reading is."""

    def __init__(self, weights: Mapping[str, Any], report: Listener) -> None:
        self._weights, self._report, self._reported_s = weights, report, 0.0
        self._done = 0

    def __getitem__(self, path: str) -> Any:
        array = self._weights[path]
        check_finite({path: array})
        self._done += 1
        if time.monotonic() - self._reported_s > 0.1:
            self._reported_s = time.monotonic()
            self._report(Progress("weights", self._done, len(self._weights)))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _write_network(
    backend: Backend,
    config: ModelConfig,
    model: tuple[DecoderSpec, DecoderSource],
    steps: Steps,
    severity: str | None,
) -> Graph:
    """Write the network, every weight checked; record both as steps."""
    spec, opened = model
    weights = find_weights(spec, opened.checkpoint, opened.where)
    steps.add("weights", f"{len(weights)} found, all names and shapes right")
    graph = decoder_graph(backend, config, model, Reported(weights, steps.report), severity)
    options = llm_options(config)
    detail = f"{config.precision}, {options.max_batch_size} slots of {options.max_sequence_length} tokens"
    steps.add("network", f"{graph.network.num_layers} layers in {detail}; all weights finite")
    return graph


def _describe(
    backend: Backend, graph: Graph, config: ModelConfig, opened: DecoderSource
) -> tuple[NetworkRecord, Profiles]:
    """Return the record at the prefill profile's `opt` shapes, and the profiles."""
    tensors = [graph.network.get_input(index) for index in range(graph.network.num_inputs)]
    profiles = decoder_profiles({tensor.name: tuple(tensor.shape) for tensor in tensors}, llm_options(config))
    shapes = {name: shape.opt for name, shape in profiles[0].items()}
    cache = None if opened.kv_cache is None else opened.kv_cache.format
    return describe(backend, graph.network, shapes).with_quantization(graph.quantized, cache), profiles


def _carry(opened: DecoderSource, folder: Path, steps: Steps) -> None:
    """Put config and tokenizer into the bundle."""
    (folder / "model").mkdir(exist_ok=True)
    text = json.dumps(dict(opened.config), indent=1)
    (folder / "model" / "config.json").write_text(text + "\n", encoding="utf-8")
    written = opened.tokenizer.write(folder / "model")
    steps.add("tokenizer", ", ".join(path.name for path in written) or "the source has none")
