"""The pages of the site that are written while it is built: every command, and an index of the Python API."""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMANDS = """\
# Commands

Written from the commands themselves; `trtkit COMMAND --help` says the same. Every command also takes the options of
`trtkit` itself.
"""

_INDEX = """\
# Index of the Python API

Every public name, by subject. [The guide](../python-api.md) shows the functions at work.
"""
_PAGES = ("python.md", "networks.md")


def commands() -> str:
    """Return the page of all commands."""
    from trtkit.cli.main import cli

    parts, shared = [_COMMANDS], set(_options(cli, "trtkit"))
    for name, command in _tree("trtkit", cli):
        own = [row for row in _options(command, name) if command is cli or row not in shared]
        parts.append(_section(name, command, own))
    return "\n".join(parts)


def index() -> str:
    """Return the page that lists what the pages of the Python API explain."""
    parts = [_INDEX]
    for page in _PAGES:
        for line in (Path(__file__).parent / "reference" / page).read_text(encoding="utf-8").splitlines():
            if line.startswith("## "):
                parts.append(f"\n{line}\n")
            elif line.startswith("::: "):
                parts += [f"- [`{path}`][{path}]: {_cell(first)}" for path, first in _names(line[4:])]
    return "\n".join(parts)


def _tree(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, and those of a group after it."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _tree(f"{name} {child}", found)
    if name == "trtkit bench":  # not a group: `diff` comes where a bundle would
        from trtkit.cli.bench import diff

        yield "trtkit bench diff", diff


def _section(name: str, command: click.Command, options: list[tuple[str, str]]) -> str:
    """Return a command's section: usage, what it does, its options, examples."""
    usage = " ".join(command.collect_usage_pieces(click.Context(command)))
    parts = [f"## {name}", f"```text\n{name} {usage}\n```", inspect.cleandoc(command.help or "").replace("\b", "")]
    if options:
        rows = [f"| `{first}` | {_cell(second)} |" for first, second in options]
        parts.append("\n".join(["| option | meaning |", "| --- | --- |", *rows]))
    if command.epilog:
        epilog = inspect.cleandoc(command.epilog).replace("\b\n", "").strip()
        parts.append(f"```text\n{epilog}\n```")
    return "\n\n".join([*parts, ""])


def _options(command: click.Command, name: str) -> list[tuple[str, str]]:
    """Return the options that have a meaning, as `--help` shows them."""
    context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
    records = [each.get_help_record(context) for each in command.get_params(context)]
    return [(record[0].replace("|", "\\|"), record[1]) for record in records if record and record[1]]


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("] [", "; ")
    return plain.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _names(path: str) -> Iterator[tuple[str, str]]:
    """Yield a class or a function, or those that a module defines, with the first sentence of what it says."""
    value = pydoc.locate(path)
    if not inspect.ismodule(value):
        yield path, (inspect.getdoc(value) or "").split("\n\n")[0].split(". ")[0].rstrip(".")
        return
    for name, member in vars(value).items():
        if not name.startswith("_") and callable(member) and member.__module__ == path:
            yield from _names(f"{path}.{name}")
