"""Fixtures and marks of all tests: a separate cache, a working folder, the command line; tiers and scheduling."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.selection import is_listed
from trtkit.cli.main import main
from trtkit.jobs.runner import inline_jobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Folders whose files share bundles or a server, and so run in one process; other files may run in different ones.
SHARING = ("triton", "dynamo", "vision_language")
# Files, and folders in SHARING, in order of CPU time. Tests that reuse their exports come later.
LONGEST = (
    "tests/integration/dynamo",
    "tests/integration/test_decoder_parity.py",
    "tests/integration/triton",
    "tests/integration/vision_language",
    "tests/integration/engines/test_language_models.py",
    "tests/integration/test_docs_site.py",
    "tests/integration/test_install.py",
    "tests/integration/test_whisper.py",
    "tests/integration/parallel/test_run.py",
    "tests/integration/test_plan.py",
    "tests/integration/test_recurrent_states.py",
    "tests/integration/engines/test_kit.py",
    "tests/integration/test_t5.py",
    "tests/integration/test_detr3d.py",
    "tests/integration/test_untrusted_code.py",
    "tests/unit/planning/test_plan_properties.py",
    "tests/unit/models/test_config_fields.py",
    "tests/unit/cli/test_terminal.py",
)
# Tests outside `make test`, by the beginning of their path; one session of each kind of server stays.
TIERS = {
    "servers": ("tests/integration/triton/", "tests/integration/dynamo/"),
    "docs": ("tests/integration/test_docs_site.py",),
    "install": ("tests/integration/test_install.py",),
}
SESSIONS = ("tests/integration/triton/test_language_models.py", "tests/integration/dynamo/test_openai.py")
# Contents of unit test files that build engines, start processes, run transformers' models or try many random
# examples: `make unit` leaves these out.
HEAVY = re.compile(
    r"\b(subprocess|multiprocessing|Popen|start_trtkit|new_runner|build_bundle|builds|tiny_llm"
    r"|hypothesis|tests\.fuzz|transformers|tests\.decoders)\b"
)
# Examples may take long on a busy machine.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
TRTKIT = [sys.executable, "-c", "from trtkit.cli import main; main()"]


def pytest_configure(config: pytest.Config) -> None:
    """Collect garbage less often: importing torch and collecting tests creates many permanent objects."""
    for tier in (*TIERS, "heavy", "listed"):
        config.addinivalue_line("markers", f"{tier}: given by conftest.py to the tests of a target (CONTRIBUTING.md)")
    gc.set_threshold(20_000, 50, 100)


def pytest_collection_finish() -> None:
    """Stop writing bytecode, in tests and their processes: a test may change a factory's file right after its import.

    Bytecode of modules imported during collection is still kept, unless the environment forbids it.
    """
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_unconfigure() -> None:
    """Unfreeze what `young_garbage` froze, since some libraries report leaks at exit."""
    gc.unfreeze()


class Scheduling(LoadFileScheduling):
    """Runs a file's tests in one process, and those of a folder in `SHARING`, too."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by tier. Run the longest first, so that no process works alone at the end."""
    for item in items:
        if (tier := _tier(item.nodeid, item.path)) is not None:
            item.add_marker(tier)
        if is_listed(item.nodeid):
            item.add_marker("slow")
            item.add_marker("listed")
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(_unit(item.nodeid), len(places)))


def _tier(nodeid: str, file: Path) -> str | None:
    """Return the mark that excludes a test from `make test` or `make unit`; None if there is none."""
    if nodeid.startswith("tests/unit/"):
        return "heavy" if _is_heavy(file) else None
    tiers = (tier for tier, starts in TIERS.items() if nodeid.startswith(starts))
    return None if nodeid.startswith(SESSIONS) else next(tiers, None)


@cache
def _is_heavy(file: Path) -> bool:
    return HEAVY.search(file.read_text(encoding="utf-8")) is not None


def _unit(nodeid: str) -> str:
    """Return the unit that runs in one process: a file, or a folder in `SHARING`."""
    file = PurePosixPath(nodeid.partition("::")[0])
    return str(file.parent if file.parent.name in SHARING and file.parent.parent.name == "integration" else file)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run jobs in this process, which has torch and TensorRT loaded; with the mark `children`, in child processes."""
    with contextlib.nullcontext() if item.get_closest_marker("children") else inline_jobs():
        return (yield)


@dataclass(frozen=True)
class Ran:
    """A finished command: exit code and output."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="module", autouse=True)
def young_garbage() -> None:
    """Limit garbage collection to the file's own objects; a million others, torch's and pytest's, are permanent.

    Models collect garbage whenever they close or sleep, which would take 0.7 s each time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a separate cache for the tests, shared by the processes of one run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTKIT_CACHE_DIR", str(shared / "trtkit-cache"))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test an empty cache of its own, next to `workspace`."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRTKIT_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def trtkit(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command line in this process."""

    def run(*words: object) -> Ran:
        capsys.readouterr()
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ran(code, out, err)

    return run


@pytest.fixture
def refuses(trtkit: Callable[..., Ran], workspace: Path) -> Callable[..., str]:
    """Run a command that must fail with `code`, say `error:` on stderr, and leave the workspace as it was."""

    def run(*words: object, code: int = 1) -> str:
        before = tree(workspace)
        ran = trtkit(*words)
        assert (ran.code, ran.out) == (code, "")
        assert tree(workspace) == before
        _, marker, message = ran.err.partition("error: ")
        assert marker
        return message.rstrip()

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, since tests run in parallel."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start_trtkit() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command line in its own process, which ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = [*TRTKIT, *(str(word) for word in words)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def tree(folder: Path) -> list[str]:
    """Return every path below `folder`, including hidden ones."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
