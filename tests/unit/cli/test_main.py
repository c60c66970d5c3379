from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.conftest import TRTKIT
from trtkit import __version__
from trtkit.cli.main import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable

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
    code = "import atexit, json, sys; from trtkit.cli import main\n"
    code += "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr)); main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    assert "click" in imported
    assert imported & HEAVY == set()


def test_help_lists_every_command_with_what_it_does(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("--help")
    assert ran.code == 0
    listed = dict(
        line.strip().split("  ", 1) for line in ran.out.partition("Commands:\n")[2].splitlines()[: len(COMMANDS)]
    )
    assert {name: text.strip() for name, text in listed.items()} == COMMANDS
    for code in ("0 done", "1 failed", "2 wrong usage or config", "130 cancelled"):
        assert code in ran.out.partition("Exit codes: ")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_shows_examples_that_start_with_its_name(name: str, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: trtkit {name} ")
    assert COMMANDS[name].rstrip(".")[:10].lower() in ran.out.lower()


def test_build_help_is_the_contract_of_its_options(trtkit: Callable[..., Ran]) -> None:
    out = trtkit("build", "--help").out
    for text in (
        "--config FILE", "A YAML file, or the name of a shipped config.  [required]", "--out PATH",
        "[default: bundles/NAME]", "--target NAME", "--set KEY=VALUE", "--no-cache", "--json", "-q, --quiet",
    ):  # fmt: skip
        assert text in " ".join(out.split()).replace("config. [", "config.  [")


def test_version_is_the_packages(trtkit: Callable[..., Ran]) -> None:
    assert trtkit("--version").out == f"trtkit, version {__version__}\n"


def test_unknown_command_is_a_usage_error(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("bild")
    assert (ran.code, ran.out) == (2, "")
    assert "No such command 'bild'" in ran.err


def test_reader_that_leaves_early_is_no_fault() -> None:
    done = subprocess.run(
        f"{sys.executable} -c '{TRTKIT[2]}' --help | head -c 1", shell=True, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("U", "")
