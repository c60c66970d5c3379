"""The manifest's record of a model whose networks are written; `trtkit inspect` shows it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from trtkit.backends import BACKENDS
from trtkit.builder.embeddings import EMBEDDINGS
from trtkit.builder.encoder import OpenedEncoder
from trtkit.builder.stages import layers_file
from trtkit.builder.vision_language import OpenedVision
from trtkit.builder.write_stages import plan_names
from trtkit.bundle.manifest import ModelRecord
from trtkit.bundle.records import (
    DecoderRecord,
    FileRecord,
    IoRecord,
    LayersRecord,
    OnnxRecord,
    PartRecord,
    PortRecord,
    RankRecord,
    SpeculatorRecord,
    StageRecord,
)
from trtkit.dtypes import dtype_of
from trtkit.files import sha256_of
from trtkit.network.hybrid import input_name, port_dtype
from trtkit.network.layer_file import LayerFiles
from trtkit.network.record import join_records, join_totals
from trtkit.network.targets import capable_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from trtkit.builder.build_inputs import BuildInputs
    from trtkit.builder.stages import DecoderSize, OnnxFile, StageResult
    from trtkit.builder.write_stages import WrittenModel
    from trtkit.config.targets import Target
    from trtkit.dtypes import DType
    from trtkit.models.hybrids.spec import HybridSpec, PartPort
    from trtkit.models.hybrids.spec import Part as SpecPart
    from trtkit.models.model import Part, StagedModel
    from trtkit.network.record import NetworkRecord, TensorRecord


def model_record(inputs: BuildInputs, written: WrittenModel, folder: Path) -> ModelRecord:
    """Return the model's record. folder: the bundle, which paths are relative to."""
    network = joint_network(inputs.model, written)
    sizes = [size for result in written.ranks or written.results[-1:] if (size := result.decoder) is not None]
    spec, seams = inputs.model.spec, _seams(inputs.model)
    stages = _stages(inputs.model, written, folder)
    return ModelRecord(
        config=inputs.config,
        target=_target(inputs, written),
        steps=written.steps,
        inputs=_inputs(network.inputs, written.results[-1], seams),
        outputs=stages[-1].outputs if written.ranks else _outputs(network.outputs),
        profiles=written.profiles,
        model_type=sizes[0].model_type if sizes else "" if spec is None else spec.model_type,
        stages=stages,
        totals=stages[-1].totals if written.ranks else network.totals(),
        labels=inputs.labels,
        decoder=_decoder(inputs, written, sizes, folder) if sizes else None,
    )


def _target(inputs: BuildInputs, written: WrittenModel) -> Target:
    """Return the target, limited to GPUs that support all types of the engines if some do not."""
    target, features = inputs.target, BACKENDS[inputs.backend].features
    all_capable = (capable_of(result.network, target.compute_capabilities, features) for result in written.all_results)
    capabilities = min(filter(None, all_capable), key=len, default=())
    return target.model_copy(update={"compute_capabilities": capabilities})


def file_record(folder: Path, path: str) -> FileRecord | None:
    """Return the record of a file by its path in `folder`; None if there is no such file."""
    file = folder / path
    if not file.exists():
        return None
    return FileRecord(path=path, size_bytes=file.stat().st_size, sha256=sha256_of(file))


def joint_network(model: StagedModel, written: WrittenModel) -> NetworkRecord:
    """Return one record of the whole model.

    All stages' layers joined; for a vision-language model the LLM's with the tower.
    """
    records = [result.network for result in written.results]
    if model.takes_images or model.has_encoder:
        return replace(records[-1], vision=records[0])
    if model.spec is None:
        return records[-1]
    outputs = (name.partition(".")[2] for name in model.spec.outputs)
    return join_records(records, (port.name for port in model.spec.inputs), outputs)


def _stages(model: StagedModel, written: WrittenModel, folder: Path) -> tuple[StageRecord, ...]:
    seams, names = _seams(model), plan_names(model)
    stages = enumerate(zip(model.stages, written.prepared.stages, written.results, strict=True))
    records = tuple(
        StageRecord(
            name=stage.name,
            writer=stage.writer,
            parts=tuple(_part(model, part, result) for part in stage.parts),
            engine=names[index],
            onnx=None if prepared.onnx is None else _onnx(prepared.onnx, folder),
            inputs=_inputs(result.network.inputs, result, seams),
            outputs=_outputs(result.network.outputs),
            profiles=result.profiles,
            totals=result.network.totals(),
            layers=_layers(names[index], result, folder),
        )
        for index, (stage, prepared, result) in stages
    )
    return (*records[:-1], _shared(records[-1], model, written, folder)) if written.ranks else records


def _shared(stage: StageRecord, model: StagedModel, written: WrittenModel, folder: Path) -> StageRecord:
    """Return the record of a decoder that is split over several ranks."""
    engines = plan_names(model)[len(model.stages) - 1 :]
    sizes = [result.decoder for result in written.ranks if result.decoder is not None]
    ranks = tuple(
        RankRecord(
            rank=rank,
            engine=engine,
            inputs=_inputs(result.network.inputs, result, set()),
            outputs=_outputs(result.network.outputs),
            profiles=result.profiles,
            totals=result.network.totals(),
            weight_bytes=size.weight_bytes,
            kv_bytes_per_slot=size.kv_bytes_per_slot,
            layers=_layers(engine, result, folder),
        )
        for rank, (engine, result, size) in enumerate(zip(engines, written.ranks, sizes, strict=True))
    )
    totals = join_totals(rank.totals for rank in ranks)
    return stage.model_copy(update={"outputs": ranks[-1].outputs, "totals": totals, "ranks": ranks})


def _layers(engine: str, result: StageResult, folder: Path) -> LayersRecord | None:
    """Return the record of a network's layer file; None if none was written. engine: the plan's path."""
    if result.layer_sources is None:
        return None
    files = LayerFiles(layers_file(folder / engine), ())
    layers, weights = (file_record(folder, str(path.relative_to(folder))) for path in (files.layers, files.weights))
    assert layers is not None
    return LayersRecord(layers=layers, weights=weights, sources=result.layer_sources)


def _decoder(inputs: BuildInputs, written: WrittenModel, sizes: Sequence[DecoderSize], folder: Path) -> DecoderRecord:
    speculator = written.results[0].decoder if inputs.model.has_speculator else None
    return DecoderRecord(
        vocab_size=sizes[0].vocab_size,
        has_read_only_caches=sizes[0].has_read_only_caches,
        parameters=sizes[0].parameters,
        weight_bytes=sum(size.weight_bytes for size in sizes),
        kv_bytes_per_token=sum(size.kv_bytes_per_token for size in sizes),
        kv_bytes_per_slot=sum(size.kv_bytes_per_slot for size in sizes),
        state_bytes_per_slot=sum(size.state_bytes_per_slot for size in sizes),
        embeddings=file_record(folder, EMBEDDINGS),
        images=inputs.tower.images if isinstance(inputs.tower, OpenedVision) else None,
        encoder=inputs.tower.encoder if isinstance(inputs.tower, OpenedEncoder) else None,
        speculator=None if speculator is None else _speculator(speculator),
    )


def _speculator(size: DecoderSize) -> SpeculatorRecord:
    facts = asdict(size)
    return SpeculatorRecord(**{name: facts[name] for name in SpeculatorRecord.model_fields})


def _seams(model: StagedModel) -> set[str]:
    """Return the names of tensors that stages take from earlier stages."""
    return set() if model.spec is None else {seam.source for seam in model.spec.seams}


def _inputs(tensors: Iterable[TensorRecord], result: StageResult, seams: set[str]) -> tuple[IoRecord, ...]:
    """Return inputs with the facts that their writer recorded."""
    specs = {spec.name: spec for spec in result.inputs}

    def record(tensor: TensorRecord) -> IoRecord:
        known = {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape}
        spec = specs.get(tensor.name)
        if spec is None:
            return IoRecord(**known, feeder="stage" if tensor.name in seams else "request")
        return IoRecord(**known, axes=tuple(a.role for a in spec.axes), feeder=spec.feeder, updated=spec.updated)

    return tuple(record(tensor) for tensor in tensors)


def _outputs(tensors: Iterable[TensorRecord]) -> tuple[IoRecord, ...]:
    return tuple(IoRecord(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape) for tensor in tensors)


def _onnx(onnx: OnnxFile, folder: Path) -> OnnxRecord:
    """Return the record of a stage's ONNX file, with paths relative to the bundle."""
    names = (str(path.relative_to(folder)) for path in onnx.files)
    files = tuple(record for name in names if (record := file_record(folder, name)) is not None)
    path, parsed = (str(file.relative_to(folder)) for file in (onnx.path, onnx.parsed))
    return OnnxRecord(path=path, parsed=parsed, files=files, grid_samples=onnx.grid_samples)


def _part(model: StagedModel, part: Part, result: StageResult) -> PartRecord:
    """Return a part's record. The ports of a one-part stage are the network's own, except a decoder's caches."""
    layers = result.part_layers.get(part.name, 0)
    if model.spec is not None:
        return _spec_part(model.spec, model.spec.part(part.name), layers, dtype_of(model.config.precision))
    caches = {name for spec in result.inputs if spec.is_kept for name in (spec.name, spec.updated)}
    inputs, outputs = (
        tuple(
            PortRecord(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape)
            for tensor in tensors
            if tensor.name not in caches
        )
        for tensors in (result.network.inputs, result.network.outputs)
    )
    feeds = {port.name: port.name for port in inputs}
    return PartRecord(name=part.name, kind=part.kind, inputs=inputs, outputs=outputs, feeds=feeds, layers=layers)


def _spec_part(spec: HybridSpec, part: SpecPart, layers: int, dtype: DType) -> PartRecord:
    """Return the record of a part whose ports its family declares. dtype: the config's precision."""

    def port(tensor: PartPort) -> PortRecord:
        return PortRecord(name=tensor.name, dtype=port_dtype(tensor, part, dtype).name, shape=tensor.shape)

    return PartRecord(
        name=part.name,
        kind=part.kind,
        inputs=tuple(port(tensor) for tensor in part.inputs),
        outputs=tuple(port(tensor) for tensor in part.outputs),
        feeds={tensor.name: input_name(spec, part.name, tensor.name) for tensor in part.inputs},
        layers=layers,
    )
