"""A server's addresses, and the state that its HTTP endpoint reports; needs no client library."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trtkit.deployment import process
from trtkit.errors import DeployError

_LISTEN = "0A"  # a socket's state in /proc/net/tcp
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Endpoints:
    """Host and ports of a server."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002

    @property
    def is_loopback(self) -> bool:
        """Whether the server is reachable from this machine only."""
        return process.is_loopback(self.host)

    @property
    def http(self) -> str:
        """URL of the HTTP endpoint, as this machine reaches it."""
        return f"http://{self._reachable}:{self.http_port}"

    @property
    def grpc(self) -> str:
        """URL of the gRPC endpoint, as this machine reaches it."""
        return f"grpc://{self._reachable}:{self.grpc_port}"

    @property
    def metrics(self) -> str:
        """URL of Prometheus' metrics, as this machine reaches it."""
        return f"http://{self._reachable}:{self.metrics_port}/metrics"

    @property
    def _reachable(self) -> str:
        return process.reachable(self.host)

    def check_free(self) -> None:
        """Raise DeployError if a port is taken or used twice, or if the host is not this machine's."""
        chosen = {"--http-port": self.http_port, "--grpc-port": self.grpc_port, "--metrics-port": self.metrics_port}
        for option, port in chosen.items():
            if list(chosen.values()).count(port) > 1:
                raise DeployError(f"port {port} is used twice", option, "give each endpoint its own port")
            process.check_free(self.host, port, option)


@dataclass(frozen=True)
class ModelState:
    """A version of a model on a server. reason: why it is not ready, in the server's words."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def is_ready(self) -> bool:
        return self.state == "READY"


def free_ports(host: str = "127.0.0.1") -> Endpoints:
    """Return endpoints on ports that are free now."""
    return Endpoints(host, *process.free_ports(3, host))


def is_live(endpoints: Endpoints) -> bool:
    """Whether the server answers, which it does once its models have loaded or failed."""
    try:
        with process.open_local(f"{endpoints.http}/v2/health/live", timeout=_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def server_version(endpoints: Endpoints) -> str:
    """Return Triton's version, such as `2.51.0`."""
    return str(_ask(f"{endpoints.http}/v2", None)["version"])


def model_states(endpoints: Endpoints) -> list[ModelState]:
    """Return every version of every model that the server has loaded or tried to load. Raises DeployError."""
    index = _ask(f"{endpoints.http}/v2/repository/index", b"{}")
    return [
        ModelState(entry["name"], entry.get("version", ""), entry["state"], entry.get("reason", ""))
        for entry in index
        if entry.get("state")
    ]


def model_config(endpoints: Endpoints, state: ModelState) -> dict[str, Any]:
    """Return the configuration of a ready model, as completed by the server. Raises DeployError."""
    path = f"{quote(state.name, safe='')}/versions/{quote(state.version, safe='')}"
    config: dict[str, Any] = _ask(f"{endpoints.http}/v2/models/{path}/config", None)
    return config


def listens(pid: int, port: int) -> bool:
    """Whether a process on this machine listens on a TCP port."""
    sockets = {f"socket:[{inode}]" for inode in _listeners(port)}
    try:
        return any(str(entry.readlink()) in sockets for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has ended, or closed one meanwhile
        return False


def _listeners(port: int) -> Iterator[str]:
    """Yield the inodes of sockets that listen on a port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                yield words[9]


def _ask(url: str, body: bytes | None) -> Any:
    try:
        with process.open_local(urllib.request.Request(url, body), timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise DeployError(f"the server does not answer: {error}", url) from None
