"""A cancelled, killed or raced build leaves no partial folder and no child process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tests.conftest import tree
from tests.support import models
from trtkit.builder.jobs import DIGEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran

pytestmark = pytest.mark.children

Start = "Callable[..., subprocess.Popen[str]]"

SLEEPER = """\
    import time
    from pathlib import Path

    def make():
        Path("waiting").touch()
        time.sleep(600)
"""


@pytest.fixture
def sleeper(workspace: Path) -> Path:
    """A config whose factory waits, once it has made the file `waiting`."""
    (workspace / "sleeper.py").write_text(textwrap.dedent(SLEEPER))
    path = workspace / "m.yaml"
    path.write_text("source: {torch: {factory: 'sleeper:make', inputs: {x: {shape: [2, 3]}}}}\n")
    return path


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def workers_in(folder: Path) -> list[int]:
    """Return the ids of the job processes whose current folder is `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"trtkit.jobs.worker" in (process / "cmdline").read_bytes() and (process / "cwd").samefile(folder):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [(signal.SIGINT, 130, "cancelled"), (signal.SIGTERM, 143, "terminated")],
)
def test_ctrl_c_or_terminate_while_preparing_ends_the_child_and_leaves_nothing(
    workspace: Path, sleeper: Path, start_trtkit: Start, sent: signal.Signals, code: int, words: str
) -> None:
    before = tree(workspace)
    build = start_trtkit("build", sleeper, "-o", "deep/out")
    wait_for((workspace / "waiting").exists)
    assert len(workers_in(workspace)) == 1
    assert (workspace / "deep/.out.partial").is_dir()
    build.send_signal(sent)
    out, err = build.communicate(timeout=120)
    (workspace / "waiting").unlink()
    assert (build.returncode, out) == (code, "")
    assert err.endswith(f"{words}: nothing was written\n")
    assert "Traceback" not in err
    assert workers_in(workspace) == []
    assert tree(workspace) == before


@pytest.mark.parametrize(
    ("sent", "code", "words"),
    [(signal.SIGINT, 130, "cancelled"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_run_that_ends_early_says_that_its_pictures_stay(
    workspace: Path, trtkit: Callable[..., Ran], start_trtkit: Start, sent: signal.Signals, code: int, words: str
) -> None:
    models.save(models.classifier(batch=1), workspace / "m.onnx")
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\npreprocess: {}\ntask: {kind: classification}\n")
    assert trtkit("build", "m.yaml").code == 0
    pictures = workspace / "pictures"
    pictures.mkdir()
    for number in range(500):
        Image.new("RGB", (16, 16)).save(pictures / f"{number}.png")
    run = start_trtkit("run", "bundles/m", pictures, "--output", "drawn", "--predictions", "all.jsonl", "-q")
    assert run.stdout is not None
    assert run.stdout.readline()
    run.send_signal(sent)
    _, err = run.communicate(timeout=120)
    assert (run.returncode, err) == (code, f"\n{words}: drawn keeps the answers so far\n")
    assert not [path for path in tree(workspace) if "/." in path or path.startswith((".", "all.jsonl"))]


def test_ctrl_c_while_tensorrt_builds_ends_the_child_and_leaves_nothing(workspace: Path, start_trtkit: Start) -> None:
    models.save(models.chain(2000), workspace / "m.onnx")  # seconds in the builder
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\nfold_constants: false\n")
    before = tree(workspace)
    build = start_trtkit("build", "m.yaml", "--no-cache")
    assert build.stderr is not None
    phases = iter(build.stderr.readline, "")
    assert any("] build" in line for line in phases)
    build.send_signal(signal.SIGINT)
    rest, _ = build.stderr.read(), build.wait(timeout=120)
    assert build.returncode == 130
    assert rest.endswith("cancelled: nothing was written\n")
    assert workers_in(workspace) == []
    assert tree(workspace) == before


def test_second_build_into_the_same_folder_is_refused_while_the_first_goes_on(
    workspace: Path, sleeper: Path, start_trtkit: Start, trtkit: Callable[..., Ran]
) -> None:
    first = start_trtkit("build", sleeper, "-o", "out", "--set", "name=first")
    wait_for((workspace / "waiting").exists)
    second = trtkit("build", sleeper, "-o", "out", "--set", "name=second")
    assert second.code == 1
    assert second.err.endswith(
        "error: out: another build is writing this folder\nfix: wait for it, or choose another `--output`\n"
    )
    assert first.poll() is None
    assert (workspace / ".out.partial").is_dir()


def test_killed_build_leaves_no_process_and_the_next_one_cleans_up(
    workspace: Path, sleeper: Path, start_trtkit: Start, trtkit: Callable[..., Ran]
) -> None:
    build = start_trtkit("build", sleeper, "-o", "out")
    wait_for((workspace / "waiting").exists)
    build.kill()
    build.wait()
    wait_for(lambda: workers_in(workspace) == [])
    assert (workspace / ".out.partial").is_dir()
    assert not (workspace / "out").exists()
    (workspace / ".out.partial/stale").touch()
    models.save(models.matmul(), workspace / "m.onnx")
    ran = trtkit("build", sleeper, "--set", "source.onnx=m.onnx", "-o", "out", "--no-cache", "--json")
    assert (ran.code, ran.json()["origin"]) == (0, "built")
    assert [path for path in tree(workspace) if path.startswith(".") or "stale" in path] == []


def test_failed_build_keeps_the_bundle_that_stood_there(
    workspace: Path, trtkit: Callable[..., Ran], refuses: Callable[..., str]
) -> None:
    (workspace / "m.yaml").write_text("source: {onnx: m.onnx}\n")
    models.save(models.matmul(), workspace / "m.onnx")
    assert trtkit("build", "m.yaml", "-o", "out").code == 0
    manifest = (workspace / "out/manifest.json").read_bytes()
    models.save(models.unsupported(), workspace / "m.onnx")
    refuses("build", "m.yaml", "-o", "out")
    assert (workspace / "out/manifest.json").read_bytes() == manifest
    assert trtkit("inspect", "out").code == 0


@pytest.mark.skipif(shutil.which("timeout") is None, reason="needs `timeout`")
def test_child_exits_when_nobody_asks_it_anything(workspace: Path) -> None:
    read_end, write_end = os.pipe()
    command = ["timeout", "120", os.sys.executable, "-m", "trtkit.jobs.worker"]
    command += [DIGEST.function, DIGEST.request_name, str(write_end), "log"]
    arguments = b'{"name": "m", "source": {"onnx": "missing.onnx"}}\n'
    done = subprocess.run(command, input=arguments, pass_fds=[write_end], capture_output=True, check=False)
    os.close(write_end)
    with os.fdopen(read_end) as events:
        answer = events.read().splitlines()
    assert done.stderr == b""
    assert done.returncode in {0, 1}  # it may see the end of its input before it has answered
    assert answer == [] or '"what": "no such file"' in answer[-1]
