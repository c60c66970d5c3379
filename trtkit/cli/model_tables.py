"""What `trtkit build` and `trtkit inspect` show of a model: its tensors, parts, layers and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.bundle.manifest import Manifest
from trtkit.cli.tables import listing, pairs
from trtkit.network.input_spec import RANK_OWNERS, output_of_prompts
from trtkit.report.tables import count_text, plural, shape_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import ModelRecord
    from trtkit.bundle.records import ImagesRecord, IoRecord, PortRecord, StageRecord
    from trtkit.jobs.events import Step
    from trtkit.network.record import LayerRecord, NetworkRecord

Json = dict[str, Any]

# How many of the costliest layers and largest tensors are listed.
_TOP = 8


@dataclass(frozen=True)
class Inspected:
    """What `trtkit inspect` shows. kind: `bundle` or `network`. quantized: how, as data; None if it is not."""

    kind: str
    model: ModelRecord
    network: NetworkRecord
    quantized: Json | None


def bundle_summary(bundle: Bundle) -> Table:
    """Return the table that ends a build."""
    manifest = bundle.manifest
    metrics, totals = manifest.metrics, manifest.totals
    table = pairs()
    table.add_row("backend", f"{manifest.backend.name} {manifest.backend.version}, target {manifest.target.name}")
    _add_tensors(table, manifest)
    table.add_row("profiles", profiles_text(manifest.model_dump(mode="json")["profiles"], manifest.inputs))
    engines = [engine.model_dump() for engine in manifest.engines]
    table.add_row("engine", f"{_engines_text(engines)}, {totals.layers} layers")
    table.add_row("weights", weights_text(totals.weight_bytes))
    table.add_row("work", f"{count_text(totals.flops)}FLOP, {size_text(totals.bytes_moved)} moved (opt shapes)")
    _add_tokens(table, manifest)
    seconds = f"prepare {metrics.prepare_s:.1f} s, parse {metrics.parse_s:.2f} s, build {metrics.build_s:.1f} s"
    table.add_row("took", f"{seconds}, peak memory {metrics.peak_memory_mib:.0f} MiB")
    for warning in manifest.warnings:
        table.add_row("warning", warning)
    return table


def _add_tensors(table: Table, model: ModelRecord) -> None:
    """Add inputs and outputs: those that the runtime makes, the caches of all layers and adapters as one row each."""
    specs = [tensor.spec for tensor in model.inputs if tensor.feeder and tensor.axes]
    kept = [spec for spec in specs if spec.is_kept]
    groups = [
        {spec.name for spec in kept} | {spec.updated for spec in kept},
        {spec.name for spec in specs if spec.feeder == "slots"} | {output_of_prompts(spec) for spec in kept},
    ]
    grouped = set().union(*groups)
    for tensor in model.inputs:
        if tensor.feeder not in ("scheduler", "adapter") and tensor.name not in grouped:
            table.add_row("input", f"{tensor.name} {tensor.dtype} {shape_text(tensor.shape)}")
    if runtime := [tensor for tensor in model.inputs if tensor.feeder == "scheduler"]:
        dtypes = ", ".join(dict.fromkeys(tensor.dtype for tensor in runtime))
        table.add_row("input", f"{', '.join(tensor.name for tensor in runtime)} {dtypes}, from the runtime")
    for names in groups:
        _add_group(table, "input", [tensor for tensor in model.inputs if tensor.name in names])
    if adapters := [tensor for tensor in model.inputs if tensor.feeder == "adapter"]:
        matrices = [tensor for tensor in adapters if tensor.name != RANK_OWNERS]
        first_to_last = f"{matrices[0].name} .. {matrices[-1].name}"
        of_adapters = f"{matrices[0].dtype}, of LoRA adapters; {RANK_OWNERS} {adapters[0].dtype}"
        table.add_row("input", f"{first_to_last} {of_adapters}")
    for tensor in model.outputs:
        if tensor.name not in grouped:
            table.add_row("output", f"{tensor.name} {tensor.dtype} {shape_text(tensor.shape)}")
    for names in groups:
        _add_group(table, "output", [tensor for tensor in model.outputs if tensor.name in names])


def _add_group(table: Table, kind: str, tensors: Sequence[IoRecord]) -> None:
    """Add tensors of all layers as one row, if there are any."""
    if tensors:
        shapes = dict.fromkeys(shape_text(tensor.shape) for tensor in tensors)
        table.add_row(kind, f"{tensors[0].name} .. {tensors[-1].name} {tensors[0].dtype} {', '.join(shapes)}")


def _engines_text(engines: list[Json]) -> str:
    """Return the size of the engine, or of each of several."""
    sizes = [size_text(engine["size_bytes"]) for engine in engines]
    if len(sizes) == 1:
        return sizes[0]
    names = [engine["path"].rpartition("/")[2].removesuffix(".plan") for engine in engines]
    return ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))


def _add_tokens(table: Table, model: ModelRecord) -> None:
    """Add what a language model weighs, and its vision tower."""
    decoder = model.decoder
    if decoder is None:
        return
    parameters, weights = count_text(decoder.parameters).strip(), size_text(decoder.weight_bytes)
    table.add_row("model", f"{model.model_type}, {parameters} parameters, {weights}")
    token, slot = size_text(decoder.kv_bytes_per_token), size_text(decoder.kv_bytes_per_slot)
    table.add_row("KV cache", f"{token} per token, {slot} per slot")
    if decoder.state_bytes_per_slot:
        kind = "recurrent states" if decoder.encoder is None else "of the encoder"
        table.add_row(kind, f"{size_text(decoder.state_bytes_per_slot)} per slot")
    if (speculator := decoder.speculator) is not None:
        held = f"{count_text(speculator.parameters).strip()} parameters, weights {size_text(speculator.weight_bytes)}"
        per_token, per_slot = size_text(speculator.kv_bytes_per_token), size_text(speculator.kv_bytes_per_slot)
        cache = f"KV cache {per_token} per token, {per_slot} per slot"
        kept = cache if speculator.kv_bytes_per_token else "no KV cache"
        most = f"; at most {speculator.most_tokens} tokens in a step" if speculator.most_tokens else ""
        table.add_row("speculator", f"{speculator.model_type}, {held}; {kept}{most}")
    if decoder.images is not None:
        _add_vision(table, decoder.images, model.stages[0])


def _add_vision(table: Table, images: ImagesRecord, tower: StageRecord) -> None:
    """Add what the vision tower before an LLM takes and gives."""
    inputs = ", ".join(f"{tensor.name} {shape_text(tensor.shape)}" for tensor in tower.inputs)
    tokens = f"{images.tokens_per_image or 'a variable number of'} tokens per image"
    limit = f"{images.max_tokens} tokens" if images.layout == "patches" else f"{images.max_images} images"
    table.add_row("vision", f"{images.model_type}, {inputs}; {tokens}, at most {limit} per call")
    totals = tower.totals
    work = f"{count_text(totals.flops)}FLOP, {size_text(totals.bytes_moved)} moved (opt shapes)"
    table.add_row("", f"{totals.layers} layers, weights {weights_text(totals.weight_bytes)}, {work}")


def parts_table(model: ModelRecord) -> Table:
    """List the parts in order: what each takes, from where, and what it gives."""
    before = "head" if model.decoder is not None and model.decoder.speculator is not None else "tower"
    form = model.config.compose if model.decoder is None else f"{before} and decoder"
    rows = listing(f"parts of {model.model_type}, {form}", "part", "inputs", "outputs", "engine", "layers")
    for stage in model.stages:
        engine = stage.engine if isinstance(model, Manifest) else stage.name
        for part in stage.parts:
            takes = "\n".join(_port(port, part.feeds[port.name]) for port in part.inputs)
            gives = "\n".join(_port(port, port.name) for port in part.outputs)
            rows.add_row(f"{part.name} ({part.kind})", takes, gives, engine, str(part.layers))
    return rows


def _port(port: PortRecord, name: str) -> str:
    return f"{name} {port.dtype} {shape_text(port.shape)}"


def inspect_tables(inspected: Inspected, *, every_layer: bool) -> Iterator[RenderableType]:
    """Yield the tables of `trtkit inspect`."""
    network, model = inspected.network, inspected.model
    yield _overview(inspected)
    if sum(len(stage.parts) for stage in model.stages) > 1:
        yield parts_table(model)
    yield _steps(model.steps)
    yield _types(network)
    if every_layer:
        yield _layers(network.layers, "layers in order")
    else:
        costly = sorted(network.layers, key=lambda layer: layer.flops, reverse=True)[:_TOP]
        yield _layers(costly, f"top {len(costly)} layers by FLOPs")
        yield _tensors(network.layers)


def _layers_text(manifest: Manifest) -> str:
    """Return what the reference executor runs a bundle from."""
    networks = [network.layers for stage in manifest.stages for network in stage.networks]
    records = [record for record in networks if record is not None]
    if len(records) < len(networks):
        return "the reference executor writes the networks again: they have plugins"
    size = sum(file.size_bytes for record in records for file in (record.layers, record.weights) if file is not None)
    sources = {number for record in records for number in record.sources if number < len(manifest.sources)}
    mapped = f", weights mapped from {plural(len(sources), 'file')} of the source" if sources else ""
    return f"the reference executor runs the layers in the bundle, {size_text(size)}{mapped}"


def _overview(inspected: Inspected) -> Table:
    """Summarize config, inputs, outputs, profiles and totals."""
    model, network, config = inspected.model, inspected.network, inspected.model.config
    totals = network.totals()
    table = pairs(inspected.kind)
    table.add_row("name", config.name)
    kind, origin = next((kind, value) for kind, value in config.source if value is not None)
    table.add_row("source", f"{kind}: {origin if isinstance(origin, str) else origin.factory}")
    kept = f", kept in fp32: {', '.join(config.keep_fp32)}" if config.keep_fp32 else ""
    table.add_row("precision", f"{config.precision}{kept}; I/O types: {config.io_types}")
    if quantized := inspected.quantized:
        table.add_row("quantized", ": ".join(part for part in (quantized["method"], quantized["said"]) if part))
    table.add_row("target", config.target)
    build = {name: value for name, value in config.build if value is not None and value is not False}
    options = ", ".join(f"{name} {str(value).lower()}" for name, value in build.items())
    table.add_row("build", f"{options}, fold_constants {str(config.fold_constants).lower()}")
    _add_tensors(table, model)
    table.add_row("profiles", profiles_text(model.model_dump(mode="json")["profiles"], model.inputs))
    if isinstance(model, Manifest):
        table.add_row("engine", _engines_text([engine.model_dump() for engine in model.engines]))
        table.add_row("backend", f"{model.backend.name} {model.backend.version}")
        table.add_row("without it", _layers_text(model))
    table.add_row("weights", weights_text(totals.weight_bytes))
    table.add_row("work", f"{count_text(totals.flops)}FLOP, {size_text(totals.bytes_moved)} moved")
    _add_tokens(table, model)
    return table


def _steps(steps: Iterable[Step]) -> Table:
    table = pairs("changes to the model")
    for step in steps:
        table.add_row(step.name, step.detail)
    return table


def _types(network: NetworkRecord) -> Table:
    """Count layers, FLOPs and bytes by layer type."""
    table = listing("layers by type", "type", "layers", "FLOP", "bytes moved")
    by_type: dict[str, list[LayerRecord]] = {}
    for layer in network.layers:
        by_type.setdefault(layer.type, []).append(layer)
    for kind, layers in sorted(by_type.items(), key=lambda item: -len(item[1])):
        flops, moved = sum(layer.flops for layer in layers), sum(layer.bytes_moved for layer in layers)
        table.add_row(kind.lower(), str(len(layers)), count_text(flops), size_text(moved))
    return table


def _layers(layers: Sequence[LayerRecord], title: str) -> Table:
    table = listing(title, "name", "type", "output", "FLOP", "moved")
    for layer in layers:
        shape = f"{layer.outputs[0].dtype} {shape_text(layer.outputs[0].shape)}" if layer.outputs else " []"
        table.add_row(layer.name, layer.type.lower(), shape, count_text(layer.flops), size_text(layer.bytes_moved))
    return table


def _tensors(layers: Sequence[LayerRecord]) -> Table:
    """List the largest tensors that layers compute."""
    table = listing("largest tensors", "name", "type", "shape", "size")
    computed = [tensor for layer in layers if layer.type != "CONSTANT" for tensor in layer.outputs]
    for tensor in sorted(computed, key=lambda tensor: -tensor.size_bytes)[:_TOP]:
        table.add_row(tensor.name, tensor.dtype, shape_text(tensor.shape), size_text(tensor.size_bytes))
    return table


def profiles_text(profiles: list[Json], inputs: Sequence[IoRecord] = ()) -> str:
    """Return one line an input and profile: `x: 1x3x48x32 | 1x3x48x320 | 8x3x48x960`.

    Of an LLM's profiles, the new tokens tell the rest.
    """
    implied = {tensor.name for tensor in inputs if tensor.feeder not in (None, "request", "stage")}
    lines = []
    for profile in profiles:
        for name in (name for name in profile if name not in implied):
            triple = " | ".join("x".join(str(dim) for dim in profile[name][kind]) for kind in ("min", "opt", "max"))
            lines.append(f"{name}: {triple}")
    return "\n".join(lines) or "static shapes"


def weights_text(by_type: Json) -> str:
    """Return sizes by type, largest first."""
    ordered = sorted(by_type.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size_text(size)}" for name, size in ordered) or "none"
