"""Steps that prepare a foreign ONNX model for TensorRT's parser; each returns a description of what it did."""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import ConfigError, Problem, SourceError
from trtkit.network.onnx.io import is_unnamed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx

# The parser reads opset 9 onwards without gaps; older models are lifted to this one.
_OLDEST_OPSET, _LIFT_TO = 9, 13
# Before IR version 4, initializers had to be listed as inputs too.
_OLDEST_IR_VERSION = 8
# The newest that ONNX Runtime 1.31 reads.
NEWEST_IR_VERSION = 13


def sort_nodes(model: onnx.ModelProto, where: str) -> str:
    """Sort nodes topologically, as ONNX requires. Raises SourceError for a cycle."""
    moved = 0
    for graph in all_graphs(model.graph):
        makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
        needs = {index: {makers[name] for name in _read_names(node) if name in makers}
                 for index, node in enumerate(graph.node)}  # fmt: skip
        if all(max(needed, default=-1) < index for index, needed in needs.items()):
            continue
        try:
            order = list(TopologicalSorter(needs).static_order())
        except CycleError as error:
            names = " -> ".join(f"`{graph.node[index].name or graph.node[index].op_type}`" for index in error.args[1])
            raise SourceError(f"nodes wait for each other: {names}", where, "export the model again") from None
        nodes = [type(graph.node[index]).FromString(graph.node[index].SerializeToString()) for index in order]
        del graph.node[:]
        graph.node.extend(nodes)
        moved += sum(number != index for index, number in enumerate(order))
    return f"{moved} nodes moved" if moved else "in order"


def _read_names(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, including those of its branches and bodies."""
    yield from node.input
    for inner in _inner_graphs(node):
        yield from (name for inside in inner.node for name in _read_names(inside))
        yield from (value.name for value in inner.output)


def check(model: onnx.ModelProto, where: str) -> str:
    """Run ONNX's own checker. Raises SourceError with its message."""
    import onnx

    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        first = str(error).strip().splitlines()[0]
        raise SourceError(f"ONNX's checker refuses the model: {first}", where, "export it again") from None
    except ValueError:
        return "skipped: over 2 GiB"
    return f"{len(model.graph.node)} nodes, opset {opset_of(model)}"


def free_initializers(model: onnx.ModelProto) -> str:
    """Make weights constants: old models list them as inputs that a caller could set."""
    initializers = {tensor.name for tensor in model.graph.initializer}
    listed = [value for value in model.graph.input if value.name in initializers]
    for value in listed:
        model.graph.input.remove(value)
    model.ir_version = min(max(model.ir_version, _OLDEST_IR_VERSION), NEWEST_IR_VERSION)
    return f"{len(listed)} taken off the inputs" if listed else "none among the inputs"


def fix_inputs(model: onnx.ModelProto, values: Mapping[str, Any]) -> str:
    """Make inputs constants. Raises ConfigError for unknown inputs and values that they cannot hold."""
    inputs = {value.name: value for value in model.graph.input}
    problems = []
    for name, value in values.items():
        try:
            model.graph.initializer.append(_constant_input(inputs, name, value))
            model.graph.input.remove(inputs[name])
        except ValueError as error:
            problems.append(Problem(str(error), f"fixed_inputs.{name}"))
    if problems:
        raise ConfigError("invalid config", problems)
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _constant_input(inputs: Mapping[str, onnx.ValueInfoProto], name: str, value: Any) -> onnx.TensorProto:
    """Return `value` as input `name`. Raises ValueError if it does not fit."""
    from onnx import helper, numpy_helper

    if name not in inputs:
        raise ValueError(f"unknown input; the model's are {', '.join(inputs)}")
    kind = inputs[name].type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    array = np.asarray(value).astype(dtype)
    if not np.array_equal(array, np.asarray(value)) and np.issubdtype(dtype, np.integer):
        raise ValueError(f"{value} is not a number of type {dtype.name}")
    sizes = [dim.dim_value for dim in kind.shape.dim]
    if array.ndim == 0 and all(size > 0 for size in sizes):
        array = np.full(sizes, array, dtype)
    if array.ndim != len(sizes) or any(size not in {0, have} for size, have in zip(sizes, array.shape, strict=True)):
        raise ValueError(f"{value} does not have the shape {[size or '?' for size in sizes]}")
    return numpy_helper.from_array(array, name)


def name_nodes(model: onnx.ModelProto) -> str:
    """Give every node a unique name, by which its layers are known later."""
    seen: set[str] = set()
    changed = 0
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}_{index}"
            changed += 1
        seen.add(node.name)
    return f"{changed} nodes named" if changed else "all named"


def name_dimensions(model: onnx.ModelProto) -> str:
    """Name unnamed dimensions `<input>.<axis>`.

    TensorRT takes equal names for equal sizes, so a placeholder such as Paddle's `?`, used for several dimensions,
    would tie them together.
    """
    initializers = {tensor.name for tensor in model.graph.initializer}
    renamed = []
    for value in model.graph.input:
        if value.name in initializers:
            continue
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if is_unnamed(dim):
                dim.Clear()
                dim.dim_param = f"{value.name}.{axis}"
                renamed.append(dim.dim_param)
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if is_unnamed(dim):
                dim.Clear()
    return f"named {', '.join(renamed)}" if renamed else "all named"


def lift_opset(model: onnx.ModelProto, where: str, needed: int = 0) -> tuple[onnx.ModelProto, str]:
    """Convert a model older than the parser reads, or than `needed`."""
    import onnx

    opset, lift_to = opset_of(model), max(_LIFT_TO, needed)
    if opset >= max(_OLDEST_OPSET, needed):
        return model, f"opset {opset} kept"
    try:
        lifted = onnx.version_converter.convert_version(model, lift_to)
    except Exception as error:
        raise SourceError(
            f"opset {opset} is too old and does not convert: {error}", where, f"export with opset {lift_to} or newer"
        ) from error
    return lifted, f"opset {opset} lifted to {lift_to}"


def infer_shapes(model: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Annotate tensors with types and shapes, as far as ONNX can infer them."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except ValueError:
        return model, "skipped: over 2 GiB"
    except onnx.shape_inference.InferenceError as error:
        return model, f"skipped: {str(error).strip().splitlines()[0]}"
    return inferred, f"{len(inferred.graph.value_info)} tensors known"


def other_domains(model: onnx.ModelProto) -> str:
    """Count the operators of other domains, and say which ones the model defines."""
    names = [f"{node.domain}::{node.op_type}" for node in all_nodes(model.graph) if node.domain not in {"", "ai.onnx"}]
    defined = {f"{function.domain}::{function.name}" for function in model.functions}
    counts = Counter(names).most_common()
    return ", ".join(f"{count} {name}{' (defined here)' * (name in defined)}" for name, count in counts) or "none"


def grid_sample_modes(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return (node name, `linear`, `nearest` or `cubic`) of every GridSample node, in graph order."""
    spelled = {"bilinear": "linear", "bicubic": "cubic"}
    modes = []
    for node in all_nodes(model.graph):
        if node.op_type == "GridSample" and node.domain in {"", "ai.onnx"}:
            mode = next((a.s.decode() for a in node.attribute if a.name == "mode"), "linear")
            modes.append((node.name, spelled.get(mode, mode)))
    return modes


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operator set."""
    return next((entry.version for entry in model.opset_import if entry.domain in {"", "ai.onnx"}), 0)


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of `graph` and of the graphs inside its control flow."""
    for node in graph.node:
        yield node
        for inner in _inner_graphs(node):
            yield from all_nodes(inner)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and the graphs inside its control flow."""
    yield graph
    for node in graph.node:
        for inner in _inner_graphs(node):
            yield from all_graphs(inner)


def _inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
