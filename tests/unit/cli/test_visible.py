"""Names in models cannot steer the terminal that shows them; shell lines to paste are quoted."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import models
from trtkit.cli.visible import answer, console, visible
from trtkit.sources.package_file import install_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

EVIL = "\x1b]0;owned\x07\x1b[2Jx\x9b31m\r\u202eabc"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_steers_a_terminal_is_replaced_and_text_is_not() -> None:
    assert visible(EVIL) == "\ufffd]0;owned\ufffd\ufffd[2Jx\ufffd31m\ufffd\ufffdabc"
    assert visible("größer\t日本語 🙂\n") == "größer\t日本語 🙂\n"
    assert visible("\ud800").encode()


def test_a_console_keeps_its_own_colours_alone() -> None:
    out = Terminal()
    console(file=out, force_terminal=True, width=80, color_system="standard").print(EVIL, style="bold")
    plain = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert "\x1b[1m" in out.getvalue()
    assert not {"\x1b", "\x9b", "\r"} & set(plain)
    assert plain.startswith("\ufffd]0;owned")


def test_an_answer_is_exact_in_a_pipe_and_harmless_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    answer("\x1b[2Jx", io.StringIO())
    answer("\x1b[2Jx", Terminal())
    assert capsys.readouterr().out == "\x1b[2Jx\ufffd[2Jx"


def test_names_of_a_model_are_shown_harmlessly_and_are_whole_in_json(
    workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    model = models.matmul()
    model.graph.input[0].name = model.graph.node[0].input[0] = f"x{EVIL}"
    models.save(model, workspace / "m.onnx")
    ran = trtkit("inspect", "m.onnx", "--layers")
    assert ran.code == 0
    assert not {"\x1b", "\x9b", "\r", "\u202e"} & set(ran.out + ran.err)
    found = trtkit("inspect", "m.onnx", "--json")
    assert not {"\x1b", "\x9b"} & set(found.out)
    assert found.json()["network"]["inputs"][0]["name"] == f"x{EVIL}"


def test_an_error_shows_a_file_name_harmlessly(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("inspect", f"{EVIL}.onnx")
    assert ran.err.startswith("error: \ufffd]0;owned\ufffd\ufffd[2Jx")
    assert "\x1b" not in ran.err


def test_shell_lines_are_quoted() -> None:
    assert install_line("a==1 b==2") == "pip install --no-deps a==1 b==2"
    assert install_line("a;reboot $(x)") == "pip install --no-deps 'a;reboot' '$(x)'"
    assert shlex.split(install_line("a;reboot $(x)"))[-2:] == ["a;reboot", "$(x)"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_log_on_a_full_disk_ends_with_one_line(workspace: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("plan", "--list-gpus", "--log-file", "/dev/full", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)
    assert ran.err.count("the log ends here: ") == 1
    assert "no space left on device" in ran.err
