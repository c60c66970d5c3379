"""Custom ops of an ONNX model as plugin nodes, for a TensorRT that has plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.custom_op import DOMAIN, CustomOp, find
from trtkit.network.onnx.care import all_nodes
from trtkit.network.onnx.function import op_name

if TYPE_CHECKING:
    import onnx


def use_plugins(model: onnx.ModelProto) -> str:
    """Replace nodes `trtkit::Op` whose op has a plugin by plugin nodes, and drop unused functions.

    A node stays a function if it lacks an optional input, since plugins take all inputs. Returns a description.
    """
    ops = {function.name: find(op_name(function)) for function in model.functions if function.domain == DOMAIN}
    done = 0
    for node in all_nodes(model.graph):
        if node.domain == DOMAIN and node.op_type in ops and _fits(ops[node.op_type], node):
            _make_plugin(node, ops[node.op_type].name)
            done += 1
    called = {node.op_type for node in all_nodes(model.graph) if node.domain == DOMAIN and not _is_plugin(node)}
    kept = [function for function in model.functions if function.domain != DOMAIN or function.name in called]
    del model.functions[:]
    model.functions.extend(kept)
    return f"{done} nodes to plugins"


def plugin_names(model: onnx.ModelProto) -> list[str]:
    """Return the ops whose plugins `model` uses."""
    return sorted({node.op_type for node in all_nodes(model.graph) if node.domain == DOMAIN and _is_plugin(node)})


def _fits(op: CustomOp, node: onnx.NodeProto) -> bool:
    """Whether the op has a plugin with as many inputs as the node."""
    return op.has_part("plugin") and len(op.part("plugin").PLUGIN.inputs) == len(node.input)


def _make_plugin(node: onnx.NodeProto, name: str) -> None:
    """Name the plugin for TensorRT's parser; `aot` means that its kernel is compiled into the engine."""
    import onnx

    node.op_type = name
    for key, value in (("plugin_namespace", DOMAIN), ("plugin_version", "1"), ("aot", 1)):
        node.attribute.append(onnx.helper.make_attribute(key, value))


def _is_plugin(node: onnx.NodeProto) -> bool:
    return any(attribute.name == "plugin_namespace" for attribute in node.attribute)
