"""If TensorRT refuses a model or crashes on it, the command survives and names the node."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trtkit
from tests.support import models
from tests.support.hybrids import case_of, saved
from tests.support.tiny_chat import save_model

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.children

NARROW_DOWN = "\nfix: replace that part of the model; `trtkit inspect` on parts of it narrows it down"


@pytest.fixture
def config(workspace: Path) -> Path:
    path = workspace / "m.yaml"
    path.write_text("source:\n  onnx: m.onnx\n")
    return path


@pytest.mark.parametrize("command", ["build", pytest.param("inspect", marks=pytest.mark.slow)])
def test_unsupported_operators_are_reported_all_at_once_with_advice(
    command: str, workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    models.save(models.unsupported(), workspace / "m.onnx")
    message = refuses(command, config)
    assert message.startswith("TensorRT refuses 3 nodes of the model\n")
    lines = message.splitlines()[1:]
    assert len(lines) == 6
    found = dict(zip(lines[::2], lines[1::2], strict=True))
    assert {line.split(": ", 1)[0].strip() for line in found} == {
        "Unique `unique_of_a` (ai.onnx)",
        "Fancy `fancy` (acme)",
        "Bernoulli `dice` (ai.onnx)",
    }
    fixes = {line.split(" `")[0].strip(): fix.strip() for line, fix in found.items()}
    assert fixes == {
        "Unique": "fix: its output's size depends on data: compute it outside the engine",
        "Fancy": "fix: `acme` is not a standard domain: give the model a local function (FunctionProto) of standard "
        "operators for it, add a custom op (`trtkit plugins --help`), or export without it",
        "Bernoulli": "fix: random sampling belongs outside the engine: make it an input",
    }
    assert all(len(line.split(": ", 1)[1]) > 10 for line in found), "TensorRT's own reason is missing"


def test_death_while_parsing_names_signal_and_node(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    models.save(models.dies_while_parsing(), workspace / "m.onnx")
    message = refuses("build", config)
    assert message.startswith("TensorRT died with SIGFPE while parsing DepthToSpace `upscale`; last log line: ")
    assert message.endswith(NARROW_DOWN)


def test_death_while_inspecting_is_told_too(workspace: Path, refuses: Callable[..., str]) -> None:
    path = models.save(models.dies_while_parsing(), workspace / "m.onnx")
    message = refuses("inspect", path)
    assert message.startswith("TensorRT died with SIGFPE while parsing DepthToSpace `upscale`; ")


def test_death_while_building_names_signal_and_last_node(
    workspace: Path, config: Path, refuses: Callable[..., str]
) -> None:
    models.save(models.dies_while_building(), workspace / "m.onnx")
    message = refuses("build", config)
    assert message.startswith(
        "TensorRT died with SIGFPE while building, the last node parsed was Add `shift`; last log"
    )
    assert message.endswith(NARROW_DOWN)


@pytest.mark.slow
def test_stack_overflow_in_the_builder_is_told(workspace: Path, config: Path, refuses: Callable[..., str]) -> None:
    models.save(models.chain(4000), workspace / "m.onnx")
    message = refuses("build", config, "--set", "fold_constants=false")
    assert message.startswith("TensorRT died with SIGSEGV while building, the last node parsed was Relu `n3999`; ")


@pytest.mark.parametrize(
    ("death", "cause"),
    [
        ("os.abort()", "reading the model died with SIGABRT: last words"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "reading the model died with SIGSEGV: last words"),
        ("sys.exit(3)", "reading the model died with exit code 3: last words"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the process of job `prepare` was killed, as the system does when"),
    ],
)
def test_factory_that_kills_its_process_is_an_error(
    death: str, cause: str, workspace: Path, refuses: Callable[..., str]
) -> None:
    factory = f"""\
        import os, signal, sys

        def make():
            print("last words", flush=True)
            {death}
    """
    (workspace / "killer.py").write_text(textwrap.dedent(factory))
    source = "{torch: {factory: 'killer:make', inputs: {x: {shape: [1]}}}}"
    (workspace / "m.yaml").write_text(f"source: {source}\n")
    message = refuses("build", "m.yaml")
    assert cause in message
    assert not os.path.lexists("bundles")


CRASH = """\
import ctypes

import trtkit.builder.plan_file as plan_file

watch = plan_file.progress_monitor
plan_file.progress_monitor = lambda backend, _report: watch(backend, lambda _event: ctypes.string_at(0))
"""


@pytest.fixture
def dies_while_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every child of the test die of a null pointer inside TensorRT's build, once that reports progress."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(CRASH)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(Path(trtkit.__file__).parent.parent)])
    )


def test_death_while_an_llm_is_built_names_signal_and_phase(
    workspace: Path, dies_while_building: None, refuses: Callable[..., str]
) -> None:
    save_model(workspace / "model")
    (workspace / "m.yaml").write_text(
        "source: {hf: model}\nllm: {max_batch_size: 1, max_sequence_length: 32, max_prefill_length: 16}\n"
    )
    message = refuses("build", "m.yaml")
    assert message.startswith("TensorRT died with SIGSEGV while building; last log line: [")
    assert "[TRT] [I]" in message, "the second run was not verbose: an LLM's log has errors only"
    assert message.endswith(NARROW_DOWN)


@pytest.mark.slow
def test_death_while_a_hybrid_is_built_names_the_last_node_of_its_onnx_part(
    workspace: Path, own_cache: Path, dies_while_building: None, refuses: Callable[..., str]
) -> None:
    saved(case_of("ViTForImageClassification"), workspace / "model")
    (workspace / "m.yaml").write_text("source: {hf: model}\n")
    message = refuses("build", "m.yaml")
    assert message.startswith("TensorRT died with SIGSEGV while building, the last node parsed was Conv `patch/")
    assert message.endswith(NARROW_DOWN)
