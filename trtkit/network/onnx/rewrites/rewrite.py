"""Rewrite the nodes that have rules until none is left; then convert quantized tensors for TensorRT."""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.inliner
import onnx.version_converter

from trtkit.errors import Problem, SourceError, UnsupportedOperatorsError
from trtkit.network.foreign import Fact, NotYetKnownError, Refusal
from trtkit.network.lowering.onnx_ops import OLDEST_OPSET
from trtkit.network.lowering.onnx_value import OnnxValue
from trtkit.network.onnx.care import all_graphs, all_nodes, opset_of
from trtkit.network.onnx.facts import Knowledge
from trtkit.network.onnx.rewrites.bits import RULES as BITS
from trtkit.network.onnx.rewrites.functions import expand_functions, needs_expansion
from trtkit.network.onnx.rewrites.integer_products import RULES as INTEGER_PRODUCTS
from trtkit.network.onnx.rewrites.misread import RULES as MISREAD
from trtkit.network.onnx.rewrites.ort_ops import RULES as ORT_OPS
from trtkit.network.onnx.rewrites.quantized import RULES as QUANTIZED
from trtkit.network.onnx.rewrites.quantized import casts_to_uint8, dequantize_tables, shift_uint8
from trtkit.network.onnx.rewrites.refused import RULES as REFUSED
from trtkit.network.onnx.rewrites.rule import MICROSOFT, Node, Rule, Writer
from trtkit.network.onnx.rewrites.scatter import RULES as SCATTER

Key = tuple[str, str]
_FAMILIES = (BITS, INTEGER_PRODUCTS, MISREAD, ORT_OPS, QUANTIZED, REFUSED, SCATTER)
# Rules may write nodes that have rules: QLinearConv -> DequantizeLinear of uint8 -> of int8 without a zero point.
_MOST_ROUNDS = 4


@dataclass
class _Rewrite:
    """A model being rewritten. done: counts of rewritten nodes by type."""

    model: onnx.ModelProto
    is_final: bool
    done: Counter[str] = field(default_factory=Counter)
    problems: dict[str, Problem] = field(default_factory=dict)
    count: int = 0
    declared: dict[str, list[int | str]] = field(default_factory=dict)


def rewrite(model: onnx.ModelProto, *, is_final: bool = True) -> tuple[onnx.ModelProto, str]:
    """Return the model without the forms that TensorRT rejects or misreads, and a description of what was rewritten.

    is_final: whether a node that needs a constant which is still computed is an error; otherwise it stays, for a second
    call after constants are folded. Raises UnsupportedOperatorsError with every node that cannot be rewritten.
    """
    known = _rules()
    if not _has_work(model, known):
        return model, "none"
    rewritten = _copied(model, known)
    try:
        state = _rounds(rewritten, known, is_final)
    except _TooOldError:
        state = _rounds(_lifted(model, known), known, is_final)
    if state.problems:
        count = len(state.problems)
        raise UnsupportedOperatorsError(
            f"TensorRT does not take {count} node{'s' * (count != 1)}, and there is no other way to write them",
            list(state.problems.values()),
        )
    if not state.done:
        return model, "none"
    _drop_unused(state.model)
    return state.model, ", ".join(f"{count} {label}" for label, count in state.done.items())


def _rules() -> dict[tuple[str, str], Rule]:
    return {(rule.domain, rule.op_type): rule for family in _FAMILIES for rule in family}


def _has_work(model: onnx.ModelProto, known: Mapping[Key, Rule]) -> bool:
    """Whether any node may need rewriting: models without one are not even copied."""
    nodes = (*all_nodes(model.graph), *(node for function in model.functions for node in function.node))
    return any(_key(node) in known or needs_expansion(node) or casts_to_uint8(node) for node in nodes)


def _rounds(model: onnx.ModelProto, known: Mapping[Key, Rule], is_final: bool) -> _Rewrite:
    """Rewrite a model in place. Raises _TooOldError if the nodes to write need a newer opset."""
    state = _Rewrite(model, is_final, declared=_declared(model))
    for _ in range(_MOST_ROUNDS):
        before = sum(state.done.values())
        state.done.update(expand_functions(model))
        state.done.update(dequantize_tables(model))
        _apply(state, known)
        state.done.update(shift_uint8(model))
        if sum(state.done.values()) == before:
            break
    return state


class _TooOldError(Exception):
    """The model's opset lacks forms that rules write."""


def _declared(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    """Return the declared shapes of inputs and outputs, with unnamed sizes made distinct."""
    return {
        value.name: [
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{value.name}.{axis}"
            for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        ]
        for value in (*model.graph.input, *model.graph.output)
    }


def _copied(model: onnx.ModelProto, known: Mapping[Key, Rule]) -> onnx.ModelProto:
    """Return a copy in an opset that rules support, with local functions that contain rejected nodes inlined."""
    if any(_key(node) in known for function in model.functions for node in function.node):
        model = onnx.inliner.inline_local_functions(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _lifted(model: onnx.ModelProto, known: Mapping[Key, Rule]) -> onnx.ModelProto:
    """Return a copy in a newer opset. Raises SourceError if ONNX cannot convert it."""
    copy = _copied(model, known)
    wanted = max((_NEEDS.get(_key(node), OLDEST_OPSET) for node in all_nodes(copy.graph)), default=OLDEST_OPSET)
    try:
        return onnx.version_converter.convert_version(copy, wanted)
    except Exception as error:
        raise SourceError(
            f"opset {opset_of(model)} does not convert to {wanted}, which rewrites need: {error}",
            fix=f"export the model with opset {wanted} or newer",
        ) from error


# DequantizeLinear has int4 and blocks since opset 21.
_NEEDS = {(MICROSOFT, "MatMulNBits"): 21}


def _key(node: onnx.NodeProto) -> Key:
    return ("" if node.domain == "ai.onnx" else node.domain, node.op_type)


def _apply(state: _Rewrite, known: Mapping[Key, Rule]) -> None:
    """Rewrite every node that has a rule, once."""
    if not any(_key(node) in known for node in all_nodes(state.model.graph)):
        return
    knowledge = Knowledge(state.model)
    for graph in all_graphs(state.model.graph):
        nodes = []
        for node in graph.node:
            rule = known.get(_key(node))
            nodes.extend([node] if rule is None else _rewritten(state, knowledge, node, rule))
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _rewritten(state: _Rewrite, knowledge: Knowledge, node: onnx.NodeProto, rule: Rule) -> list[onnx.NodeProto]:
    """Return a node's replacements, or the node itself."""
    where = f"{rule.label} `{node.name or node.output[0]}`"
    state.count += 1
    prefix = f"{node.name or node.op_type}/{rule.op_type.lower()}_{state.count}"
    opset = opset_of(state.model)
    is_too_old = opset < _NEEDS.get(_key(node), OLDEST_OPSET)
    writer = Writer(max(opset, OLDEST_OPSET), prefix)
    try:
        if is_too_old and _key(node) in _NEEDS:
            raise _TooOldError
        read = _read(node, knowledge, writer)
        read.declared = state.declared
        with writer.fp32() if rule.is_fp32 else nullcontext():
            values = rule.write(writer, read)
    except NotYetKnownError as unknown:
        if state.is_final:
            state.problems[where] = Problem(str(unknown), where, "export the model with it fixed")
        return [node]
    except Refusal as refusal:
        state.problems[where] = Problem(refusal.what, where, refusal.fix)
        return [node]
    if values is None:
        return [node]
    if is_too_old:
        raise _TooOldError
    state.done[rule.label] += 1
    facts = [None if value is None else Fact(value.dtype, value.shape) for value in values]
    pairs = [(name, fact) for name, fact in zip(node.output, facts, strict=False) if name and fact is not None]
    knowledge.learn([name for name, _ in pairs], [fact for _, fact in pairs])
    return writer.finish(list(node.output), values)


def _read(node: onnx.NodeProto, knowledge: Knowledge, writer: Writer) -> Node:
    facts = [knowledge.fact(name) if name else None for name in node.input]
    values = [
        None if fact is None else OnnxValue(writer, name, fact.shape, fact.dtype)
        for name, fact in zip(node.input, facts, strict=True)
    ]
    return Node(
        node.name,
        node.op_type,
        tuple(node.input),
        tuple(node.output),
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute},
        facts,
        [knowledge.constant(name) if name else None for name in node.input],
        writer.opset,
        values=values,
    )


def _drop_unused(model: onnx.ModelProto) -> None:
    """Remove unused constants, and the facts of removed tensors."""
    used = {name for node in all_nodes(model.graph) for name in node.input}
    used |= {value.name for graph in all_graphs(model.graph) for value in graph.output}
    outputs = {name for node in all_nodes(model.graph) for name in node.output}
    for graph in all_graphs(model.graph):
        _keep(graph.initializer, used)
        _keep(graph.value_info, outputs)
    domains = {"" if node.domain == "ai.onnx" else node.domain for node in all_nodes(model.graph)} | {""}
    domains |= {function.domain for function in model.functions}
    for entry in [entry for entry in model.opset_import if entry.domain not in domains | {"ai.onnx"}]:
        model.opset_import.remove(entry)


def _keep(values: Any, names: set[str]) -> None:
    for index in [index for index, value in enumerate(values) if value.name not in names][::-1]:
        del values[index]
