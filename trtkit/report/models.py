"""A model as shown by `trtkit build` and `trtkit inspect`, and a bundle's page: tensors, parts, layers and types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.bundle.manifest import Manifest
from trtkit.network.input_spec import RANK_OWNERS, output_of_prompts
from trtkit.report.tables import (
    Facts,
    Table,
    count_text,
    counted,
    named,
    numbers,
    plural,
    shape_text,
    size,
    size_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import ModelRecord
    from trtkit.bundle.records import ImagesRecord, IoRecord, PortRecord, StageRecord
    from trtkit.config.quantize import QuantizeOptions
    from trtkit.network.record import LayerRecord, NetworkRecord
    from trtkit.report.page import PageOrigin
    from trtkit.report.tables import Part, Value

    Rows = list[tuple[str, Value]]

Json = dict[str, Any]

# Number of costliest layers and largest tensors in lists.
_TOP = 8


@dataclass(frozen=True)
class Inspected:
    """The subject of `trtkit inspect`. kind: `bundle` or `network`."""

    kind: str
    model: ModelRecord
    network: NetworkRecord

    def quantized(self) -> dict[str, object] | None:
        """Return the network's quantization, as requested by its config and as built; None if it is not quantized."""
        from trtkit.quantized_model import describe

        options, model = self.model.config.quantize, self.network.quantization
        if options is None and model is None:
            return None
        forms = [] if model is None else list(model.layers.values())
        return {
            "method": None if options is None else _methods(options),
            "blocks": sorted({form.block for form in forms if form.block}),
            "kv_cache": None if model is None else model.kv_cache,
            "layers": len(forms),
            "said": "" if model is None else describe(model),
        }


def _methods(options: QuantizeOptions) -> str:
    """Return the methods requested by a config and for its parts."""
    whole = [] if options.method == "none" and options.parts else [options.method]
    return ", ".join([*whole, *(f"{name} {part.method}" for name, part in options.parts.items())])


def bundle_summary(bundle: Bundle) -> Facts:
    """Return the summary at the end of a build."""
    manifest = bundle.manifest
    metrics, totals = manifest.metrics, manifest.totals
    rows: Rows = []
    rows.append(("backend", f"{manifest.backend.name} {manifest.backend.version}, target {manifest.target.label}"))
    _add_tensors(rows, manifest)
    rows.append(("profiles", profiles_text(manifest.model_dump(mode="json")["profiles"], manifest.inputs)))
    engines = [engine.model_dump() for engine in manifest.engines]
    rows.append(("engine", f"{_engines_text(engines)}, {totals.layers} layers"))
    rows.append(("weights", weights_text(totals.weight_bytes)))
    rows.append(("work", f"{count_text(totals.flops)}FLOP, {size_text(totals.bytes_moved)} moved (opt shapes)"))
    _add_tokens(rows, manifest)
    seconds = f"prepare {metrics.prepare_s:.1f} s, parse {metrics.parse_s:.2f} s, build {metrics.build_s:.1f} s"
    rows.append(("took", f"{seconds}, peak memory {metrics.peak_memory_mib:.0f} MiB"))
    for warning in manifest.warnings:
        rows.append(("warning", warning))
    return Facts("", rows)


def _add_tensors(rows: Rows, model: ModelRecord) -> None:
    """Add inputs and outputs; the runtime's own, and all layers' caches and adapters, take one row each."""
    specs = [tensor.spec for tensor in model.inputs if tensor.feeder and tensor.axes]
    kept = [spec for spec in specs if spec.is_kept]
    groups = [
        {spec.name for spec in kept} | {spec.updated for spec in kept},
        {spec.name for spec in specs if spec.feeder == "slots"} | {output_of_prompts(spec) for spec in kept},
    ]
    grouped = set().union(*groups)
    for tensor in model.inputs:
        if tensor.feeder not in ("scheduler", "adapter") and tensor.name not in grouped:
            rows.append(("input", f"{tensor.name} {tensor.dtype} {shape_text(tensor.shape)}"))
    if runtime := [tensor for tensor in model.inputs if tensor.feeder == "scheduler"]:
        dtypes = ", ".join(dict.fromkeys(tensor.dtype for tensor in runtime))
        rows.append(("input", f"{', '.join(tensor.name for tensor in runtime)} {dtypes}, from the runtime"))
    for names in groups:
        _add_group(rows, "input", [tensor for tensor in model.inputs if tensor.name in names])
    if adapters := [tensor for tensor in model.inputs if tensor.feeder == "adapter"]:
        matrices = [tensor for tensor in adapters if tensor.name != RANK_OWNERS]
        first_to_last = f"{matrices[0].name} .. {matrices[-1].name}"
        of_adapters = f"{matrices[0].dtype}, of LoRA adapters; {RANK_OWNERS} {adapters[0].dtype}"
        rows.append(("input", f"{first_to_last} {of_adapters}"))
    for tensor in model.outputs:
        if tensor.name not in grouped:
            rows.append(("output", f"{tensor.name} {tensor.dtype} {shape_text(tensor.shape)}"))
    for names in groups:
        _add_group(rows, "output", [tensor for tensor in model.outputs if tensor.name in names])


def _add_group(rows: Rows, kind: str, tensors: Sequence[IoRecord]) -> None:
    """Add the tensors of all layers as one row, if there are any."""
    if tensors:
        shapes = dict.fromkeys(shape_text(tensor.shape) for tensor in tensors)
        rows.append((kind, f"{tensors[0].name} .. {tensors[-1].name} {tensors[0].dtype} {', '.join(shapes)}"))


def _engines_text(engines: list[Json]) -> str:
    """Return the size of the engine, or of each of several."""
    sizes = [size_text(engine["size_bytes"]) for engine in engines]
    if len(sizes) == 1:
        return sizes[0]
    names = [engine["path"].rpartition("/")[2].removesuffix(".plan") for engine in engines]
    return ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))


def _add_tokens(rows: Rows, model: ModelRecord) -> None:
    """Add a language model's sizes and its vision tower."""
    decoder = model.decoder
    if decoder is None:
        return
    parameters, weights = count_text(decoder.parameters).strip(), size_text(decoder.weight_bytes)
    rows.append(("model", f"{model.model_type}, {parameters} parameters, {weights}"))
    token, slot = size_text(decoder.kv_bytes_per_token), size_text(decoder.kv_bytes_per_slot)
    rows.append(("KV cache", f"{token} per token, {slot} per slot"))
    if decoder.state_bytes_per_slot:
        kind = "recurrent states" if decoder.encoder is None else "of the encoder"
        rows.append((kind, f"{size_text(decoder.state_bytes_per_slot)} per slot"))
    if (speculator := decoder.speculator) is not None:
        held = f"{count_text(speculator.parameters).strip()} parameters, weights {size_text(speculator.weight_bytes)}"
        per_token, per_slot = size_text(speculator.kv_bytes_per_token), size_text(speculator.kv_bytes_per_slot)
        cache = f"KV cache {per_token} per token, {per_slot} per slot"
        kept = cache if speculator.kv_bytes_per_token else "no KV cache"
        most = f"; at most {speculator.most_tokens} tokens in a step" if speculator.most_tokens else ""
        rows.append(("speculator", f"{speculator.model_type}, {held}; {kept}{most}"))
    if decoder.images is not None:
        _add_vision(rows, decoder.images, model.stages[0])


def _add_vision(rows: Rows, images: ImagesRecord, tower: StageRecord) -> None:
    """Add the inputs and outputs of the vision tower of an LLM."""
    inputs = ", ".join(f"{tensor.name} {shape_text(tensor.shape)}" for tensor in tower.inputs)
    tokens = f"{images.tokens_per_image or 'a variable number of'} tokens per image"
    limit = f"{images.max_tokens} tokens" if images.layout == "patches" else f"{images.max_images} images"
    rows.append(("vision", f"{images.model_type}, {inputs}; {tokens}, at most {limit} per call"))
    totals = tower.totals
    work = f"{count_text(totals.flops)}FLOP, {size_text(totals.bytes_moved)} moved (opt shapes)"
    rows.append(("", f"{totals.layers} layers, weights {weights_text(totals.weight_bytes)}, {work}"))


def _parts(model: ModelRecord) -> Table:
    """List the parts in order: inputs, their origin, and outputs."""
    before = "head" if model.decoder is not None and model.decoder.speculator is not None else "tower"
    form = model.config.compose if model.decoder is None else f"{before} and decoder"
    rows: list[tuple[Value, ...]] = []
    for stage in model.stages:
        engine = stage.engine if isinstance(model, Manifest) else stage.name
        for part in stage.parts:
            takes = "\n".join(_port(port, part.feeds[port.name]) for port in part.inputs)
            gives = "\n".join(_port(port, port.name) for port in part.outputs)
            rows.append((f"{part.name} ({part.kind})", takes, gives, engine, part.layers))
    columns = (*named("part", "inputs", "outputs", "engine"), *numbers("layers"))
    return Table(f"parts of {model.model_type}, {form}", columns, rows)


def _port(port: PortRecord, name: str) -> str:
    return f"{name} {port.dtype} {shape_text(port.shape)}"


def inspect_tables(inspected: Inspected, *, every_layer: bool) -> Iterator[Part]:
    """Yield the tables of `trtkit inspect`."""
    network, model = inspected.network, inspected.model
    yield _overview(inspected)
    if sum(len(stage.parts) for stage in model.stages) > 1:
        yield _parts(model)
    yield Facts("changes to the model", [(step.name, step.detail) for step in model.steps])
    yield _types(network)
    if every_layer:
        yield _layers(network.layers, "layers in order")
    else:
        costly = sorted(network.layers, key=lambda layer: layer.flops, reverse=True)[:_TOP]
        yield _layers(costly, f"top {len(costly)} layers by FLOPs")
        yield _tensors(network.layers)


def bundle_page(bundle: Bundle, origin: PageOrigin) -> str:
    """Return a bundle as a self-contained page. Raises BundleError."""
    network = bundle.network_record()
    return model_page(Inspected("bundle", bundle.manifest, network), origin)


def model_page(inspected: Inspected, origin: PageOrigin) -> str:
    """Return a bundle, or a network before it is built, as a self-contained page with all layers."""
    from trtkit.report.page import page

    kind, name = inspected.kind, inspected.model.config.name
    parts = [*inspect_tables(inspected, every_layer=False), _layers(inspected.network.layers, "layers in order")]
    return page(f"{kind} {name}", parts, origin)


def _layers_text(manifest: Manifest) -> str:
    """Return from what the reference executor runs a bundle."""
    networks = [network.layers for stage in manifest.stages for network in stage.networks]
    records = [record for record in networks if record is not None]
    if len(records) < len(networks):
        return "the reference executor writes the networks again: they have plugins"
    size = sum(file.size_bytes for record in records for file in (record.layers, record.weights) if file is not None)
    sources = {number for record in records for number in record.sources if number < len(manifest.sources)}
    mapped = f", weights mapped from {plural(len(sources), 'file')} of the source" if sources else ""
    return f"the reference executor runs the layers in the bundle, {size_text(size)}{mapped}"


def _overview(inspected: Inspected) -> Facts:
    """Summarize config, inputs, outputs, profiles and totals."""
    model, network, config = inspected.model, inspected.network, inspected.model.config
    totals = network.totals()
    rows: Rows = []
    rows.append(("name", config.name))
    kind, origin = next((kind, value) for kind, value in config.source if value is not None)
    rows.append(("source", f"{kind}: {origin if isinstance(origin, str) else origin.factory}"))
    kept = f", kept in fp32: {', '.join(config.keep_fp32)}" if config.keep_fp32 else ""
    rows.append(("precision", f"{config.precision}{kept}; I/O types: {config.io_types}"))
    if quantized := inspected.quantized():
        rows.append(("quantized", ": ".join(str(part) for part in (quantized["method"], quantized["said"]) if part)))
    rows.append(("target", config.target))
    build = {name: value for name, value in config.build if value is not None and value is not False}
    options = ", ".join(f"{name} {str(value).lower()}" for name, value in build.items())
    rows.append(("build", f"{options}, fold_constants {str(config.fold_constants).lower()}"))
    _add_tensors(rows, model)
    rows.append(("profiles", profiles_text(model.model_dump(mode="json")["profiles"], model.inputs)))
    if isinstance(model, Manifest):
        rows.append(("engine", _engines_text([engine.model_dump() for engine in model.engines])))
        rows.append(("backend", f"{model.backend.name} {model.backend.version}"))
        rows.append(("without it", _layers_text(model)))
    rows.append(("weights", weights_text(totals.weight_bytes)))
    rows.append(("work", f"{count_text(totals.flops)}FLOP, {size_text(totals.bytes_moved)} moved"))
    _add_tokens(rows, model)
    return Facts(inspected.kind, rows)


def _types(network: NetworkRecord) -> Table:
    """Count layers, FLOPs and bytes by layer type."""
    by_type: dict[str, list[LayerRecord]] = {}
    for layer in network.layers:
        by_type.setdefault(layer.type, []).append(layer)
    rows: list[tuple[Value, ...]] = []
    for kind, layers in sorted(by_type.items(), key=lambda item: -len(item[1])):
        flops, moved = sum(layer.flops for layer in layers), sum(layer.bytes_moved for layer in layers)
        rows.append((kind.lower(), len(layers), counted(flops), size(moved)))
    return Table("layers by type", (*named("type"), *numbers("layers", "FLOP", "bytes moved")), rows)


def _layers(layers: Sequence[LayerRecord], title: str) -> Table:
    rows: list[tuple[Value, ...]] = []
    for layer in layers:
        shape = f"{layer.outputs[0].dtype} {shape_text(layer.outputs[0].shape)}" if layer.outputs else " []"
        rows.append((layer.name, layer.type.lower(), shape, counted(layer.flops), size(layer.bytes_moved)))
    return Table(title, (*named("name", "type", "output"), *numbers("FLOP", "moved")), rows)


def _tensors(layers: Sequence[LayerRecord]) -> Table:
    """List the largest tensors that layers compute."""
    computed = [tensor for layer in layers if layer.type != "CONSTANT" for tensor in layer.outputs]
    rows: list[tuple[Value, ...]] = [
        (tensor.name, tensor.dtype, shape_text(tensor.shape), size(tensor.size_bytes))
        for tensor in sorted(computed, key=lambda tensor: -tensor.size_bytes)[:_TOP]
    ]
    return Table("largest tensors", (*named("name", "type", "shape"), *numbers("size")), rows)


def profiles_text(profiles: list[Json], inputs: Sequence[IoRecord] = ()) -> str:
    """Return one line per input and profile: `x: 1x3x48x32 | 1x3x48x320 | 8x3x48x960`.

    For an LLM's profiles, only the new tokens are shown, which determine the rest.
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
