"""Write a decoder-only LLM's network, with paged attention and 2:4 sparsity if they apply."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.builder.decoders import (
    converted_bytes,
    decoder_profiles,
    decoder_size,
    engine_bytes,
    head_note,
    llm_options,
    open_decoder,
    rope_note,
)
from trtkit.builder.embeddings import embedding_table, write_embeddings
from trtkit.builder.plugins import register_plugins
from trtkit.builder.reported import Reported, stored_names
from trtkit.builder.room import BuildLoad, check_room
from trtkit.builder.stages import WrittenNetwork
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import dtype_of
from trtkit.errors import ConfigError, Problem
from trtkit.jobs.events import Phase, Steps
from trtkit.models.model import Stage, StagedModel
from trtkit.models.parallel import grid_of
from trtkit.models.registry import hf_class
from trtkit.models.spec_file import write_spec
from trtkit.network.graph import Graph
from trtkit.network.paged_layers import obstacles
from trtkit.quantization.llm.choice import pruned_layers
from trtkit.quantization.llm.sparsity import is_pruned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtkit.backends import Backend
    from trtkit.builder.decoders import OpenedDecoder
    from trtkit.builder.stages import DecoderSize, StageRequest
    from trtkit.jobs.job import JobContext


def write_decoder(request: StageRequest, backend: Backend, context: JobContext) -> WrittenNetwork:
    """Read the source and write the network; put config, tokenizer and embeddings into the bundle."""
    steps = Steps(context.report)
    context.report(Phase("read source"))
    opened = open_decoder(resolved_model(request), request.quantized, request.rank)
    size = decoder_size(opened)
    if request.rank == 0:
        _describe_source(opened, size, steps)
    ranks = grid_of(opened.config).ranks
    load = BuildLoad(engine_bytes(opened.source, size, ranks), layer_bytes=converted_bytes(opened, ranks))
    check_room(load, request.folder)
    graph = _write_network(Graph(backend, severity=context.severity), request, opened, steps)
    profiles = decoder_profiles(graph.inputs, llm_options(opened.config))
    if request.rank == 0:
        _carry(opened, request.folder, steps)
    is_quantized = bool(opened.source.quantized_by)
    return replace(
        WrittenNetwork.of_decoder(graph, request.stage, profiles, size),
        steps=tuple(steps.done),
        size=lambda counted: replace(size, weight_bytes=counted) if is_quantized else size,
        quantized=graph.quantized,
        kv_cache=None if opened.source.kv_cache is None else opened.source.kv_cache.format,
    )


def resolved_model(request: StageRequest) -> StagedModel:
    """Return the language model of a request, resolved as the command resolved it."""
    stage = Stage(request.stage.name, (), request.stage.writer)
    return StagedModel(ModelConfig.model_validate_json(request.config), "tokens", (stage,), images=request.images)


def _describe_source(opened: OpenedDecoder, size: DecoderSize, steps: Steps) -> None:
    """Record a step that describes the source."""
    spec, source = opened.spec, opened.source
    notes = (source.note, head_note(spec, source), _experts_note(opened))
    note = "".join(f"; {one}" for one in notes if one)
    parameters = f"{size.parameters / 1e6:.1f} M parameters"
    steps.add("source", f"{spec.model_type}, {len(spec.layers)} layers, {parameters}{note}")
    if rotary := rope_note(spec, llm_options(opened.config)):
        steps.add("rope", rotary)


def _experts_note(opened: OpenedDecoder) -> str:
    """Describe how MXFP4 experts, a format that TensorRT lacks, are stored; empty if there are none."""
    if not opened.source.has_mxfp4:
        return ""
    if llm_options(opened.config).experts == "all":
        return "experts dequantized from MXFP4, exactly in bf16 and fp32"
    return "experts kept in MXFP4"


def _write_network(graph: Graph, request: StageRequest, opened: OpenedDecoder, steps: Steps) -> Graph:
    """Write the network, checking every weight, and record the steps."""
    weights, options = opened.weights(), llm_options(opened.config)
    steps.add("weights", f"{len(weights)} found, all names and shapes right")
    if opened.config.build.sparse_weights:
        steps.add("sparsity", check_sparse(opened, weights))
    if in_place := use_plugin(graph, opened, request.options.compute_capabilities):
        steps.add("attention", in_place)
    where = opened.source.where
    with stored_names(weights, where):
        graph = opened.write(graph, Reported(weights, steps.report, where))
    detail = f"{opened.config.precision}, {options.max_batch_size} slots of {options.max_sequence_length} tokens"
    if options.max_sequence_length == opened.spec.max_position_embeddings:
        detail += " (all that the model has positions for)"
    steps.add("network", f"{graph.network.num_layers} layers in {detail}; all weights finite")
    return graph


def _carry(opened: OpenedDecoder, folder: Path, steps: Steps) -> None:
    """Write config, spec and tokenizer into the bundle, and the embedding table if the engine takes embeddings."""
    (folder / "model").mkdir(exist_ok=True)
    text = json.dumps(_named(opened.source.config), indent=1)
    (folder / "model" / "config.json").write_text(text + "\n", encoding="utf-8")
    write_spec(opened.spec, folder)
    written = opened.source.tokenizer.write(folder / "model")
    steps.add("tokenizer", ", ".join(path.name for path in written) or "the source has none")
    if opened.takes_embeddings:
        table = embedding_table(opened.spec, opened.all_weights(), dtype_of(opened.config.precision))
        path = write_embeddings(table, folder)
        steps.add("embeddings", f"{path.name}, {path.stat().st_size / 2**20:.1f} MiB, is read next to the engine")


def _named(config: Mapping[str, object]) -> dict[str, object]:
    """Return a config.json with `architectures`, which servers need and some sources (GGUF, for one) leave out."""
    return {"architectures": [hf_class(str(config["model_type"]))], **config}


def use_plugin(graph: Graph, opened: OpenedDecoder, capabilities: Sequence[int]) -> str:
    """Use the attention plugin in `graph` where a layer allows it; return a description, empty if all pages are copied.

    capabilities: SM numbers of the engine's GPUs. Raises ConfigError if plugins are required and a layer cannot use
    one, BackendError if TensorRT's plugin module or a GPU is missing.
    """
    options = opened.options(graph.backend.name)
    if not options.has_pages_in_place:
        return ""
    kept = obstacles(opened.rank_spec, options)
    others = _by_reason(kept)
    if others and opened.config.custom_ops.plugins == "always":
        fix = "set `auto`, which lets these layers copy their pages, or `never`"
        what = f"the plugin of PagedAttention cannot be the attention of {'; '.join(others)}"
        raise ConfigError("the config does not fit its model", [Problem(what, "custom_ops.plugins", fix)])
    in_place = sum(not reason for reason in kept.values())
    if in_place:
        graph.plugins = register_plugins(graph.backend, ("PagedAttention",), capabilities)
    counted = f"{in_place} of {len(kept)} layers with attention read pages in place, by a plugin"
    return "; copies of pages in ".join([counted, *others[:1]]) + "".join(f"; {other}" for other in others[1:])


def _by_reason(kept: Mapping[int, str]) -> list[str]:
    """Return texts that list the layers that copy their pages, one per reason."""
    reasons = dict.fromkeys(reason for reason in kept.values() if reason)
    layers = {reason: [index for index, layer_reason in kept.items() if layer_reason == reason] for reason in reasons}
    return [f"layers {', '.join(map(str, indices))} ({reason})" for reason, indices in layers.items()]


_SHOWN = 4


def check_sparse(opened: OpenedDecoder, weights: Mapping[str, Any]) -> str:
    """Return a text with the number of 2:4 sparse layers: all of the rank's except the head and excluded ones.

    weights: the rank's, by path. Raises ConfigError naming layers that are not sparse.
    """
    spec, options = opened.rank_spec, opened.config.quantize
    layers = pruned_layers(spec, () if options is None else options.exclude)
    dense = []
    for layer in layers:
        matrix = np.asarray(weights[f"{layer.name}.weight"], np.float32)
        if not is_pruned(matrix.T if spec.is_in_out else matrix):
            dense.append(layer.name)
    if dense:
        shown = f"{len(dense)} of {len(layers)} linear layers, {', '.join(dense[:_SHOWN])},"
        what = f"{shown} have more than two weights in four that are not zero"
        problem = Problem(what, "build.sparse_weights", "prune them with `quantize.sparsity: 2:4`, or leave it out")
        raise ConfigError(f"the config does not fit {opened.source.where}", [problem])
    return f"{len(layers)} linear layers are 2:4"
