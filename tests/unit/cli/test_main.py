from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from tests.conftest import TRTKIT
from trtkit import __version__
from trtkit.cli.bench import diff
from trtkit.cli.main import COMMANDS, GROUPS, cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import Ran

HEAVY = {
    "numpy",
    "torch",
    "onnx",
    "tensorrt",
    "tensorrt_rtx",
    "rich",
    "pydantic",
    "yaml",
    "safetensors",
    "transformers",
}


@pytest.mark.parametrize("words", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    modules = imported(*words)
    assert "click" in modules
    assert modules & HEAVY == set()


def test_what_is_here_is_listed_without_numpy(tmp_path: Path) -> None:
    assert imported("list", tmp_path) & HEAVY == {"pydantic", "rich", "yaml"}


def imported(*words: object) -> set[str]:
    """Return the packages that a command imports, in a process of its own."""
    code = "import atexit, json, sys; from trtkit.cli import main\n"
    code += "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr)); main()"
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


def test_help_lists_every_command_with_what_it_does(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("--help")
    assert ran.code == 0
    places = [ran.out.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    listed = dict(re.findall(r"^  ([a-z]+)  +(\S.*)$", ran.out[places[0] :], re.MULTILINE))
    assert listed == COMMANDS
    for code in ("0 done", "1 failed", "2 wrong usage or config", "4 a regression", "130 cancelled"):
        assert code in " ".join(ran.out.partition("Exit codes: ")[2].split())


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command, or those below a group."""
    yield name, command
    for below, each in getattr(command, "commands", {}).items():
        yield from leaves(each, f"{name} {below}")


def every_command() -> dict[str, click.Command]:
    found = {"": cli, "bench diff": diff}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        found |= leaves(command, name)
    return found


@pytest.mark.parametrize("name", every_command())
def test_every_help_fits_80_columns_and_has_the_options_of_a_run(name: str, trtkit: Callable[..., Ran]) -> None:
    out = trtkit(*name.split(), "--help").out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    if not isinstance(every_command()[name], click.Group) or not name:
        for flag in ("-q, --quiet", "-v, --verbose", "--log-file FILE"):
            assert flag in out


@pytest.mark.parametrize("name", every_command())
def test_arguments_are_in_the_usage_line_and_not_among_the_options(name: str, trtkit: Callable[..., Ran]) -> None:
    command = every_command()[name]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    rows = [line.strip() for line in trtkit(*name.split(), "--help").out.splitlines() if line.startswith("  ")]
    assert [each.name for each in arguments if each.make_metavar(click.Context(command)) in rows] == []


@pytest.mark.parametrize("name", sorted(every_command()))
def test_every_command_has_examples_that_parse(name: str) -> None:
    """Each line of the examples is taken by the parser of the command it names."""
    epilog = every_command()[name].epilog or every_command()[name.rpartition(" ")[0]].epilog or ""
    lines = epilog.partition("Examples:\n")[2].partition("\n\n")[0].replace("\\\n", " ").splitlines()
    mine = [line for line in lines if f"trtkit {name}".strip() in line]
    assert mine
    for line in mine:
        words = shlex.split(line[line.index("trtkit ") :].replace(')"', ""), comments=True)[1:]
        words = list(itertools.takewhile(lambda word: word not in {">", "|"}, words))
        parse(cli, words)


def parse(group: click.Group, words: list[str]) -> None:
    """Parse words as a call would, running nothing. Raises UsageError."""
    command: click.Command | None = group
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(click.Context(command), words)
    assert command is not None
    command.make_context("trtkit", words).close()


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_shows_examples_that_start_with_its_name(name: str, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: trtkit {name} ")
    assert COMMANDS[name].rstrip(".")[:10].lower() in ran.out.lower()


def test_build_help_is_the_contract_of_its_options(trtkit: Callable[..., Ran]) -> None:
    out = trtkit("build", "--help").out
    for text in (
        "trtkit build [OPTIONS] MODEL", "-c, --config MODEL", "-o, --output DIR", "[default: bundles/NAME]",
        "--precision [fp32|fp16|bf16]", "--shapes INPUT:SHAPE",
        "--target NAME", "--set KEY=VALUE", "--no-cache", "--json", "-q, --quiet",
    ):  # fmt: skip
        assert text in " ".join(out.split())


def test_version_is_the_packages(trtkit: Callable[..., Ran]) -> None:
    assert trtkit("--version").out == f"trtkit, version {__version__}\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["biuld"], "No such command 'biuld'. Did you mean 'build'?"),
        (["config", "inti"], "No such command 'inti'. Did you mean 'init'?"),
        (["plugins", "lsit"], "No such command 'lsit'. Did you mean 'list'?"),
        (["bench", "dif", "a.json", "b.json"], "No such command 'dif'. Did you mean 'diff'?"),
        (["build", "--targt"], "No such option '--targt'. Did you mean '--target'?"),
        (["frobnicate"], "No such command 'frobnicate'."),
    ],
)
def test_misspelled_command_or_option_is_answered_with_a_close_name(
    words: list[str], what: str, trtkit: Callable[..., Ran]
) -> None:
    ran = trtkit(*words)
    assert (ran.code, ran.out) == (2, "")
    assert f"Error: {what}\n" in ran.err
    assert trtkit(*words, "--json").json()["what"] == what


def test_reader_that_leaves_early_is_no_fault() -> None:
    done = subprocess.run(
        f"{sys.executable} -c '{TRTKIT[2]}' --help | head -c 1", shell=True, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("U", "")


@pytest.mark.parametrize(
    "modules",
    [
        "trtkit.deployment.make_known, trtkit.verification.verify",
        "trtkit.planning.plan, trtkit.planning.count_decoder",
        "trtkit.simulation.fleet, trtkit.simulation.report",
    ],
)
def test_the_processes_of_verify_plan_and_simulate_leave_torch_to_those_that_compute(modules: str) -> None:
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
