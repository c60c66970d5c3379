"""A local tritonserver, started, watched and stopped without leaving any process running."""

from __future__ import annotations

import re
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from trtkit.deployment.process import POLL_S, ServerProcess
from trtkit.deployment.triton.endpoints import Endpoints, ModelState, is_live, listens, model_states
from trtkit.deployment.triton.health import lost_models, stubs
from trtkit.deployment.triton.repository_check import remove_bytecode
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.deployment.triton.server_files import ServerFiles

# Triton 2.51 copies a JSON body onto a thread's stack, and a body larger than half a stack crashes the server.
_STACK_BYTES = 64 * 1024**2
# In addition to the time that the server gives its models to finish.
_KILL_AFTER_S = 5.0


@dataclass(frozen=True)
class ServeOptions:
    """How to serve a repository. load: models to load if control_mode is explicit. flags: further tritonserver flags.

    exit_timeout_s: time that requests and models get to finish when the server stops.
    """

    repository: Path
    endpoints: Endpoints = field(default_factory=Endpoints)
    control_mode: Literal["none", "explicit"] = "none"
    load: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    exit_timeout_s: int = 10


def server_flags(options: ServeOptions) -> list[str]:
    """Return tritonserver's arguments: loopback by default, a failed model fails alone, clients cannot load models."""
    ends = options.endpoints
    return [
        f"--model-repository={options.repository.resolve()}",
        *(f"--{kind}-address={ends.host}" for kind in ("http", "grpc", "metrics")),
        f"--http-port={ends.http_port}",
        f"--grpc-port={ends.grpc_port}",
        f"--metrics-port={ends.metrics_port}",
        "--strict-readiness=false",
        "--exit-on-error=false",
        f"--exit-timeout-secs={options.exit_timeout_s}",
        f"--model-control-mode={options.control_mode}",
        *(f"--load-model={name}" for name in options.load),
        *options.flags,
    ]


class LocalServer:
    """A running tritonserver; leaving the `with` block stops it and its Python processes.

    on_line: called from a thread with each line of its log. log: the last of these lines.
    """

    def __init__(
        self, files: ServerFiles, options: ServeOptions, on_line: Callable[[str], None] = lambda _: None
    ) -> None:
        self.files, self.options, self.log = files, options, ServerLog()
        self._on_line = on_line
        self._process: ServerProcess | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="trtkit-triton-")
        self._memory_prefix = Path(self._scratch.name).name

    def __enter__(self) -> Self:
        try:
            self.options.endpoints.check_free()
            backends = self.files.write_backends(Path(self._scratch.name))
            self._start(backends)
        except BaseException:
            self._scratch.cleanup()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._running.pid

    def wait_ready(self, timeout_s: float | None = None) -> list[ModelState]:
        """Wait until every model has loaded or failed; return them. Raises DeployError if the server exits.

        The answering server must be this one: another process may have taken a port after the check and before the
        start.
        """
        started = time.monotonic()
        while not self._owns_ports() or not is_live(self.options.endpoints):
            if self.exit_code() is not None:
                raise self.death()
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                what = f"the server is not ready after {timeout_s:.0f} s"
                raise DeployError(what, str(self.files.binary), "; ".join(self.log.errors()) or "wait longer")
            time.sleep(POLL_S)
        return model_states(self.options.endpoints)

    def wait(self) -> None:
        """Wait until the server exits, which it does on its own only by a fault.

        Raises DeployError if a Python model's process dies: the server keeps running, reports the model ready and fails
        its requests.
        """
        running, is_suspect = stubs(self.pid), False
        while self.exit_code() is None:
            time.sleep(10 * POLL_S)
            before, running = running, stubs(self.pid)
            is_suspect = is_suspect or bool(before.keys() - running.keys())
            if is_suspect and self._has_answered_for_models():
                is_suspect = False  # it has unloaded the model, as a client asked

    def _has_answered_for_models(self) -> bool:
        """Return whether the server reports its models. Raises DeployError if one of them has lost its process."""
        try:
            lost = lost_models(self.options.endpoints, self.pid)
        except DeployError:
            return False
        if lost and self.exit_code() is None:
            names = ", ".join(f"`{state.name}` version {state.version}" for state in lost)
            what = f"the process of {names} died: the server would report it as ready but fail its requests"
            fix = "restart the server; if memory ran out, use fewer slots or add memory"
            raise DeployError(what, "; ".join(self.log.errors(1)), fix)
        return True

    def _owns_ports(self) -> bool:
        """Whether this server's process listens on every port."""
        ends = self.options.endpoints
        return all(listens(self.pid, port) for port in (ends.http_port, ends.grpc_port, ends.metrics_port))

    def exit_code(self) -> int | None:
        """Return the exit code as in subprocess, None while it runs."""
        return self._running.exit_code()

    def death(self) -> DeployError:
        """Return the error that states how and why the server exited, in its own words."""
        how = self._running.ending()
        reasons = "; ".join(self.log.errors()) or "; ".join(list(self.log.lines)[-3:])
        return DeployError(f"tritonserver exited with {how}: {reasons}", str(self.files.binary))

    def stop(self) -> None:
        """Stop the server; kill it if it exceeds the timeout, and all its child processes."""
        if self._process is None:
            return
        try:
            self._process.stop(self.options.exit_timeout_s + _KILL_AFTER_S)
        finally:
            for left in Path("/dev/shm").glob(f"{self._memory_prefix}*"):
                left.unlink(missing_ok=True)
            remove_bytecode(self.options.repository)
            self._scratch.cleanup()

    @property
    def _running(self) -> ServerProcess:
        if self._process is None:
            raise DeployError("the server was not started")
        return self._process

    def _start(self, backends: Path | None) -> None:
        flags = server_flags(self.options)
        if backends is not None:
            flags.append(f"--backend-directory={backends}")
        flags.append(f"--backend-config=python,shm-region-prefix-name={self._memory_prefix}")
        command = [str(self.files.binary), *flags]
        self._process = ServerProcess(command, self.files.environment(), self._note, _STACK_BYTES)

    def _note(self, line: str) -> None:
        self.log.lines.append(line)
        self._on_line(line)


# `E1121 14:32:11.123456 1234 model_lifecycle.cc:654] "failed to load 'm' version 1: Internal: ..."`
_LINE = re.compile(r'([IWEF])\d{4} \d\d:\d\d:\d\d\S* \d+ \S+\] "?(.*?)"?\s*$')
_KEPT = 4000
# Logged on every machine without a GPU.
_NOISE = (
    "NVML", "DCGM", "pinned", "CUDA memory pool", "CudaDriverHelper", "cudaGetDeviceCount", "no CUDA-capable",
)  # fmt: skip


@dataclass
class ServerLog:
    """The last lines of a server's log."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def errors(self, count: int = 4) -> list[str]:
        """Return the last distinct messages of level error."""
        errors = [message(line) for line in list(self.lines) if level(line) in {"E", "F"} and not is_noise(line)]
        return list(dict.fromkeys(errors))[-count:]


def level(line: str) -> str:
    """Return I, W, E or F as written by Triton; a line printed by a model is I."""
    match = _LINE.match(line)
    return match.group(1) if match else "I"


def message(line: str) -> str:
    """Return the line without level, time, process and source."""
    match = _LINE.match(line)
    return match.group(2) if match else line


def is_noise(line: str) -> bool:
    """Whether the line only says that there is no GPU."""
    return any(word in line for word in _NOISE)
