"""Replace nodes that TensorRT rejects by ONNX's own function body for them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import onnx
from onnx import defs, helper

from trtkit.network.onnx.care import all_graphs, all_nodes, opset_of
from trtkit.network.onnx.facts import Knowledge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.network.foreign import Fact


def expand_functions(model: onnx.ModelProto) -> Counter[str]:
    """Expand the nodes that need it, in place; return the count of each type."""
    done: Counter[str] = Counter()
    if not any(needs_expansion(node) for node in all_nodes(model.graph)):
        return done
    knowledge = Knowledge(model)
    for graph in all_graphs(model.graph):
        nodes: list[onnx.NodeProto] = []
        for index, node in enumerate(graph.node):
            body = _body(node, knowledge, opset_of(model)) if needs_expansion(node) else None
            nodes.extend([node] if body is None else _spliced(body, node, node.name or f"{node.op_type}_{index}"))
            done[node.op_type] += body is not None
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return +done


def needs_expansion(node: onnx.NodeProto) -> bool:
    """Whether TensorRT rejects or misreads the node as it is."""
    return node.domain in {"", "ai.onnx"} and node.op_type in _NEED and _NEED[node.op_type](node)


def _always(_: onnx.NodeProto) -> bool:
    return True


def _has_more_outputs(node: onnx.NodeProto) -> bool:
    return any(node.output[1:])


def _attention_needs_it(node: onnx.NodeProto) -> bool:
    """Outputs but the first, capped scores, a window, a mask or lengths next to causality, a past."""
    present = {index for index, name in enumerate(node.input) if name}
    causal = bool(_attribute(node, "is_causal", 0))
    limits = ("softcap", "softmax_precision", "attn_window_size", "left_window_size", "right_window_size")
    return (
        _has_more_outputs(node)
        or bool(present & {4, 5})
        or (causal and bool(present & {3, 6}))
        or 6 in present
        or any(_attribute(node, name, 0) for name in limits)
        or any("window" in attribute.name for attribute in node.attribute)
    )


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    values = (helper.get_attribute_value(attribute) for attribute in node.attribute if attribute.name == name)
    return next(values, default)


_NEED: Mapping[str, Callable[[onnx.NodeProto], bool]] = {
    "Attention": _attention_needs_it,
    "CausalConvWithState": _always,
    "CenterCropPad": _always,
    "FlexAttention": _always,
    "LayerNormalization": _has_more_outputs,
    "LinearAttention": _always,
    "NegativeLogLikelihoodLoss": _always,
    "SoftmaxCrossEntropyLoss": _always,
    "SwiGLU": _always,
}


def _body(node: onnx.NodeProto, knowledge: Knowledge, opset: int) -> onnx.FunctionProto | None:
    """Return ONNX's function body for a node; None if there is none for its types."""
    try:
        schema: Any = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return None
    if schema.has_function:
        version = max((v for v in schema.function_opset_versions if v <= opset), default=0)
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(version)) if version else None
    version = max((v for v in schema.context_dependent_function_opset_versions if v <= opset), default=0)
    types = [_type(knowledge.fact(name)) if name else b"" for name in node.input]
    known = [kind for kind in types if kind is not None]
    if not version or len(known) < len(types):
        return None
    body = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), known)
    return onnx.FunctionProto.FromString(body) if body else None


def _type(fact: Fact | None) -> bytes | None:
    """Return a tensor's type as ONNX writes it; None if it is unknown."""
    if fact is None:
        return None
    sizes = [size if size >= 0 else None for size in fact.shape]
    return helper.make_tensor_type_proto(onnx.TensorProto.DataType.Value(fact.dtype.onnx), sizes).SerializeToString()


def _spliced(body: onnx.FunctionProto, node: onnx.NodeProto, prefix: str) -> list[onnx.NodeProto]:
    """Return the body's nodes with the node's tensors and attributes."""
    names = dict.fromkeys(body.input, "")
    names |= dict(zip(body.input, node.input, strict=False))
    names |= {inner: outer for inner, outer in zip(body.output, node.output, strict=False) if outer}
    attributes = {attribute.name: attribute for attribute in (*body.attribute_proto, *node.attribute)}
    return _renamed(body.node, prefix, names, attributes)


def _renamed(
    nodes: Any, prefix: str, names: dict[str, str], attributes: Mapping[str, onnx.AttributeProto]
) -> list[onnx.NodeProto]:
    """Return copies of nodes with the names of another graph; other tensors get `prefix`."""
    copies = []
    for index, node in enumerate(nodes):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{prefix}/{node.name or f'{node.op_type.lower()}_{index}'}"
        copy.input[:] = [names.get(name, f"{prefix}/{name}") if name else "" for name in node.input]
        copy.output[:] = [names.setdefault(name, f"{prefix}/{name}") if name else "" for name in node.output]
        del copy.attribute[:]
        for attribute in node.attribute:
            bound = _bound(attribute, attributes)
            if bound is not None:
                _rename_graph(bound, prefix, names, attributes)
                copy.attribute.append(bound)
        copies.append(copy)
    return copies


def _bound(attribute: onnx.AttributeProto, values: Mapping[str, onnx.AttributeProto]) -> onnx.AttributeProto | None:
    """Return an attribute, or the one of the outer node that it refers to."""
    copy = onnx.AttributeProto()
    if not attribute.ref_attr_name:
        copy.CopyFrom(attribute)
        return copy
    if attribute.ref_attr_name not in values:
        return None
    copy.CopyFrom(values[attribute.ref_attr_name])
    copy.name = attribute.name
    return copy


def _rename_graph(
    attribute: onnx.AttributeProto, prefix: str, names: dict[str, str], attributes: Mapping[str, onnx.AttributeProto]
) -> None:
    """Rename what is inside a branch or loop."""
    if not attribute.HasField("g"):
        return
    graph, local_names = attribute.g, dict(names)
    for value in (*graph.input,):
        local_names[value.name] = value.name = f"{prefix}/{value.name}"
    inner = _renamed(graph.node, prefix, local_names, attributes)
    for value in graph.output:
        value.name = local_names.get(value.name, value.name)
    del graph.node[:]
    graph.node.extend(inner)
