"""`trtkit serve` refuses what cannot be served before anything starts."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from tests.support.triton import python_model
from tests.support.triton_models import DOUBLES, TENSORS
from trtkit.deployment.triton.endpoints import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from tests.conftest import Ran

    Start = Callable[..., subprocess.Popen[str]]


def test_a_taken_port_is_told_before_anything_starts(repository: Path, refuses: Callable[..., str]) -> None:
    ends = free_ports()
    handler = [sys.executable, "-m", "http.server", str(ends.http_port), "--bind", "127.0.0.1"]
    with subprocess.Popen(handler, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        try:
            wait_until_listening(ends.http_port)
            message = refuses(
                "serve",
                repository,
                "--allow-undeployed",
                "--http-port",
                ends.http_port,
                "--grpc-port",
                0,
                "--metrics-port",
                0,
            )
        finally:
            other.kill()
    assert message == (
        f"--http-port: cannot listen on port {ends.http_port} of 127.0.0.1: address already in use\n"
        "fix: choose another port, or stop the process that uses it"
    )


def wait_until_listening(port: int, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_repository_with_faults_is_not_served(repository: Path, refuses: Callable[..., str]) -> None:
    (repository / "doubles" / "1" / "weights").symlink_to("/etc/passwd")
    python_model(repository, "cloud", DOUBLES, TENSORS)
    config = repository / "cloud" / "config.pbtxt"
    config.write_text(config.read_text().replace('"python"', '"onnxruntime"'))
    assert refuses("serve", repository, "--allow-undeployed") == (
        f"{repository} cannot be served\n"
        f"  {repository}/doubles/1/weights: is a symbolic link\n"
        "    fix: replace it with the file or folder itself\n"
        f"  {config}: the server has no backend `onnxruntime`; it has ensemble, python\n"
        "    fix: serve the repository from NVIDIA's container"
    )


def test_code_that_was_not_deployed_is_not_served(repository: Path, refuses: Callable[..., str]) -> None:
    assert refuses("serve", repository) == (
        f"{repository} cannot be served\n"
        f"  {repository}/doubles/1: the version has no `deployment.json`, "
        "so its code cannot be checked\n"
        "    fix: deploy the model again; `--allow-undeployed` serves models that trtkit did not write"
    )


def test_without_a_server_the_containers_line_is_shown(
    repository: Path, refuses: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    message = refuses("serve", repository)
    assert message.startswith("no tritonserver on this machine\nfix: `pip install --no-deps --target ")
    assert "docker run --rm" in message
    assert f"-v {repository}:/models:ro" in message


def test_loading_code_from_clients_is_for_this_machine_alone(repository: Path, refuses: Callable[..., str]) -> None:
    message = refuses("serve", repository, "--model-control-mode", "explicit", "--host", "0.0.0.0")
    assert message.startswith(
        "--host 0.0.0.0: with `--model-control-mode explicit`, anyone who can reach the server can load"
    )


def test_wrong_usage(repository: Path, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("serve", repository, "--load", "doubles")
    assert (ran.code, ran.out) == (2, "")
    assert "--load needs --model-control-mode explicit" in ran.err
    assert trtkit("serve", repository, "--http-port", 70000).code == 2


def test_the_probe_fails_where_no_server_answers() -> None:
    probe = [sys.executable, "-m", "trtkit.deployment.triton.health", str(free_ports().http_port)]
    ran = subprocess.run(probe, capture_output=True, text=True, check=False)
    assert (ran.returncode, "the server does not answer" in ran.stderr) == (1, True)
