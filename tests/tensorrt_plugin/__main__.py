"""Take every op's plugin through TensorRT's Python code, from registration to the kernel, and print what came out.

A process of its own: the bindings stay where only this needs them. `python -m tests.tensorrt_plugin FOLDER`.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.tensorrt_plugin.bindings import Expression, ExpressionBuilder, load
from trtkit.dtypes import FP16, FP32, DType
from trtkit.network.custom_op import CustomOp, Typical, load_ops
from trtkit.network.plugin import Plugin, define, type_of

OPEN = ("N", "B", "R", "P")
"""First axes that are known at run time only when a plugin's batch is open."""
CAPABILITY = 80


def _field(trt: Any, name: str, value: Any) -> tuple[Any, Any]:
    """Return an attribute as TensorRT hands it over, and the memory that it points to."""
    if isinstance(value, str):
        text = value.encode()
        return trt.PluginField(name, text, trt.PluginFieldType.CHAR), text
    kinds = {bool: (np.int8, "INT8"), int: (np.int64, "INT64"), float: (np.float64, "FLOAT64")}
    of_lists = {int: (np.int32, "INT32"), float: (np.float32, "FLOAT32")}
    type_, kind = of_lists[type(value[0])] if isinstance(value, tuple) else kinds[type(value)]
    array = np.array(value if isinstance(value, tuple) else [value], type_)
    return trt.PluginField(name, array, getattr(trt.PluginFieldType, kind)), array


def _desc(trt: Any, dtype: DType, shape: list[int]) -> Any:
    """Describe a tensor, -1 where a size is known at run time only."""
    desc = trt.DynamicPluginTensorDesc()
    desc.desc = trt.PluginTensorDesc()
    desc.desc.type = getattr(trt.DataType, dtype.tensorrt)
    desc.desc.format = trt.TensorFormat.LINEAR
    desc.desc.dims = trt.Dims(shape)
    return desc


def _inputs(op: CustomOp, typical: Typical, is_open: bool) -> list[list[Expression]]:
    """Return the sizes of a known model's inputs."""
    sizes = []
    for place, shape in enumerate(typical.shapes):
        word = op.inputs[min(place, len(op.inputs) - 1)].dims.split()[0]
        first = Expression(shape[0], not (is_open and word in OPEN))
        sizes.append([first, *(Expression(size, True) for size in shape[1:])])
    return sizes


def _created(trt: Any, op: CustomOp, typical: Typical) -> Any:
    """Return the op's plugin as TensorRT's parser creates it."""
    creator = trt.get_plugin_registry().get_creator(op.name, "1", "trtkit")
    fields = [_field(trt, name, value) for name, value in vars(typical.attributes).items()]
    collection = trt.PluginFieldCollection([one for one, _ in fields])
    request = trt.QuickPluginCreationRequest.STRICT_AOT
    return creator.create_plugin(op.name, "trtkit", collection, trt.TensorRTPhase.BUILD, request)


def run(trt: Any, op: CustomOp, typical: Typical, how: tuple[DType, bool]) -> dict[str, Any]:
    """Take one plugin from its creation to its kernel, in the order in which TensorRT asks. how: type; open batch."""
    definition: Plugin = op.part("plugin").PLUGIN
    dtype, is_open = how
    plugin, inputs = _created(trt, op, typical), _inputs(op, typical, is_open)
    types, count = [type_of(types, dtype) for types in definition.types_of(typical.attributes)], len(inputs)
    dtypes = [getattr(trt.DataType, one.tensorrt) for one in types[:count]]
    outputs = plugin.get_output_data_types(dtypes, [len(sizes) for sizes in inputs])
    shapes = plugin.get_output_shapes(inputs, [], ExpressionBuilder())
    sizes = [[size.value if size.known else -1 for size in shape] for shape in (*inputs, *shapes)]
    in_out = [_desc(trt, one, shape) for one, shape in zip(types, sizes, strict=True)]
    combinations = [one.type.name for one in plugin.get_supported_format_combinations(in_out, count)]
    plugin.configure_plugin(in_out[:count], in_out[count:])
    return {
        "op": op.name,
        "model": typical.model,
        "dtype": dtype.name,
        "is_open": is_open,
        "outputs": [kind.name for kind in outputs],
        "shapes": [[size.value for size in shape] for shape in shapes],
        "combinations": [combinations[at : at + len(types)] for at in range(0, len(combinations), len(types))],
        **_launched(plugin, inputs, in_out),
    }


def _launched(plugin: Any, inputs: list[list[Expression]], in_out: list[Any]) -> dict[str, Any]:
    """Return how the plugin's kernel starts, and whether the kernel is there."""
    launch, count = SimpleNamespace(), len(inputs)
    arguments: dict[int, Any] = {}
    plugin.set_tactic(0)
    plugin.get_launch_params(inputs, in_out, count, launch, Arguments(arguments), ExpressionBuilder())
    name, ptx = plugin.get_kernel([one.desc for one in in_out[:count]], [one.desc for one in in_out[count:]])
    grid = [launch.grid_x.expr, launch.grid_y.expr, launch.grid_z.expr]
    scalars = [arguments[place] for place in range(len(arguments))]
    return {
        "grid": [size.value for size in grid],
        "block": launch.block_x.expr.value,
        "shared": launch.shared_mem.expr.value,
        "scalars": [argument.expr.value for argument in scalars],
        "scalar_types": sorted({str(argument.dtype).rpartition(".")[2] for argument in scalars}),
        "is_known": all(size.known for size in (*grid, *(argument.expr for argument in scalars))),
        "has_kernel": f".entry {name}(" in ptx.decode(),
    }


class Arguments:
    """Takes a kernel's arguments as TensorRT does."""

    def __init__(self, arguments: dict[int, Any]) -> None:
        self.nbSymExprs = 0
        self._arguments = arguments

    def __setitem__(self, place: int, argument: Any) -> None:
        assert place < self.nbSymExprs
        self._arguments[place] = argument


def main() -> None:
    trt, trtp = load(Path(sys.argv[1]))
    for op in load_ops().values():
        assert define(trtp, op, CAPABILITY) == f"trtkit::{op.name}"
        for typical, *how in itertools.product(op.typicals, (FP32, FP16), (False, True)):
            print(json.dumps(run(trt, op, typical, (how[0], how[1]))))


if __name__ == "__main__":
    main()
