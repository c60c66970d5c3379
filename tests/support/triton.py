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

# `make triton` installs the server; if it is missing, tests that need it fail and say how to install it.
START_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Served:
    """A running server. states: of its models, after all have loaded or failed."""

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
        """All output of the server and its models."""
        return self.server.log.text


def quiet_ports() -> Endpoints:
    """Return endpoints on free ports outside the ephemeral range, so that no other process is assigned them."""
    return Endpoints("127.0.0.1", *free_ports_below(30_000, 3))


@contextlib.contextmanager
def serving(repository: Path, *flags: str) -> Iterator[Served]:
    """Serve a repository, unchecked, on free ports until the block ends. Tests of a file should share a server.

    flags: additional flags of tritonserver, next to those of `trtkit serve` for the repository's configurations.
    """
    files = find_server()
    all_flags = (*needed_flags(read_repository(repository), files), *flags)
    options = ServeOptions(repository, quiet_ports(), flags=all_flags, exit_timeout_s=2)
    with LocalServer(files, options) as server:
        states = server.wait_ready(START_TIMEOUT_S)
        yield Served(server, {state.name: state for state in states})


# As in `trtkit deploy`: the server's Python finds this one's packages, after a NumPy that fits it.
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
    """Write version 1 of a Python backend model that runs on the CPU; return its folder.

    config: the rest of config.pbtxt, without name, backend and instances. code: of `model.py`, after PREAMBLE.
    """
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    head = f'name: "{name}"\nbackend: "python"\ninstance_group {{ kind: KIND_CPU }}\n'
    (folder / "config.pbtxt").write_text(head + config)
    (folder / "1" / "model.py").write_text(PREAMBLE + code)
    return folder
