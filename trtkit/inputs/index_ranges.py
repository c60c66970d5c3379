"""The range of random integers: an input that picks rows of a table is drawn from all of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from trtkit.config.schema import ModelConfig

_PASSED_ON = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"}


def with_index_ranges(config: ModelConfig, model: onnx.ModelProto) -> ModelConfig:
    """Return the config with a range for every input that it gives none and that picks rows of a constant table."""
    rows = table_rows(model)
    ranges = {name: (0.0, float(count - 1)) for name, count in rows.items() if name not in config.verify.ranges}
    verify = config.verify.model_copy(update={"ranges": {**ranges, **config.verify.ranges}})
    return config.model_copy(update={"verify": verify}) if ranges else config


def table_rows(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many rows the smallest table has that each input picks rows of, by Gather on axis 0."""
    tables = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if len(tensor.dims) > 1}
    origin = {value.name: value.name for value in model.graph.input}
    rows: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in _PASSED_ON and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        if node.op_type == "Gather" and axis == 0 and node.input[0] in tables and node.input[1] in origin:
            name = origin[node.input[1]]
            rows[name] = min(rows.get(name, tables[node.input[0]]), tables[node.input[0]])
    return rows
