from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from tests.support import custom_op_models
from trtkit.network.onnx import custom_ops
from trtkit.network.onnx.plugins import use_plugins


def test_nodes_with_all_inputs_become_plugins_and_others_stay_functions() -> None:
    model = custom_op_models.deform_conv(2)
    second = next(node for node in model.graph.node if node.name == "layer1/dcn")
    second.input[3] = "bias"
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(6, np.float32), "bias"))
    replaced, _ = custom_ops.replace(model)
    assert [function.name for function in replaced.functions] == ["DeformConv2d", "DeformConv2d_2"]
    assert use_plugins(replaced) == "1 nodes to plugins"
    assert [function.name for function in replaced.functions] == ["DeformConv2d"]  # the node without a bias
    node = next(node for node in replaced.graph.node if node.name == "layer1/dcn")
    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    assert (node.domain, node.op_type) == ("trtkit", "DeformConv2d")
    assert (found["plugin_namespace"], found["plugin_version"], found["aot"]) == (b"trtkit", b"1", 1)
    assert found["padding"] == [1, 1]
