"""A tritonserver of this machine, started, watched and stopped without leaving anything behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from trtkit.deployment.triton.endpoints import Endpoints, ModelState, is_live, listens, model_states
from trtkit.deployment.triton.health import lost_models, stubs
from trtkit.deployment.triton.server_log import ServerLog
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.deployment.triton.server_files import ServerFiles

_POLL_S, _SET_PARENT_DEATH_SIGNAL = 0.05, 1
_STACK_BYTES = 64 * 1024**2
# Beyond the time that the server gives its models to end.
_KILL_AFTER_S = 5.0


@dataclass(frozen=True)
class ServeOptions:
    """How to serve a repository. load: models to load where control_mode is explicit. flags: more of tritonserver's.

    exit_timeout_s: how long requests and models may take to end when the server stops.
    """

    repository: Path
    endpoints: Endpoints = field(default_factory=Endpoints)
    control_mode: Literal["none", "explicit"] = "none"
    load: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    exit_timeout_s: int = 10


def server_flags(options: ServeOptions) -> list[str]:
    """Return tritonserver's arguments: loopback unless asked, a failed model fails alone, no model from a client."""
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

    on_line: gets each line of its log, from a thread. log: the last of these lines.
    """

    def __init__(
        self, files: ServerFiles, options: ServeOptions, on_line: Callable[[str], None] = lambda _: None
    ) -> None:
        self.files, self.options, self.log = files, options, ServerLog()
        self._on_line = on_line
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
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
        """The server's process."""
        return self._running.pid

    def wait_ready(self, timeout_s: float | None = None) -> list[ModelState]:
        """Wait until every model is loaded or has failed; return them. Raises DeployError where the server ends.

        What answers must be this server: another may have taken a port between the look at it and the start.
        """
        started = time.monotonic()
        while not self._owns_ports() or not is_live(self.options.endpoints):
            if self.exit_code() is not None:
                raise self.death()
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                what = f"the server is not ready after {timeout_s:.0f} s"
                raise DeployError(what, str(self.files.binary), "; ".join(self.log.errors()) or "wait longer")
            time.sleep(_POLL_S)
        return model_states(self.options.endpoints)

    def wait(self) -> None:
        """Wait until the server ends, which it does on its own only by a fault.

        Raises DeployError if a Python model's process ends: the server goes on, calls the model ready and fails its
        requests.
        """
        running, is_suspect = stubs(self.pid), False
        while self.exit_code() is None:
            time.sleep(10 * _POLL_S)
            before, running = running, stubs(self.pid)
            is_suspect = is_suspect or bool(before.keys() - running.keys())
            if is_suspect and self._has_answered_for_models():
                is_suspect = False  # it has unloaded the model, as a client asked

    def _has_answered_for_models(self) -> bool:
        """Return whether the server says what it serves. Raises DeployError if a model there has lost its process."""
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
        """Return how the server ended, as subprocess has it, None while it runs; its processes stay to be stopped."""
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) if self._is_unwaited else None
        if status is None:
            return self._running.returncode
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def death(self) -> DeployError:
        """Return the error that says how the server ended and why, in its own words."""
        code = self.exit_code() or 0
        if self._reader is not None:
            self._reader.join(1.0)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        reasons = "; ".join(self.log.errors()) or "; ".join(list(self.log.lines)[-3:])
        return DeployError(f"tritonserver exited with {how}: {reasons}", str(self.files.binary))

    def stop(self) -> None:
        """End the server; what does not end in time, and every process it started, is killed."""
        if self._process is None or not self._is_unwaited:
            return  # never started, or stopped before: its number may be another's by now
        try:
            if self.exit_code() is None:
                self._process.send_signal(signal.SIGTERM)
                self._await_end(self.options.exit_timeout_s + _KILL_AFTER_S)
        finally:
            self._clean_up(self._process)

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise DeployError("the server was not started")
        return self._process

    @property
    def _is_unwaited(self) -> bool:
        return self._running.returncode is None

    def _start(self, backends: Path | None) -> None:
        flags = server_flags(self.options)
        if backends is not None:
            flags.append(f"--backend-directory={backends}")
        flags.append(f"--backend-config=python,shm-region-prefix-name={self._memory_prefix}")
        self._process = subprocess.Popen(
            [str(self.files.binary), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.files.environment(),
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_first_calls(),  # noqa: PLW1509 (two system calls, looked up before)
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.log.lines.append(line.rstrip("\n"))
            with contextlib.suppress(OSError):  # who reads the log may be gone; the server must not wait for them
                self._on_line(line.rstrip("\n"))

    def _await_end(self, timeout_s: float) -> None:
        started = time.monotonic()
        while self.exit_code() is None and time.monotonic() - started < timeout_s:
            time.sleep(_POLL_S)

    def _clean_up(self, process: subprocess.Popen[str]) -> None:
        """Kill what is left of the server's session before its number is free, and remove what it had open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._reader is not None:
            self._reader.join(1.0)
        for left in Path("/dev/shm").glob(f"{self._memory_prefix}*"):
            left.unlink(missing_ok=True)
        self._scratch.cleanup()


def _first_calls() -> Callable[[], None]:
    """Return what a new process calls first: it is to end when the one that started it is gone, however that went.

    Its threads get larger stacks: Triton 2.51 copies a JSON body there, and one over half a stack ends the server.
    """
    prctl, (soft, hard) = ctypes.CDLL(None).prctl, resource.getrlimit(resource.RLIMIT_STACK)
    is_small = soft != resource.RLIM_INFINITY and soft < _STACK_BYTES
    is_allowed = hard == resource.RLIM_INFINITY or hard >= _STACK_BYTES
    stack = (_STACK_BYTES, hard) if is_small and is_allowed else (soft, hard)

    def call() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        resource.setrlimit(resource.RLIMIT_STACK, stack)

    return call
