"""What is printed into a terminal, a pipe, and a pipe that nobody reads."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.models import classifier, save

if TYPE_CHECKING:
    from collections.abc import Callable

TRTKIT = str(Path(sys.executable).parent / "trtkit")
ESCAPE = "\x1b"
# Select Graphic Rendition with a colour among its numbers.
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38|4[0-7]|10[0-7])[;\dm]")
PLAIN = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")


@pytest.fixture
def build(workspace: Path, own_cache: Path) -> list[str]:
    save(classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 2, 4]}]\n")
    return ["build", "m.yaml", "--no-cache"]


def environment(**given: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in PLAIN}, "TERM": "xterm", **given}


def in_pipe(*words: str, **given: str) -> str:
    """Return what a command prints into a pipe, errors and all."""
    done = subprocess.run(
        [TRTKIT, *words],
        env=environment(**given),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return done.stdout


def in_terminal(*words: str, **given: str) -> str:
    """Return what a command prints into a terminal, errors and all."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([TRTKIT, *words], env=environment(**given), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # what Linux says where no process has the other end open
            break
        if not part:
            break
        parts.append(part)
    process.wait()
    os.close(ours)
    return b"".join(parts).decode()


@pytest.mark.parametrize("words", [["build"], ["build", "nope"], ["plugins", "list"]])
def test_a_terminal_gets_colours_and_a_pipe_gets_text(build: list[str], words: list[str]) -> None:
    is_build = words == ["build"]
    words = build if is_build else words
    shown, piped = in_terminal(*words), in_pipe(*words)
    assert COLOUR.search(shown)
    assert not is_build or f"{ESCAPE}[2K" in shown  # a bar moves: a line is cleared to be written again
    assert len(piped) > 100
    assert ESCAPE not in piped
    assert "\r" not in piped


def test_no_bar_moves_in_a_pipe_that_gets_colours(build: list[str]) -> None:
    assert not re.search(r"\x1b\[\d*[A-HJK]|\r", in_pipe(*build, FORCE_COLOR="1"))


@pytest.mark.parametrize("given", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_refused(build: list[str], given: dict[str, str]) -> None:
    is_alone = given == {"NO_COLOR": "1"}  # with a whole build, too
    for words in ([build] if is_alone else []) + [["build", "nope"]]:
        text = in_terminal(*words, **given)
        assert len(text) > 100
        assert not COLOUR.search(text)
        assert "TERM" not in given or ESCAPE not in text


def test_colours_can_be_forced_into_a_pipe() -> None:
    for words in (["plugins", "list"], ["build", "nope"]):
        assert COLOUR.search(in_pipe(*words, FORCE_COLOR="1"))
        assert ESCAPE not in in_pipe(*words, FORCE_COLOR="")


DOCTOR = "doctor"


@pytest.mark.parametrize("line", ["plan --list-gpus", "plan --list-gpus --json", "--help", "plugins list", DOCTOR])
def test_a_reader_that_leaves_ends_a_command_silently(line: str) -> None:
    """`head -c 1` reads one letter; `true` reads nothing at all."""
    for reader in ("head -c 1", "true"):
        done = subprocess.run(
            ["bash", "-c", f"{TRTKIT} {line} | {reader}"], capture_output=True, text=True, check=True, env=environment()
        )
        assert done.stderr == ""


@pytest.mark.parametrize(("columns", "widest"), [("", 80), ("60", 60), ("120", 120)])
def test_tables_are_as_wide_as_asked(
    columns: str, widest: int, build: list[str], trtkit: Callable[..., object]
) -> None:
    trtkit(*build, "-q")
    lines = in_pipe("inspect", "bundles/m", COLUMNS=columns).splitlines()
    lines = [line for line in lines if columns or not Path(line.split()[-1] if line.strip() else "-").exists()]
    assert max(map(len, lines)) <= widest


def test_doctor_imports_nothing_that_takes_long() -> None:
    code = "import sys; from trtkit.cli.main import main\n"
    code += "try: main(['doctor', '--json'])\nfinally: print(sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    heavy = {"torch", "transformers", "onnxruntime", "modelopt", "scipy", "triton", "dynamo"}
    assert not [name for name in heavy if f"'{name}'" in ran.stdout.splitlines()[-1]]
    assert '"ready": true' in ran.stdout
