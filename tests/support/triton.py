"""A real tritonserver for tests, and small models of Triton's Python backend for it to serve."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.deployment.process import free_ports_below
from trtkit.deployment.triton.endpoints import Endpoints
from trtkit.deployment.triton.local_server import LocalServer, ServeOptions
from trtkit.deployment.triton.repository_check import needed_flags, read_repository
from trtkit.deployment.triton.server_files import find_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trtkit.deployment.triton.endpoints import ModelState

# What `make triton` installs; a test that needs it fails with how to get it where it is missing.
START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Served:
    """A running server. states: of its models, once all were loaded or had failed."""

    server: LocalServer
    states: dict[str, ModelState]

    @property
    def http(self) -> str:
        """`host:port` of the HTTP endpoint, as tritonclient takes it."""
        return self.server.options.endpoints.http.removeprefix("http://")

    @property
    def grpc(self) -> str:
        """`host:port` of the gRPC endpoint, as tritonclient takes it."""
        return self.server.options.endpoints.grpc.removeprefix("grpc://")

    @property
    def metrics(self) -> str:
        """URL of Prometheus' metrics."""
        return self.server.options.endpoints.metrics

    @property
    def log(self) -> str:
        """All that the server and its models have printed."""
        return self.server.log.text


def quiet_ports() -> Endpoints:
    """Return endpoints on free ports that no system gives to whoever asks for any."""
    return Endpoints("127.0.0.1", *free_ports_below(30_000, 3))


@contextlib.contextmanager
def serving(repository: Path, *flags: str) -> Iterator[Served]:
    """Serve a repository as it is, unchecked, on free ports; the server ends with the block. Share one in a file.

    flags: of tritonserver, beside those that `trtkit serve` gives for the repository's configurations.
    """
    files = find_server()
    all_flags = (*needed_flags(read_repository(repository), files), *flags)
    options = ServeOptions(repository, quiet_ports(), flags=all_flags, exit_timeout_s=2)
    with LocalServer(files, options) as server:
        states = server.wait_ready(START_TIMEOUT_S)
        yield Served(server, {state.name: state for state in states})


# What `trtkit deploy` writes too: the server's Python finds the packages of this one, behind a NumPy that fits it.
PREAMBLE = """\
import os
import site
import sys

for folder in filter(None, os.environ.get("TRTKIT_SITE", "").split(os.pathsep)):
    site.addsitedir(folder)
if os.environ.get("TRTKIT_OVERLAY"):
    sys.path.insert(0, os.environ["TRTKIT_OVERLAY"])
"""


def python_model(repository: Path, name: str, code: str, config: str) -> Path:
    """Write a model of the Python backend that runs on the CPU, version 1; return its folder.

    config: what stands in config.pbtxt beside name, backend and instances. code: of `model.py`, behind PREAMBLE.
    """
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    head = f'name: "{name}"\nbackend: "python"\ninstance_group {{ kind: KIND_CPU }}\n'
    (folder / "config.pbtxt").write_text(head + config)
    (folder / "1" / "model.py").write_text(PREAMBLE + code)
    return folder
