"""--quiet, --verbose and --log-file, before and behind the command's name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.models import classifier, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran

    Run = Callable[..., Ran]

LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) +trtkit[.\w]*: ")


@pytest.fixture
def build(workspace: Path, own_cache: Path) -> list[str]:
    """The words that build a small network."""
    save(classifier(), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nprofiles: [{batch: [1, 2, 4]}]\n")
    return ["build", "m.yaml", "--no-cache"]


def test_progress_is_shown_unless_quiet_before_or_behind(build: list[str], trtkit: Run) -> None:
    assert "] build" in trtkit(*build).err
    for words in (["--quiet", *build], [*build, "--quiet"], ["-q", *build, "-q"]):
        ran = trtkit(*words)
        assert (ran.code, ran.err) == (0, "")
        assert "layers" in ran.out


@pytest.mark.parametrize("is_before", [True, False])
def test_log_file_has_every_step_and_what_tensorrt_says(
    build: list[str], trtkit: Run, workspace: Path, is_before: bool
) -> None:
    given = ["--log-file", "run.log"]
    ran = trtkit(*given, *build, "-q") if is_before else trtkit(*build, *given, "-q")
    assert ran.err == ""
    text = (workspace / "run.log").read_text()
    assert [line for line in text.splitlines() if not LINE.match(line)] == []
    assert "trtkit build m.yaml" in text.replace("--log-file run.log ", "")
    for part in ("trtkit.progress: fold", "job build_stage", "[TRT] [I] ", "Engine generation completed"):
        assert part in text


def test_log_file_is_appended_to_and_has_errors_and_codes(trtkit: Run, workspace: Path) -> None:
    (workspace / "run.log").write_text("kept\n")
    assert trtkit("build", "nope", "--log-file", "run.log").code == 2
    assert trtkit("verify", "nope.onnx", "--log-file", "run.log").code == 1
    assert trtkit("plan", "nope", "--gpu", "x", "--log-file", "run.log").code == 2
    kept, *lines = (workspace / "run.log").read_text().splitlines()
    assert kept == "kept"
    errors = [line.partition("ERROR   trtkit: ")[2] for line in lines if " ERROR " in line]
    assert errors[:2] == ["no bundle, config or model is called `nope`", "nope.onnx: no such file"]
    assert "`x`" in errors[2]


def test_verbose_shows_the_log_on_stderr_and_the_result_on_stdout(build: list[str], trtkit: Run) -> None:
    ran = trtkit(*build, "--verbose", "--json")
    assert ran.json()["origin"] == "built"
    assert [line for line in ran.err.splitlines() if not LINE.match(line)] == []
    assert "[TRT] [I] " in ran.err
    assert trtkit("-v", *build).err.count("trtkit.progress: parse\n") == 1


def test_a_run_without_a_log_leaves_no_handler_behind(trtkit: Run) -> None:
    import logging

    before = list(logging.getLogger().handlers)
    trtkit("doctor", "-v")
    assert logging.getLogger().handlers == before
    assert logging.getLogger("trtkit").level == logging.NOTSET


@pytest.mark.parametrize("words", [["-q", "doctor", "-v"], ["doctor", "-q", "-v"], ["-v", "doctor", "-q"]])
def test_quiet_and_verbose_exclude_each_other(words: list[str], trtkit: Run) -> None:
    ran = trtkit(*words)
    assert (ran.code, ran.out) == (2, "")
    assert "--quiet and --verbose cannot be used together" in ran.err


def test_a_log_that_cannot_be_written_stops_before_the_work(refuses: Callable[..., str]) -> None:
    said = refuses("doctor", "--log-file", "no/such/run.log")
    assert (
        said == "--log-file no/such/run.log: cannot be written: no such file or directory\nfix: choose a writable file"
    )
