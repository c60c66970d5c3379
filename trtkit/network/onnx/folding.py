"""Fold constants, and keep the result only if the model still computes the same and has not grown."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.network.onnx.io import random_inputs
from trtkit.sources.onnx_file import metadata_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import onnx

    from trtkit.arrays import Arrays


ALIASES_KEY = "trtkit.dimension_aliases"
# onnxslim's options, tried in order until the result may be kept, and what each leaves out.
_ATTEMPTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("", {}),
    ("large constants", {"size_threshold": 64 * 1024}),
    ("fused nodes", {"skip_optimizations": ["graph_fusion"]}),
    ("large constants and fused nodes", {"size_threshold": 64 * 1024, "skip_optimizations": ["graph_fusion"]}),
)
# onnxslim compares each small constant with all others of its shape. Beyond this many, which takes about a second, it
# does not merge equal ones, which only makes files smaller.
_MOST_OF_ONE_SHAPE = 400
# ONNX's light models have no weights but nodes that generate them: these may grow.
_MOST_GROWTH, _FREE_GROWTH_BYTES = 1.25, 128 * 2**20
# Folding is exact except for convolutions that absorb their scale; this covers many such layers in fp16.
_TOLERANCE = 1e-2
# Larger models are not loaded twice more just for a comparison.
_LARGEST_COMPARED_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class OnnxRun:
    """One run of a model in ONNX Runtime, for comparison with its rewritten forms."""

    inputs: Arrays
    outputs: Arrays


def run_sample(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> OnnxRun | None:
    """Run `model` on seeded random inputs; None if ONNX Runtime fails, or the model or its inputs exceed 1 GiB."""
    numbers = sum(math.prod(shape) for shape in shapes.values())
    if max(model.ByteSize(), 8 * numbers) > _LARGEST_COMPARED_BYTES:
        return None
    try:
        inputs = random_inputs(model, shapes)
        return OnnxRun(inputs, _run(model, inputs))
    except Exception:  # operators that it lacks, inputs that these random ones do not fit, memory
        return None


def correct_outputs(model: onnx.ModelProto, sample: OnnxRun) -> str:
    """Correct declared output shapes that differ from ONNX Runtime's: onnxslim relies on them."""
    wrong = [value for value in model.graph.output if not _is_declared(value, sample.outputs[value.name].shape)]
    for value in wrong:
        del value.type.tensor_type.shape.dim[:]
        for axis in range(sample.outputs[value.name].ndim):
            value.type.tensor_type.shape.dim.add().dim_param = f"{value.name}.{axis}"
    return ", ".join(f"`{value.name}` is {list(sample.outputs[value.name].shape)}" for value in wrong)


def fold_constants(model: onnx.ModelProto, sample: OnnxRun | None = None) -> tuple[onnx.ModelProto, str]:
    """Fold constants and remove dead nodes with onnxslim; return the model and a description.

    A result with other inputs, outputs or sample values is rejected, as is one that grows the model by more than a
    quarter; then less is folded, or nothing.
    """
    problem = first = ""
    for left_out, options in _ATTEMPTS:
        slim, problem = _slimmed(model, options)
        problem = problem or _growth(model, slim) or (_difference(slim, sample) if sample else "")
        if not problem:
            unify_dimensions(model, slim)
            detail = f"{len(model.graph.node)} -> {len(slim.graph.node)} nodes"
            return slim, f"{detail}; {left_out} left out: {first}" if left_out else detail
        first = first or problem
        if not options and problem.startswith("onnxslim"):
            break
    return model, f"skipped: {first}"


def _slimmed(model: onnx.ModelProto, options: Mapping[str, Any]) -> tuple[onnx.ModelProto, str]:
    """Return onnxslim's result for a copy, and why it must be rejected."""
    import onnxslim

    copy = type(model)()
    copy.CopyFrom(model)
    skipped = [*options.get("skip_optimizations", ()), *(["weight_tying"] if _has_many_of_a_shape(model) else [])]
    try:
        with _quiet():
            slim = onnxslim.slim(copy, **{**options, "skip_optimizations": skipped})
    except Exception as error:
        return model, f"onnxslim failed with {type(error).__name__}: {error}"
    if _borders(model) != _borders(slim):
        return model, "onnxslim would have changed the model's inputs or outputs"
    return slim, ""


def _has_many_of_a_shape(model: onnx.ModelProto) -> bool:
    attributes = (attribute for node in model.graph.node if node.op_type == "Constant" for attribute in node.attribute)
    constants = [*model.graph.initializer, *(attribute.t for attribute in attributes)]
    return max(Counter(tuple(constant.dims) for constant in constants).values(), default=0) > _MOST_OF_ONE_SHAPE


def unify_dimensions(original: onnx.ModelProto, slim: onnx.ModelProto) -> None:
    """Name the dimensions that folding unified after the first input that has one; note their other names as aliases.

    onnxslim keeps one of the names, and which one depends on the process.
    """
    before = {value.name: value.type.tensor_type.shape.dim for value in original.graph.input}
    names: dict[str, list[str]] = {}
    for value in slim.graph.input:
        for old, new in zip(before.get(value.name, ()), value.type.tensor_type.shape.dim, strict=False):
            if old.dim_param and new.dim_param:
                names.setdefault(new.dim_param, []).append(old.dim_param)
    first = {name: others[0] for name, others in names.items()}
    if len(set(first.values())) < len(first):
        return
    for value in (*slim.graph.input, *slim.graph.output, *slim.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in first:
                dim.dim_param = first[dim.dim_param]
    aliases = {other: others[0] for others in names.values() for other in others[1:] if other != others[0]}
    if aliases:
        slim.metadata_props.add(key=ALIASES_KEY, value=json.dumps(aliases))


def dimension_aliases(model: onnx.ModelProto) -> dict[str, str]:
    """Return the other names of a folded model's dimensions, which profiles may use too."""
    value = next((entry.value for entry in model.metadata_props if entry.key == ALIASES_KEY), "{}")
    return dict(json.loads(value))


def aliases_of_file(path: Path) -> dict[str, str]:
    """Return the `dimension_aliases` of a file."""
    return dict(json.loads(metadata_value(path, ALIASES_KEY) or "{}"))


def _growth(model: onnx.ModelProto, slim: onnx.ModelProto) -> str:
    """Describe how much folding grew the model; empty if it is not worth mentioning."""
    before, after = model.ByteSize(), slim.ByteSize()
    if after <= max(before * _MOST_GROWTH, before + _FREE_GROWTH_BYTES):
        return ""
    return f"the model would grow from {before / 2**20:.0f} to {after / 2**20:.0f} MiB"


def _difference(slim: onnx.ModelProto, sample: OnnxRun) -> str:
    """Return which output folding changed; empty if all are the same."""
    try:
        outputs = _run(slim, sample.inputs)
    except Exception as error:
        return f"ONNX Runtime would refuse the model: {str(error).strip().partition(chr(10))[0]}"
    for name, before in sample.outputs.items():
        after = outputs[name]
        if before.shape != after.shape:
            return f"output `{name}` would change from {list(before.shape)} to {list(after.shape)}"
        if not _is_close(before, after):
            return f"values of output `{name}` would change"
    return ""


def _is_close(before: np.ndarray[Any, Any], after: np.ndarray[Any, Any]) -> bool:
    """Whether two outputs are equal except for rounding."""
    if before.dtype.kind not in "fiub":
        return bool((before == after).all())
    expected, actual = before.astype(np.float64), after.astype(np.float64)
    is_number = np.isfinite(expected)
    if not np.array_equal(expected[~is_number], actual[~is_number], equal_nan=True):
        return False
    error = np.linalg.norm(actual[is_number] - expected[is_number])
    return bool(error <= _TOLERANCE * np.linalg.norm(expected[is_number]))


def _run(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    """Return ONNX Runtime's outputs, computed node by node without optimization."""
    import onnxruntime

    _limit_memory()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@functools.cache
def _limit_memory() -> None:
    """Give sessions that request it an allocator limited to a quarter of the memory: a ramp may be of any length."""
    from onnxruntime.capi import _pybind_state as native

    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    kind = native.OrtMemoryInfo("Cpu", native.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, native.OrtMemType.DEFAULT)
    native.create_and_register_allocator(kind, native.OrtArenaCfg({"max_mem": limit}))


def _is_declared(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> bool:
    """Whether an output's declared shape, if it has one, allows `shape`."""
    declared = value.type.tensor_type
    if not declared.HasField("shape"):
        return True
    sizes = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in declared.shape.dim]
    return len(sizes) == len(shape) and all(size in {0, have} for size, have in zip(sizes, shape, strict=True))


def _borders(model: onnx.ModelProto) -> list[str]:
    initializers = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in (*model.graph.input, *model.graph.output) if value.name not in initializers]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discard a library's output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
