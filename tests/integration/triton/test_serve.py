"""`trtkit serve` with a real tritonserver: its messages, how it stops, what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.triton import python_model, quiet_ports, serving
from tests.support.triton_models import DOUBLES, TENSORS
from trtkit.cli.main import main
from trtkit.deployment.triton.endpoints import Endpoints
from trtkit.deployment.triton.local_server import LocalServer, ServeOptions
from trtkit.deployment.triton.server_files import find_server
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Callable

    Start = Callable[..., subprocess.Popen[str]]


FAILS = """\
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the weights are gone")
"""
REFUSES = """\
from trtkit.deployment.triton.backend.requests import refusal
from trtkit.errors import BackendError, GenerationError, RequestError, SourceError

ERRORS = [
    RequestError("`0` is not a length", "max_tokens"),
    SourceError("not an image", "image"),
    GenerationError("8 requests are already waiting"),
    BackendError("TensorRT could not run the engine"),
    ValueError("nobody expected this"),
]


class TritonPythonModel:
    def execute(self, requests):
        return [refusal(ERRORS[int(request.inputs()[0].as_numpy()[0])]) for request in requests]
"""


def ready_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what `--json` prints once models are loaded; the error where it prints nothing."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    found: dict[str, Any] = json.loads(line)
    return found


def on_free_ports() -> list[object]:
    ends = quiet_ports()
    ports = ["--http-port", ends.http_port, "--grpc-port", ends.grpc_port, "--metrics-port", ends.metrics_port]
    return [*ports, "--json"]


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.is_file() and "State:\tZ" not in status.read_text()


def children(pid: int) -> list[int]:
    """Return the processes below `pid`: the stubs in which Python models run."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def scratch_of(pid: int) -> str:
    """Return the name of the folder that the server has its backends from."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    flag = next(word for word in words if word.startswith("--backend-directory="))
    return Path(flag.partition("=")[2]).name


def wait_until(is_done: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not is_done() and time.monotonic() < end:
        time.sleep(0.05)
    return is_done()


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def double(url: str) -> list[float]:
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}]}
    request = urllib.request.Request(f"{url}/v2/models/doubles/infer", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        found: list[float] = json.load(answer)["outputs"][0]["data"]
    return found


def test_it_serves_says_what_failed_and_stops_without_a_trace(repository: Path, start_trtkit: Start) -> None:
    python_model(repository, "broken", FAILS, TENSORS)
    process = start_trtkit("serve", repository, "--allow-undeployed", *on_free_ports())
    found = ready_line(process)
    pid, models = found["server"]["pid"], {model["name"]: model for model in found["models"]}
    assert models["doubles"]["state"] == "READY"
    assert models["broken"]["state"] == "UNAVAILABLE"
    assert "ValueError: the weights are gone" in models["broken"]["reason"]
    assert double(found["http"]) == [3.0, -4.0]
    with urllib.request.urlopen(found["metrics"], timeout=120) as answer:
        assert b"nv_inference_request_success" in answer.read()
    stubs, scratch = children(pid), scratch_of(pid)
    assert stubs
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "")
    assert "asked for 1" in err
    assert "the weights are gone" in err
    assert "note: Triton 2.51.0 lacks known fixes" in err
    assert err.endswith("stopped\n")
    assert not any(is_running(each) for each in (pid, *stubs))
    assert not Path(tempfile.gettempdir(), scratch).exists()
    assert not list(Path("/dev/shm").glob(f"{scratch}*"))


def test_a_repository_is_served_again_after_it_was_stopped_or_killed(
    vision_folder: Path, tiny_folder: Path, tmp_path: Path, start_trtkit: Start
) -> None:
    repository = tmp_path / "models"
    for words in (
        [vision_folder / "tiny"],  # an ensemble: pictures, then tensors
        [vision_folder / "chained"],
        [tiny_folder / "bundle", "--name", "chat"],
    ):
        main(["deploy", *map(str, words), "--repository", str(repository), "-q"])
    deployed = files_below(repository)
    one = ["--model-control-mode", "explicit", "--load", "chat"]  # after a stop that leaves every file as it was
    for ending, words in ((signal.SIGKILL, []), (signal.SIGTERM, []), (signal.SIGTERM, one)):
        process = start_trtkit("serve", repository, *words, *on_free_ports())
        models = ready_line(process)["models"]
        assert {model["state"] for model in models} == {"READY"}
        process.send_signal(ending)
        process.communicate(timeout=120)
        assert ending == signal.SIGKILL or files_below(repository) == deployed
    main(["deploy", str(tiny_folder / "bundle"), "--name", "chat", "--repository", str(repository), "-q"])


def test_ctrl_c_stops_it_and_quiet_shows_no_information(repository: Path, start_trtkit: Start) -> None:
    python_model(repository, "other", DOUBLES, TENSORS)
    words = ["--model-control-mode", "explicit", "--load", "doubles", "--quiet"]
    process = start_trtkit("serve", repository, "--allow-undeployed", *words, *on_free_ports())
    found = ready_line(process)
    assert [model["name"] for model in found["models"]] == ["doubles"]
    double(found["http"])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert err == ""


def test_a_server_that_is_killed_is_reported(repository: Path, start_trtkit: Start) -> None:
    process = start_trtkit("serve", repository, "--allow-undeployed", *on_free_ports())
    pid = ready_line(process)["server"]["pid"]
    stubs = children(pid)
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "error: " in err
    assert "tritonserver exited with signal SIGKILL" in err
    assert wait_until(lambda: not any(is_running(each) for each in stubs))


def test_when_a_models_process_is_killed_health_tells_and_serving_ends(repository: Path, start_trtkit: Start) -> None:
    process = start_trtkit("serve", repository, "--allow-undeployed", *on_free_ports())
    found = ready_line(process)
    pid, port = found["server"]["pid"], found["http"].rpartition(":")[2]
    probe = [sys.executable, "-m", "trtkit.deployment.triton.health", port]
    assert subprocess.run(probe, capture_output=True, text=True, check=True).stdout == ""
    (stub,) = children(pid)
    process.send_signal(signal.SIGSTOP)  # so that the probe looks before it ends
    os.kill(stub, signal.SIGKILL)
    assert wait_until(lambda: not is_running(stub))
    ran = subprocess.run(probe, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "no process: doubles version 1\n")
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the process of `doubles` version 1 died: the server would report it as ready but fail its requests" in err
    assert not is_running(pid)


def test_a_server_whose_port_was_taken_meanwhile_reports_no_models_of_the_other(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoints, "check_free", lambda _: None)  # the other starts just after the look
    with serving(repository) as first:
        options = ServeOptions(repository, first.server.options.endpoints, exit_timeout_s=2)
        with LocalServer(find_server(), options) as second, pytest.raises(DeployError) as error:
            second.wait_ready(60)
        assert double(f"http://{first.http}") == [3.0, -4.0]
    assert error.value.what.startswith(
        "tritonserver exited with exit code 1: failed to start GRPC service: Unavailable"
    )


def test_when_trtkit_is_killed_the_server_ends_too(
    repository: Path, start_trtkit: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its own folder stays: nobody is left to remove it
    process = start_trtkit("serve", repository, "--allow-undeployed", *on_free_ports())
    pid = ready_line(process)["server"]["pid"]
    stubs = children(pid)
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(is_running(each) for each in (pid, *stubs)))


def test_without_any_model_that_loads_it_fails(tmp_path: Path, start_trtkit: Start) -> None:
    python_model(tmp_path / "models", "broken", FAILS, TENSORS)
    process = start_trtkit(
        "serve",
        tmp_path / "models",
        "--allow-undeployed",
        "--http-port",
        0,
        "--grpc-port",
        0,
        "--metrics-port",
        0,
        "-q",
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    words = " ".join(out.split())
    assert words.startswith("broken version 1 failed: Internal: ValueError: the weights are gone")
    assert "error: " in err
    assert "no model could be loaded" in err


def test_an_engine_for_tensorrt_lacks_nothing_but_the_backend(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "native"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.plan").write_bytes(b"a plan")
    (folder / "config.pbtxt").write_text(f'backend: "tensorrt"\nmax_batch_size: 8\n{TENSORS}dynamic_batching {{}}\n')
    with serving(tmp_path / "models") as served:
        state = served.states["native"]
    assert not state.is_ready
    assert state.reason.startswith("Invalid argument: unable to find backend library for backend 'tensorrt'")


def test_errors_have_the_status_of_whose_fault_they_are(tmp_path: Path) -> None:
    python_model(tmp_path / "models", "refuses", REFUSES, TENSORS)
    statuses = []
    with serving(tmp_path / "models") as served:
        for number in range(5):
            body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [number, 0]}]}
            url = f"http://{served.http}/v2/models/refuses/infer"
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=120)
            statuses.append((error.value.code, json.load(error.value)["error"]))
    assert statuses == [
        (400, "max_tokens: `0` is not a length"),
        (400, "image: not an image"),
        (503, "8 requests are already waiting"),
        (500, "the model failed: TensorRT could not run the engine"),
        (500, "the model failed: ValueError: nobody expected this"),
    ]


def test_a_large_json_body_does_not_end_the_server(repository: Path) -> None:
    with serving(repository) as served:
        for mebibytes in (5, 24):
            url = f"http://{served.http}/v2/models/doubles/generate"
            body = json.dumps({"x": [1.0, 2.0], "note": "a" * (mebibytes * 2**20)}).encode()
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=120) as answer:
                assert json.load(answer)["y"] == [2.0, 4.0]
        assert served.server.exit_code() is None
