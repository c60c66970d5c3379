"""A described network as data: inputs, outputs, and every layer with shapes, weights, FLOPs and bytes.

It is stored as a bundle's `network.json` and read strictly, since trtkit may not have written that file.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from trtkit.dtypes import DTYPES
from trtkit.jobs.json_form import from_json, to_json
from trtkit.quantized_model import QuantizedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trtkit.quantization_methods import CacheFormat
    from trtkit.quantized_model import LayerForm

Json = dict[str, Any]


@dataclass(frozen=True)
class TensorRecord:
    """A tensor of the network; unknown sizes are -1. Raises ValueError if the type is unknown."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"tensor `{self.name}` has an unknown type `{self.dtype}`")

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor; 0 if a size is unknown."""
        return 0 if min(self.shape, default=0) < 0 else DTYPES[self.dtype].size_bytes(math.prod(self.shape))


@dataclass(frozen=True)
class LayerRecord:
    """One layer at the described shapes. weight_bytes: by type name."""

    name: str
    type: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    weight_bytes: dict[str, int]
    flops: int
    bytes_moved: int


@dataclass(frozen=True)
class Totals:
    """Counts and sums over all layers of a network, at the shapes that it was described at."""

    layers: int
    layers_by_type: dict[str, int]
    weight_bytes: dict[str, int]
    flops: int
    bytes_moved: int


@dataclass(frozen=True)
class NetworkRecord:
    """A whole network. shapes: the input shapes at which sizes, FLOPs and bytes were counted.

    vision: the network of a language model's vision tower. quantization: the layers that the network API wrote
    quantized, and how; None if it wrote none. Q/DQ from an ONNX file are ordinary layers.
    """

    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    shapes: dict[str, tuple[int, ...]]
    layers: tuple[LayerRecord, ...]
    vision: NetworkRecord | None = None
    quantization: QuantizedModel | None = None

    def with_quantization(self, layers: Mapping[str, LayerForm], kv_cache: CacheFormat | None = None) -> NetworkRecord:
        """Return the record with the writer's quantization of layers, by path, and of caches."""
        return replace(self, quantization=QuantizedModel(dict(layers), kv_cache) if layers or kv_cache else None)

    def totals(self) -> Totals:
        """Return counts and sums over all layers, without those of `vision`."""
        weights: Counter[str] = Counter()
        for layer in self.layers:
            weights.update(layer.weight_bytes)
        return Totals(
            layers=len(self.layers),
            layers_by_type=dict(Counter(layer.type for layer in self.layers).most_common()),
            weight_bytes=dict(weights),
            flops=sum(layer.flops for layer in self.layers),
            bytes_moved=sum(layer.bytes_moved for layer in self.layers),
        )

    def to_json(self) -> Json:
        """Return the record with its totals as JSON data; `vision` only if there is one."""
        data: Json = {**to_json(self), "totals": asdict(self.totals())}
        del data["vision"]
        return data if self.vision is None else {**data, "vision": self.vision.to_json()}


def record_from_json(data: Any) -> NetworkRecord:
    """Return the record that `NetworkRecord.to_json` wrote. Raises TypeError and ValueError with the place."""
    if not isinstance(data, dict):
        raise TypeError(f"expected an object, got {str(data)[:100]!r}")
    fields = {key: value for key, value in data.items() if key not in {"totals", "vision"}}
    record = from_json(NetworkRecord, {**fields, "vision": None})
    if data.get("totals") != asdict(record.totals()):
        raise ValueError("totals: they are not those of the layers")
    return replace(record, vision=record_from_json(data["vision"])) if "vision" in data else record


def join_totals(parts: Iterable[Totals]) -> Totals:
    """Return the sums of several networks' counts."""
    known = list(parts)
    types, weights = Counter[str](), Counter[str]()
    for part in known:
        types.update(part.layers_by_type)
        weights.update(part.weight_bytes)
    return Totals(
        layers=sum(part.layers for part in known),
        layers_by_type=dict(types.most_common()),
        weight_bytes=dict(weights),
        flops=sum(part.flops for part in known),
        bytes_moved=sum(part.bytes_moved for part in known),
    )


def join_records(records: Iterable[NetworkRecord], inputs: Iterable[str], outputs: Iterable[str]) -> NetworkRecord:
    """Return the joined record of several networks. inputs, outputs: names of the model's own."""
    known = list(records)
    models = [record.quantization for record in known if record.quantization is not None]
    quantized = {path: form for model in models for path, form in model.layers.items()}
    inputs_by_name = {tensor.name: tensor for record in known for tensor in record.inputs}
    outputs_by_name = {tensor.name: tensor for record in known for tensor in record.outputs}
    return NetworkRecord(
        tuple(inputs_by_name[name] for name in inputs),
        tuple(outputs_by_name[name] for name in outputs),
        {name: shape for record in known for name, shape in record.shapes.items()},
        tuple(layer for record in known for layer in record.layers),
    ).with_quantization(quantized)
