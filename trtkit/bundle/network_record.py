"""What `network.json` and a manifest's totals must hold, since whoever wrote them may not be trtkit."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, StrictFloat, StrictInt

Number = StrictInt | StrictFloat


class _Record(BaseModel):
    """Other keys may stand beside."""

    model_config = ConfigDict(frozen=True)


class _Tensor(_Record):
    name: str
    dtype: str
    shape: tuple[StrictInt, ...]


class _Layer(_Record):
    name: str
    type: str
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    weight_bytes: dict[str, Number]
    flops: Number
    bytes_moved: Number


class _Totals(_Record):
    layers: StrictInt
    layers_by_type: dict[str, StrictInt]
    weight_bytes: dict[str, Number]
    flops: Number
    bytes_moved: Number


class _Network(_Record):
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]
    shapes: dict[str, tuple[StrictInt, ...]]
    layers: tuple[_Layer, ...]
    totals: _Totals


def checked_network(data: Any) -> dict[str, Any]:
    """Return the record of a network as it was read. Raises pydantic's ValidationError."""
    _Network.model_validate(data)
    record: dict[str, Any] = data
    return record


def _checked_totals(data: dict[str, Any]) -> dict[str, Any]:
    _Totals.model_validate(data)
    return data


Totals = Annotated[dict[str, Any], AfterValidator(_checked_totals)]
