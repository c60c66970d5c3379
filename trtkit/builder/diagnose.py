"""A job that finds every operator of a model that TensorRT does not support, with advice for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.backends import Backend, load_backend
from trtkit.builder.plan_file import parse_recorder
from trtkit.errors import Problem, UnsupportedOperatorsError
from trtkit.jobs.events import Phase
from trtkit.network.onnx.care import all_nodes, opset_of
from trtkit.network.trt_errors import reason_of
from trtkit.sources import onnx_file

if TYPE_CHECKING:
    import onnx

    from trtkit.builder.jobs import DiagnoseRequest
    from trtkit.jobs.job import JobContext


# Each round cuts out one unsupported node and parses again.
_MOST_ROUNDS = 40


def diagnose(request: DiagnoseRequest, context: JobContext) -> None:
    """Raise UnsupportedOperatorsError with every node of `onnx` that the parser rejects.

    The parser stops at the first node that it cannot import, so that node is cut out, its outputs become inputs, and
    the rest is parsed again.
    """
    context.report(Phase("find unsupported operators"))
    backend = load_backend(request.backend)
    model = onnx_file.read_model(request.onnx)
    opset = opset_of(model)
    faults: dict[str, Problem] = {}
    logger = parse_recorder(backend)
    for _ in range(_MOST_ROUNDS):
        fault = _first_fault(backend, model, logger)
        if fault is None:
            break
        node, reason = fault
        if node is None:
            faults.setdefault("", Problem(reason, "model"))
            break
        for refused in [node, *_same_operator(backend, model, node, logger)]:
            domain = refused.domain or "ai.onnx"
            where = f"{refused.op_type} `{refused.name}` ({domain})"
            faults.setdefault(refused.name, Problem(reason, where, advice_for(refused, opset)))
            _cut(model, refused)
    if not faults:
        return  # what the parser refused was the file, not a node
    count = len(faults)
    raise UnsupportedOperatorsError(
        f"TensorRT refuses {count} node{'s' * (count != 1)} of the model", list(faults.values())
    )


def _first_fault(backend: Backend, model: onnx.ModelProto, logger: Any) -> tuple[onnx.NodeProto | None, str] | None:
    """Parse the model; return the rejected node with TensorRT's message, or None if all nodes parse.

    Some importers fail without naming the node; then it is the last one in the log.
    """
    network = (builder := backend.trt.Builder(logger)).create_network(0)
    parser = backend.trt.OnnxParser(network, logger)
    if parser.parse(model.SerializeToString()):
        return None
    error = parser.get_error(0) if parser.num_errors else None
    reason = reason_of(error) if error else "no reason given"
    if reason == "false":
        reason = "TensorRT's parser has no importer for it"
    name = (error.node_name() if error else "") or logger.last_node
    node = next((node for node in model.graph.node if node.name == name), None)
    del parser, network, builder
    return node, reason


def _same_operator(backend: Backend, model: onnx.ModelProto, node: onnx.NodeProto, logger: Any) -> list[onnx.NodeProto]:
    """Return the other nodes with the same operator, if the parser does not know that operator at all."""
    network = (builder := backend.trt.Builder(logger)).create_network(0)
    is_known = backend.trt.OnnxParser(network, logger).supports_operator(node.op_type)
    del network, builder
    if is_known:
        return []
    return [
        other
        for other in model.graph.node
        if other.op_type == node.op_type and other.domain == node.domain and other.name != node.name
    ]


def _cut(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Remove `node`; its outputs that are still used become inputs of their known types."""
    import onnx

    known = {value.name: value for value in (*model.graph.value_info, *model.graph.output)}
    outputs = [name for name in node.output if name]
    model.graph.node.remove(node)
    used = {name for other in all_nodes(model.graph) for name in other.input}
    used |= {value.name for value in model.graph.output}
    for name in outputs:
        if name not in used:
            continue
        value = known.get(name)
        typed = value is not None and value.type.tensor_type.elem_type
        model.graph.input.append(
            value
            if typed and value is not None
            else onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["?"])
        )


# Operators with a known workaround. Source: TensorRT's operator support matrix.
_BY_OPERATOR = {
    "NonZero": "its output's size depends on data: use Where or a mask, or give the result a fixed size with TopK",
    "Unique": "its output's size depends on data: compute it outside the engine",
    "Compress": "its output's size depends on data: use Where with a mask",
    "Bernoulli": "random sampling belongs outside the engine: make it an input",
    "Multinomial": "random sampling belongs outside the engine: make it an input",
    "Einsum": "write it as Transpose and MatMul",
}


def advice_for(node: onnx.NodeProto, opset: int) -> str:
    """Return advice for a user whose model contains the unsupported `node`."""
    if node.op_type in _BY_OPERATOR:
        return _BY_OPERATOR[node.op_type]
    if node.domain not in {"", "ai.onnx"}:
        return (
            f"`{node.domain}` is not a standard domain: give the model a local function (FunctionProto) of standard "
            "operators for it, add a custom op (`trtkit plugins --help`), or export without it"
        )
    if opset < 13:
        return f"export with a newer opset (this model has {opset}), which may write it in other operators"
    return "rewrite this part of the model with operators from TensorRT's support matrix"
