"""The pages of the site that are written from the code while it is built: every command, the Python API."""

from __future__ import annotations

import importlib
import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMANDS = """\
# Commands

Written from the commands themselves; `trtkit COMMAND --help` says the same.
"""

_PYTHON = """\
# Python API

Written from the code's docstrings; [this page](../python-api.md) shows the functions at work. Names under `trtkit` are
imported from there, the rest from the module that heads them. Shape letters: B batch (slots), S new tokens, T cached
tokens, N query heads, K key/value heads, H head size, D hidden size, F size inside a feed-forward block, E experts, V
vocabulary.
"""

_OPS = (
    *("arithmetic", "shape", "gather", "linear", "norm", "activation"),
    *("rotary", "mask", "attention", "kv_cache", "moe", "quantize"),
)
_BLOCKS = ("weights", "norm", "attention", "mlp", "quantized", "layer")
# Title of a section, then modules with the names to show; no names: every public function and class.
_API: tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...] = (
    (
        "Functions",
        (
            (
                "trtkit",
                (
                    "load_config",
                    "build",
                    "verify",
                    "quantize",
                    "plan",
                    "bench",
                    "deploy",
                    "evaluate",
                    "evaluate_images",
                ),
            ),
            ("trtkit.bundle.bundle", ("Bundle", "open_bundle")),
            ("trtkit.verification.report", ("Report",)),
            ("trtkit.engine.quantize", ("QuantizeResult",)),
            ("trtkit", ("Load",)),
            ("trtkit.benchmarking.request", ("ServedModel",)),
            ("trtkit.benchmarking.timing", ("Rules",)),
            ("trtkit.benchmarking.report", ("VisionReport", "LlmReport", "Case", "Result")),
            (
                "trtkit.verification.evaluation",
                ("Evaluation", "Perplexity", "Distance", "Questions", "Compared"),
            ),
            ("trtkit.jobs.events", ("Phase", "Step", "Progress")),
            ("trtkit.errors", ("TrtkitError", "ProblemsError")),
        ),
    ),
    (
        "Text",
        (
            ("trtkit", ("LLM", "AsyncLLM", "SamplingParams")),
            ("trtkit.runtime.llm.frontend", ("RuntimeOptions",)),
            ("trtkit.runtime.llm.outputs", ("RequestOutput", "CompletionOutput", "Delta", "RequestMetrics")),
            ("trtkit.runtime.llm", ("read_prompts", "prepare_prompts", "read_text_bundle", "PromptsError")),
        ),
    ),
    ("Arrays", (("trtkit", ("open_model",)), ("trtkit.runtime.model", ("Model",)))),
    (
        "Networks",
        (("trtkit.network.graph", ("Graph", "Tensor")), ("trtkit.network.decoder", ())),
    ),
    (
        "Operations",
        tuple((f"trtkit.network.ops.{name}", ()) for name in _OPS),
    ),
    (
        "Blocks",
        tuple((f"trtkit.network.blocks.{name}", ()) for name in _BLOCKS),
    ),
)


def commands() -> str:
    """Return the page of all commands."""
    from trtkit.cli.bench_diff import diff
    from trtkit.cli.main import COMMANDS

    parts = [_COMMANDS]
    for name in COMMANDS:
        command = importlib.import_module(f"trtkit.cli.{name}").command
        parts += [_command(f"trtkit {part}", each) for part, each in _with_children(name, command)]
        if name == "bench":
            parts.append(_command("trtkit bench diff", diff))
    return "\n".join(parts)


def python() -> str:
    """Return the page of the Python API."""
    parts = [_PYTHON]
    for title, modules in _API:
        parts.append(f"## {title}\n")
        for module, names in modules:
            parts += _module(module, names)
    return "\n".join(parts)


def _with_children(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Give a command, and those of a group behind it."""
    yield name, command
    if isinstance(command, click.Group):
        for child in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), child)
            assert found is not None
            yield f"{name} {child}", found


def _command(name: str, command: click.Command) -> str:
    """Return a command's section: usage, what it does, its options, examples."""
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    usage = " ".join(command.collect_usage_pieces(context))
    rows = [f"| `{first}` | {_cell(second)} |" for first, second in _options(command, context)]
    table = "\n".join(["| option | meaning |", "| --- | --- |", *rows])
    epilog = inspect.cleandoc(command.epilog or "").replace("\b\n", "").strip()
    examples = f"```text\n{epilog}\n```\n" if epilog else ""
    return f"## {name}\n\n```text\n{name} {usage}\n```\n\n{_prose(command.help)}\n\n{table}\n\n{examples}"


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield record[0].replace("|", "\\|"), record[1]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _prose(text: str | None) -> str:
    return inspect.cleandoc(text or "").replace("\b", "").replace("\f", "")


def _module(name: str, names: tuple[str, ...]) -> list[str]:
    """Return the sections of a module's public names."""
    module = importlib.import_module(name)
    own = [each for each, value in vars(module).items() if _is_public(each, value, name)]
    chosen = names or tuple(own)
    shown = "from `trtkit`" if name == "trtkit" else f"`{name}`"
    return [f"### {shown}\n", *(_entry(each, getattr(module, each)) for each in chosen)]


def _is_public(name: str, value: Any, module: str) -> bool:
    return not name.startswith("_") and inspect.getmodule(value) is importlib.import_module(module) and callable(value)


def _entry(name: str, value: Any) -> str:
    """Return one class or function with its signature and docstring."""
    if not isinstance(value, type):
        return _signed(name, value)
    members = [_signed(each, member) for each, member in _methods(value)]
    head = _signed(name, value) if value.__init__ is not object.__init__ else f"#### {name}\n\n{_doc(value)}\n"
    return "\n".join([head, *members])


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        found = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if isinstance(found, (FunctionType, property)) and not name.startswith("_"):
            yield f"{kind.__name__}.{name}", found


def _signed(name: str, value: Any) -> str:
    if isinstance(value, property):
        answer = inspect.signature(value.fget or (lambda: None)).return_annotation
        return f"#### {name}\n\n```python\n{name}: {answer}\n```\n\n{_doc(value)}\n"
    keyword = "class " if isinstance(value, type) else ""
    return f"#### {name}\n\n```python\n{keyword}{name}{_signature(value)}\n```\n\n{_doc(value)}\n"


def _signature(value: Any) -> str:
    """Return the arguments as they are written, one a line where they are long."""
    signature = inspect.signature(value)
    texts = [_parameter(each) for each in signature.parameters.values() if each.name != "self"]
    first = next((i for i, each in enumerate(signature.parameters.values()) if each.kind is each.KEYWORD_ONLY), None)
    if first is not None:
        texts.insert(first - ("self" in signature.parameters), "*")
    is_class = isinstance(value, type)
    answer = "" if is_class or signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    line = f"({', '.join(texts)}){answer}"
    return line if len(line) <= 90 else "(\n    " + ",\n    ".join(texts) + f",\n){answer}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = str(parameter.annotation).strip("\"'")
    text = f"{stars}{parameter.name}: {kind}"
    if parameter.default is parameter.empty:
        return text
    shown = repr(parameter.default)
    if len(shown) >= 40 or shown.startswith("<"):
        shown = getattr(parameter.default, "name", "...")
    return f"{text} = {shown}"


def _doc(value: Any) -> str:
    """Return a docstring; lines that go on are joined, lines of their own stay apart."""
    text = inspect.getdoc(value) or ""
    text = text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_") if "`" not in text else text
    lines: list[str] = []
    for line in text.splitlines():
        starts = not lines or not lines[-1] or line.split(":")[0].replace(", ", "").replace("_", "").isalnum()
        if starts and line:
            lines.append(line)
        elif line:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append("")
    return "\n\n".join(line for line in lines if line)
