"""What bash offers, asked in a real one, and in zsh and fish where they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from trtkit.cli.main import COMMANDS
from trtkit.config.load import shipped_configs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

BIN = Path(sys.executable).parent
HEAVY = "numpy torch tensorrt_rtx rich onnx"


@pytest.fixture(scope="module")
def script() -> str:
    """What `trtkit completion bash` prints."""
    done = subprocess.run([BIN / "trtkit", "completion", "bash"], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def offered(script: str, workspace: Path) -> Callable[[str], list[str]]:
    """Type a line into bash and press the tab key; return what it offers for the last word."""
    for name in ("bundles/one", "bundles/two", "empty"):
        (workspace / name).mkdir(parents=True)
    for name in ("bundles/one/manifest.json", "bundles/two/manifest.json", "my.yaml", "my.onnx", "notes.txt"):
        (workspace / name).touch()

    def press(line: str) -> list[str]:
        words = line.split(" ")
        call = f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; compopt() {{ :; }}\n"
        call += '_trtkit_completion trtkit; printf "%s\\n" "${COMPREPLY[@]}"'
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        command = ["bash", "--norc", "-c", script + call]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split()

    return press


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("trtkit ver", ["verify"]),
        ("trtkit build --conf", ["--config"]),
        ("trtkit build effic", ["efficientnet-lite0"]),
        ("trtkit build my", ["my.onnx", "my.yaml"]),
        ("trtkit verify my", ["my.onnx", "my.yaml"]),
        ("trtkit verify bundles/", ["bundles/one", "bundles/two"]),
        ("trtkit generate b", ["bundles/"]),
        ("trtkit bench bundles/t", ["bundles/two"]),
        ("trtkit bench my", ["my.onnx", "my.yaml"]),
        ("trtkit bench effic", ["efficientnet-lite0"]),
        ("trtkit build --set llm.max_b", ["llm.max_batch_size="]),
        ("trtkit build --target sm8", ["sm80", "sm86", "sm89"]),
        ("trtkit plan --gpu h", ["h100", "h100pcie", "h20", "h200"]),
        ("trtkit plan --gpu l4,rtx4", ["l4,rtx4090"]),
        ("trtkit deploy --set queue.d", ["queue.delay_us="]),
        ("trtkit completion ", ["bash", "fish", "zsh"]),
        ("trtkit verify --against o", ["onnxruntime"]),
        ("trtkit quantize llama --method int4", ["int4_awq", "int4_gptq", "int4_wo"]),
        ("trtkit quantize llama --fallback fp", ["fp8", "fp8_pc"]),
    ],
)
def test_bash_offers(line: str, wanted: list[str], offered: Callable[[str], list[str]]) -> None:
    assert sorted(offered(line)) == wanted


def test_bash_offers_all_commands_and_configs(offered: Callable[[str], list[str]]) -> None:
    assert offered("trtkit ") == list(COMMANDS)
    assert set(shipped_configs()) <= set(offered("trtkit inspect "))


@pytest.mark.parametrize("words", ["trtkit ", "trtkit build ", "trtkit plan --gpu ", "trtkit verify bundles/"])
def test_a_key_press_imports_nothing_heavy(words: str) -> None:
    code = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    code += "from trtkit.cli import main; main()"
    asked = {"_TRTKIT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert done.stdout
    assert set(done.stderr.split()) & {*HEAVY.split(), "pydantic", "yaml"} == set()


@pytest.mark.parametrize(("shell", "syntax"), [("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_other_shells_take_their_script(shell: str, syntax: list[str], trtkit: Callable[..., Ran]) -> None:
    """The script is click's; its syntax is checked where the shell is installed."""
    out = trtkit("completion", shell).out
    assert f"_TRTKIT_COMPLETE={shell}_complete" in out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, *syntax], input=out, text=True, check=True)


def test_unknown_shells_are_refused(trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("completion", "tcsh")
    assert ran.code == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in ran.err
