"""Write precision into an ONNX model: TensorRT 11 and RTX use the network's types as they are."""

import contextlib
import difflib
import fnmatch
import hashlib
import importlib.metadata
import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from trtkit.arrays import Arrays
from trtkit.dtypes import dtype_of, from_onnx
from trtkit.errors import ConfigError, Problem
from trtkit.files import CASTS, cache_folder, replace_file, sha256_of
from trtkit.network.custom_op import DOMAIN
from trtkit.network.onnx.care import all_nodes, opset_of
from trtkit.network.onnx.function import placed
from trtkit.network.onnx.io import random_inputs

Shapes = dict[str, tuple[int, ...]]
_FLOATS = ("fp32", "fp16", "bf16")
# ONNX's operators accept bf16 from this opset on.
_BF16_OPSET = 22
_LARGEST_RANGE_RUN_BYTES = 6 * 2**30


def select_nodes(model: onnx.ModelProto, patterns: Sequence[str], key: str = "keep_fp32") -> list[str]:
    """Return the names of nodes that match `patterns`: globs of names, or `op:Type`. key: the config's, for errors.

    Raises ConfigError for every pattern without a match.
    """
    names = [node.name for node in model.graph.node]
    selected: dict[str, None] = {}
    problems = []
    for pattern in patterns:
        matched = [node.name for node in model.graph.node if matches(node, pattern)]
        selected.update(dict.fromkeys(matched))
        if not matched:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3)
            problems.append(Problem(f"`{pattern}` matches no node", key, f"near: {', '.join(near)}"))
    if problems:
        raise ConfigError("invalid config", problems, fix="`trtkit inspect MODEL --layers` lists the names")
    return list(selected)


def cast_to(
    model: onnx.ModelProto, precision: str, keep: Sequence[str], shapes: Shapes, folder: Path
) -> tuple[onnx.ModelProto, str]:
    """Convert `model` to `precision` (fp16 or bf16) with ModelOpt AutoCast; inputs and outputs keep their types.

    keep: names of nodes left in fp32. shapes: typical input shapes, for the run that measures value ranges; that run
    holds every tensor at once, and is skipped if they are too large together. Returns the model and a description.
    """
    import onnx

    unmeasured = _why_unmeasured(model, shapes)
    original, model = model, _copy(model)
    inside = open_calls(model)  # written for the types that are given, they keep these
    if precision == "bf16":
        model = _lifted_for_bf16(model)
    source = folder / "before-cast.onnx"
    onnx.save(model, str(source))
    options: dict[str, Any] = {
        "low_precision_type": precision,
        "nodes_to_exclude": [f"^{re.escape(name)}$" for name in (*keep, *inside)],
        "keep_io_types": True,
        **({"data_max": np.inf} if unmeasured else {}),
    }
    cast = _converted(source, random_inputs(model, shapes), options)
    close_calls(cast, original)
    del cast.metadata_props[:]
    cast.metadata_props.extend(model.metadata_props)  # AutoCast drops them; text recognizers keep their alphabet there
    words = f"; ranges not measured: {unmeasured}" if unmeasured else ""
    return cast, f"{precision} by AutoCast: {_computed_types(cast, precision)}{words}"


# Packages that AutoCast's result depends on.
_TOOLS = (
    "nvidia-modelopt", "numpy", "onnx", "onnx-graphsurgeon", "onnxconverter-common", "onnxruntime", "onnxruntime-gpu",
    "onnxscript", "onnxslim", "polygraphy",
)  # fmt: skip
# Results of larger models are not cached: AutoCast's fixed costs are a small part of their time.
_LARGEST_KEPT_BYTES = 256 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size
_MOST_KEPT_BYTES = 2 << 30


def _converted(source: Path, inputs: Arrays, options: Mapping[str, Any]) -> onnx.ModelProto:
    """Return AutoCast's result, cached by a digest of its inputs: half of its time is importing ModelOpt.

    inputs: what value ranges are measured on.
    """
    import onnx

    is_small = source.stat().st_size <= _LARGEST_KEPT_BYTES
    path = cache_folder() / CASTS / _cast_key(source, inputs, options) if is_small else None
    if path is not None and (kept := _kept(path)) is not None:
        return onnx.load_model_from_string(kept)
    from modelopt.onnx.autocast import convert_to_mixed_precision

    data = source.with_name("calibration.npz")
    np.savez(data, allow_pickle=False, **inputs)
    cast: onnx.ModelProto = convert_to_mixed_precision(str(source), calibration_data=str(data), **options)
    if path is not None:
        _keep(path, cast.SerializeToString())
    return cast


def _cast_key(source: Path, inputs: Arrays, options: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a model's file, inputs, options, and the versions of the packages involved."""
    versions = {}
    for name in _TOOLS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    facts = [sha256_of(source), dict(options), versions]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, array in inputs.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _kept(path: Path) -> bytes | None:
    """Return the contents cached at `path`; None if there are none, or they are damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a cache that others share may be read-only
        os.utime(path)
    digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return data if hashlib.sha256(data).digest() == digest else None


def _keep(path: Path, data: bytes) -> None:
    """Cache `data` at `path` after its digest, and evict the least recently used files beyond the limit.

    A full or read-only cache is ignored, since the build itself succeeded; so is a file that another process removes.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, hashlib.sha256(data).digest() + data)
        size = 0
        for file in sorted(path.parent.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True):
            size += file.stat().st_size
            if size > _MOST_KEPT_BYTES:
                file.unlink()


def _computed_types(model: onnx.ModelProto, precision: str) -> str:
    """Describe the types in which nodes compute, by their outputs without casts, and which stayed in fp32."""
    values = (*model.graph.value_info, *model.graph.output)
    types = {value.name: _dtype_name(value) for value in values}
    nodes = [(node, types.get(node.output[0])) for node in model.graph.node if node.op_type != "Cast" and node.output]
    lowered = sum(dtype == precision for _, dtype in nodes)
    kept = Counter(node.op_type for node, dtype in nodes if dtype == "fp32")
    operators = ", ".join(f"{count} {operator}" for operator, count in kept.most_common(5))
    more = ", ..." if len(kept) > 5 else ""
    return f"{lowered} nodes in {precision}, {kept.total()} in fp32" + (f" ({operators}{more})" if kept else "")


def _dtype_name(value: onnx.ValueInfoProto) -> str:
    """Return trtkit's name of a value's type; empty for types that TensorRT lacks."""
    from onnx import TensorProto

    dtype = from_onnx(TensorProto.DataType.Name(value.type.tensor_type.elem_type))
    return "" if dtype is None else dtype.name


def _why_unmeasured(model: onnx.ModelProto, shapes: Shapes) -> str:
    """Return why AutoCast cannot measure the ranges of all tensors in a run at `shapes`; empty if it can.

    They must fit into memory together, and ONNX Runtime must know the types: its fusions take Q/DQ for 8-bit integers.
    If it cannot, only the requested nodes stay in fp32, and `verify` tells whether more should.
    """
    import onnx

    if any(tensor.data_type == onnx.TensorProto.FLOAT8E4M3FN for tensor in model.graph.initializer):
        return "ONNX Runtime does not run fp8"

    fixed = _copy(model)
    for value in fixed.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    del fixed.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph.value_info
    except ValueError:  # protobuf's limit of 2 GiB
        return ""
    elements = sum(math.prod(max(d.dim_value, 1) for d in value.type.tensor_type.shape.dim) for value in inferred)
    return "" if 4 * elements <= _LARGEST_RANGE_RUN_BYTES else "too large a run"


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def _lifted_for_bf16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in the opset that AutoCast would lift it to, keeping nodes' names, which AutoCast loses."""
    import onnxscript

    if opset_of(model) >= _BF16_OPSET:
        return model
    lifted = onnxscript.ir.serde.deserialize_model(model)
    onnxscript.version_converter.convert_version(lifted, _BF16_OPSET, fallback=True)
    converted: onnx.ModelProto = onnxscript.ir.serde.serialize_model(lifted)
    names = {node.output[0]: node.name for node in all_nodes(model.graph) if node.output}
    for node in all_nodes(converted.graph):
        node.name = names.get(node.output[0], node.name) if node.output else node.name
    return converted


def cast_io(model: onnx.ModelProto, io_type: str) -> str:
    """Change floating-point inputs and outputs to the type `io_type`, with casts just inside the graph."""
    if io_type == "model":
        return "kept"
    from onnx import TensorProto

    wanted = TensorProto.DataType.Value(dtype_of(io_type).onnx)
    floats = {TensorProto.DataType.Value(dtype_of(name).onnx) for name in _FLOATS} - {wanted}
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in initializers and v.type.tensor_type.elem_type in floats]
    outputs = [v for v in model.graph.output if v.type.tensor_type.elem_type in floats]
    for value in inputs:
        _cast_input(model, value, wanted)
    for value in outputs:
        _cast_output(model, value, wanted)
    return f"{len(inputs)} inputs, {len(outputs)} outputs to {io_type}"


def matches(node: onnx.NodeProto, pattern: str) -> bool:
    """Whether a pattern, a glob of names or `op:Type`, selects a node."""
    if pattern.startswith("op:"):
        return node.op_type == pattern.removeprefix("op:")
    return fnmatch.fnmatchcase(node.name, pattern)


def _cast_input(model: onnx.ModelProto, value: onnx.ValueInfoProto, wanted: int) -> None:
    """Insert a cast from `requested` back to the input's own type, under a new inner name."""
    from onnx import helper

    inner = f"{value.name}/cast"
    _rename(model, value.name, inner)
    elem_type = value.type.tensor_type.elem_type
    cast = helper.make_node("Cast", [value.name], [inner], name=f"{value.name}/cast_input", to=elem_type)
    model.graph.node.insert(0, cast)
    value.type.tensor_type.elem_type = wanted


def _cast_output(model: onnx.ModelProto, value: onnx.ValueInfoProto, wanted: int) -> None:
    """Rename the tensor after an output and cast it to `requested` under the output's name."""
    from onnx import helper

    inner = f"{value.name}/uncast"
    for node in model.graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == value.name:
                    names[index] = inner
    model.graph.node.append(
        helper.make_node("Cast", [inner], [value.name], name=f"{value.name}/cast_output", to=wanted)
    )
    value.type.tensor_type.elem_type = wanted


def _rename(model: onnx.ModelProto, name: str, new: str) -> None:
    """Rename a tensor wherever a node makes or uses it."""
    for node in all_nodes(model.graph):
        for names in (node.input, node.output):
            for index, current in enumerate(names):
                if current == name:
                    names[index] = new


def open_calls(model: onnx.ModelProto) -> list[str]:
    """Replace calls by bodies, with identities at their boundaries; return the names of all these nodes.

    The functions stay in the model, without a call, so that `close_calls` finds them.
    """
    bodies = {function.name: function for function in model.functions if function.domain == DOMAIN}
    nodes, inside = [], []
    for node in model.graph.node:
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        opened = _opened(node, bodies[node.op_type])
        nodes += opened
        inside += [inner.name for inner in opened]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return inside


def close_calls(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Restore the calls of `original`, on the tensors at their bodies' boundaries in `model`."""
    calls = [node for node in original.graph.node if node.domain == DOMAIN]
    by_name = {node.name: node for node in model.graph.node}
    for call in calls:
        closed = onnx.NodeProto()
        closed.CopyFrom(call)
        for index in range(len(call.input)):
            closed.input[index] = by_name[_border(call, "input", index)].input[0]
        for index in range(len(call.output)):
            closed.output[index] = by_name[_border(call, "output", index)].output[0]
        last = by_name[_border(call, "output", len(call.output) - 1)]
        last.CopyFrom(closed)
    inside = tuple(f"{call.name}/" for call in calls)
    kept = [node for node in model.graph.node if not (inside and node.name.startswith(inside))]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    _take_functions(model, original)


def _opened(node: onnx.NodeProto, body: onnx.FunctionProto) -> Sequence[onnx.NodeProto]:
    """Return a body with identities before its inputs and after its outputs."""
    before = [_identity(node, "input", index, name) for index, name in enumerate(node.input)]
    after = [_identity(node, "output", index, name) for index, name in enumerate(node.output)]
    names = dict(zip(body.input, (border.output[0] for border in before), strict=False))
    names |= dict(zip(body.output, (border.input[0] for border in after), strict=False))
    return [*before, *(placed(inner, node.name, names) for inner in body.node), *after]


def _identity(node: onnx.NodeProto, side: str, index: int, tensor: str) -> onnx.NodeProto:
    name = _border(node, side, index)
    ends = (tensor, name) if side == "input" else (name, tensor)
    return helper.make_node("Identity", [ends[0]], [ends[1]], name=name)


def _border(node: onnx.NodeProto, side: str, index: int) -> str:
    return f"{node.name}/border/{side}_{index}"


def _take_functions(model: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Give a model the functions of another, and the domain that they are in."""
    del model.functions[:]
    model.functions.extend(original.functions)
    if model.functions and all(entry.domain != DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
