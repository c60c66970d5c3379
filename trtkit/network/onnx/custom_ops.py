"""Replace foreign nodes of an ONNX model by custom ops, whose function bodies any runtime can run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx.inliner
import onnx.version_converter

from trtkit.errors import Problem, UnsupportedOperatorsError
from trtkit.network.custom_op import DOMAIN, CustomOp, attribute_values, load_ops
from trtkit.network.foreign import Fact, Foreign, ForeignNode, NotYetKnownError, Refusal, Replacement
from trtkit.network.lowering.onnx_ops import OLDEST_OPSET
from trtkit.network.onnx.care import all_graphs, all_nodes, opset_of
from trtkit.network.onnx.facts import Knowledge
from trtkit.network.onnx.function import function_of, inline, mark_for_plugin
from trtkit.network.plugin import refusal

METADATA_KEY = "trtkit.custom_ops"
"""Key of a model's metadata for the nodes that were replaced."""

_ONNX_DOMAINS = ("", "ai.onnx")


@dataclass
class _CustomOpRewrite:
    """A model being rewritten. done: replaced node types with their ops. bodies: functions by what they depend on."""

    model: onnx.ModelProto
    knowledge: Knowledge
    is_final: bool
    form: str | None = None
    for_plugins: bool = False
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)
    bodies: dict[str, onnx.FunctionProto] = field(default_factory=dict)


def replace(model: onnx.ModelProto, *, is_final: bool = True, form: str | None = None) -> tuple[onnx.ModelProto, str]:
    """Return the model with custom ops for the foreign nodes that they support, and a description of what was replaced.

    Each becomes a node `trtkit::Op` with a local function. is_final: whether a node that needs a constant which is
    still computed is an error; otherwise it stays, for a second call after constants are folded. form: of the bodies,
    for ops that have it, instead of their first.
    Raises UnsupportedOperatorsError with every unsupported node.
    """
    return _replaced(model, _handlers(), is_final=is_final, form=form)


def _replaced(
    original: onnx.ModelProto, handlers: dict[tuple[str, str], tuple[CustomOp, Foreign]], **how: Any
) -> tuple[onnx.ModelProto, str]:
    """Replace the nodes of `handlers`. how: `is_final` and `form` of `replace`, `for_plugins` of `lower`."""
    if not any(_key(node) in handlers for node in _nodes(original)):
        return original, "none"
    model = _with_plain_functions(_lifted(original), handlers)
    rewrite = _CustomOpRewrite(model, Knowledge(model), **how)
    for graph in all_graphs(model.graph):
        for node in graph.node:
            if _key(node) in handlers:
                _replace_node(rewrite, node, *handlers[_key(node)])
    if rewrite.problems:
        count = len(rewrite.problems)
        raise UnsupportedOperatorsError(f"trtkit cannot take {count} node{'s' * (count != 1)}", rewrite.problems)
    if not rewrite.done:
        return original, "none"
    _add_functions(rewrite)
    summary = _summary(rewrite.done, rewrite.form)
    onnx.helper.set_model_props(
        model, {entry.key: entry.value for entry in model.metadata_props} | {METADATA_KEY: summary}
    )
    return model, summary


def lower(
    model: onnx.ModelProto, *, is_final: bool = True, form: str | None = None, for_plugins: bool = False
) -> tuple[onnx.ModelProto, str]:
    """Replace foreign nodes like `replace`, and inline the bodies.

    for_plugins: nodes that a plugin supports stay calls of their function, for `plugins.use_plugins`.
    """
    model, detail = _replaced(model, _handlers(), is_final=is_final, form=form, for_plugins=for_plugins)
    if detail != "none":
        inline(model)
    return model, detail


def pad(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with padded custom ops instead of the foreign nodes, so that outputs can be compared."""
    return _replaced(model, _padded(), is_final=False)[0]


def has_padded(model: onnx.ModelProto) -> bool:
    """Whether there are nodes for `pad`."""
    handlers = _padded()
    return any(_key(node) in handlers for node in _nodes(model))


def _handlers() -> dict[tuple[str, str], tuple[CustomOp, Foreign]]:
    return {(foreign.domain, foreign.op_type): (op, foreign) for op in load_ops().values() for foreign in op.foreign}


def _padded() -> dict[tuple[str, str], tuple[CustomOp, Foreign]]:
    return {key: (op, foreign) for key, (op, foreign) in _handlers().items() if op.is_padded}


def _key(node: onnx.NodeProto) -> tuple[str, str]:
    return ("" if node.domain in _ONNX_DOMAINS else node.domain, node.op_type)


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes of the graphs and of local functions."""
    return [*all_nodes(model.graph), *(node for function in model.functions for node in function.node)]


def _lifted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with an opset that function bodies can be written in."""
    if opset_of(model) < OLDEST_OPSET:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _with_plain_functions(model: onnx.ModelProto, handlers: dict[tuple[str, str], Any]) -> onnx.ModelProto:
    """Return the model with local functions inlined if they contain foreign nodes."""
    kept = [(function.domain, function.name) for function in model.functions if function.domain == DOMAIN]
    foreign = [function for function in model.functions if function.domain != DOMAIN]
    if any(_key(node) in handlers for function in foreign for node in function.node):
        return onnx.inliner.inline_selected_functions(model, kept, exclude=True)
    return model


def _replace_node(rewrite: _CustomOpRewrite, node: onnx.NodeProto, op: CustomOp, foreign: Foreign) -> None:
    """Replace a node by the op, or record why that is not possible."""
    if not node.name:
        node.name = f"{node.op_type}_{next(number for number, n in enumerate(_nodes(rewrite.model)) if n is node)}"
    where = f"{foreign.label} `{node.name}`"
    try:
        replacement = foreign.convert(_read(rewrite, node))
        if replacement is None:
            return
        facts = [_fact(rewrite, op, index, name) for index, name in enumerate(replacement.inputs)]
        outputs = op.check(facts, replacement.attributes)
    except NotYetKnownError as unknown:
        if rewrite.is_final:
            rewrite.problems.append(Problem(str(unknown), where, "export it with fixed sizes"))
        return
    except Refusal as refusal:
        rewrite.problems.append(Problem(refusal.what, where, refusal.fix))
        return
    body = _body(rewrite, op, facts, replacement)
    _write(node, body.name, replacement)
    rewrite.knowledge.learn(replacement.outputs, outputs)
    rewrite.done[foreign.label, op.name] += 1


def _read(rewrite: _CustomOpRewrite, node: onnx.NodeProto) -> ForeignNode:
    knowledge = rewrite.knowledge
    return ForeignNode(
        node.name,
        node.op_type,
        tuple(node.input),
        tuple(node.output),
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute},
        [knowledge.fact(name) for name in node.input],
        [knowledge.constant(name) for name in node.input],
        opset_of(rewrite.model),
    )


def _fact(rewrite: _CustomOpRewrite, op: CustomOp, index: int, name: str) -> Fact | None:
    """Return the facts of an input; those of its port if nothing is known of a tensor that is present."""
    fact = rewrite.knowledge.fact(name)
    if fact is not None or not name:
        return fact
    port = op.inputs[min(index, len(op.inputs) - 1)]
    return Fact(port.types[0], (-1,) * port.rank)


def _body(
    rewrite: _CustomOpRewrite, op: CustomOp, facts: Sequence[Fact | None], replacement: Replacement
) -> onnx.FunctionProto:
    """Return the function for these facts and attributes, existing or new."""
    key = repr((op.name, facts, replacement.attributes))
    if key not in rewrite.bodies:
        names = {body.name for body in (*rewrite.model.functions, *rewrite.bodies.values())}
        count = sum(name == op.name or name.startswith(f"{op.name}_") for name in names)
        name = op.name if not count else f"{op.name}_{count + 1}"
        attributes = replacement.attributes
        body = rewrite.bodies[key] = function_of(op, name, facts, attributes, opset_of(rewrite.model), rewrite.form)
        if rewrite.for_plugins and not refusal(op, facts, attributes):
            mark_for_plugin(body)
    return rewrite.bodies[key]


def _write(node: onnx.NodeProto, function: str, replacement: Replacement) -> None:
    inputs = [name for name in replacement.inputs if name]
    values = attribute_values(replacement.attributes)
    call = onnx.helper.make_node(function, inputs, list(replacement.outputs), node.name, domain=DOMAIN, **values)
    node.CopyFrom(call)


def _add_functions(rewrite: _CustomOpRewrite) -> None:
    """Add the bodies, and their domain to the model's imports."""
    model = rewrite.model
    model.functions.extend(rewrite.bodies.values())
    if rewrite.bodies and all(entry.domain != DOMAIN for entry in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    rewrite.knowledge.annotate(model)


def _summary(done: Counter[tuple[str, str]], form: str | None) -> str:
    """Describe what was replaced by what, and in which form if it is not the first."""
    ops = load_ops()
    has_form = any(form in ops[name].forms[1:] for _, name in done)
    replacements = ", ".join(f"{count} {op} from {label}" for (label, op), count in done.items())
    return f"{replacements}; form {form}" if has_form else replacements
