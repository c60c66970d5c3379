"""Options, config keys and modules that the migration guides name exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from tests.support.docs import DOCS
from trtkit.cli.main import COMMANDS
from trtkit.config import ModelConfig
from trtkit.deployment.triton.options import DeployOptions

if TYPE_CHECKING:
    from pathlib import Path

    import click

PAGES = sorted((DOCS / "migration").glob("*.md"))
_KEY = re.compile(r"[a-z_]\w*(\.[a-z_]\w*)*")


@cache
def options(name: str) -> set[str]:
    """Return every option of a command."""
    command: click.Command = importlib.import_module(f"trtkit.cli.{name}").command
    return {word for each in command.params for word in [*each.opts, *each.secondary_opts]}


def has_key(model: type[BaseModel], key: str) -> bool:
    """Whether a config of `model` has the dotted `key`."""
    first, _, rest = key.partition(".")
    if first not in model.model_fields:
        return False
    kinds = [model.model_fields[first].annotation]
    kinds += list(getattr(kinds[0], "__args__", ()))
    nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return not rest or any(has_key(kind, rest) for kind in nested)


def rows(page: Path) -> list[list[str]]:
    """Return the cells of tables of three columns whose second column is trtkit's."""
    tables = re.findall(r"^\| [^|]+ \| trtkit \| \|\n\|[-| ]+\n((?:\|.*\n)+)", page.read_text("utf-8"), re.MULTILINE)
    return [line.strip("|").split(" | ") for table in tables for line in table.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_and_keys_exist(page: Path) -> None:
    cells = [cell for _, cell, *_ in rows(page)]
    known = {word for name in COMMANDS for word in options(name)}
    assert len(cells) > 15 or page.stem == "tensorrt-10"  # whose flags are in the page of trtexec
    for word in [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]:
        if word.startswith("--"):
            assert word in known
        else:
            assert _KEY.fullmatch(word)
            assert has_key(ModelConfig, word) or has_key(DeployOptions, word), word


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_and_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`(trtkit\.[\w.]+)`", text):
        pkgutil.resolve_name(name)
    for command, rest in re.findall(r"`trtkit (\w+)([^`]*)`", text):
        assert command in COMMANDS
        assert set(re.findall(r"(?<= )--[a-z-]+", rest)) <= options(command), f"trtkit {command}{rest}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_not_here_has_its_reason(page: Path) -> None:
    assert [name for name, ours, why in rows(page) if ours.strip() == "none" and not why.strip(" |")] == []
