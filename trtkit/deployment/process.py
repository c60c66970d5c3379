"""Server processes, started, read and stopped without leaving any running; and the ports of this machine."""

import contextlib
import ipaddress
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from trtkit.errors import DeployError

POLL_S = 0.05
_FIRST = """
import ctypes, os, resource, signal, sys
parent, stack, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != int(parent):
    sys.exit("the process that started this one is gone")
soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
infinite, wanted = resource.RLIM_INFINITY, int(stack)
if soft != infinite and soft < wanted and (hard == infinite or hard >= wanted):
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
try:
    os.execv(command[0], command)
except OSError as error:
    sys.exit(f"{command[0]}: {error.strerror}")
"""
"""Code that a process runs before it becomes its command, so that it ends with its parent.

It is a program rather than a function between fork and exec, since a process that holds more memory than is free cannot
be forked.
"""


class ServerProcess:
    """A command in its own session, which ends with the process that started it, however that exits.

    on_line: called from a thread with each line of its output. stack_bytes: minimum stack size of its threads, where
    permitted.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        stack_bytes: int = 0,
    ) -> None:
        self._on_line = on_line
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _FIRST, str(os.getpid()), str(stack_bytes), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            errors="replace",
            start_new_session=True,
            umask=0o077,  # prompts and answers pass through its shared memory
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code as in subprocess, None while it runs; its child processes remain until `stop`."""
        if self._process.returncode is not None:
            return self._process.returncode
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status

    def ending(self) -> str:
        """Describe how it ended, once its last line has been read."""
        self._reader.join(1.0)
        code = self.exit_code() or 0
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def ask_to_end(self) -> None:
        """Send SIGTERM if it is still running."""
        if self.exit_code() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float) -> None:
        """Stop it; kill it if it exceeds the timeout, and its child processes in any case, before its pid is freed."""
        if self._process.returncode is not None:
            return  # stopped before: its number may be another's by now
        try:
            self.ask_to_end()
            started = time.monotonic()
            while self.exit_code() is None and time.monotonic() - started < timeout_s:
                time.sleep(POLL_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join(1.0)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(OSError):  # who reads the log may be gone; the server must not wait for them
                self._on_line(line.rstrip("\n"))


open_local = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
"""`urlopen` for servers on this machine; ignores proxies set in the environment."""


def is_loopback(host: str) -> bool:
    """Whether a host is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reachable(host: str) -> str:
    """Return a host for a URL, as this machine reaches it."""
    host = "127.0.0.1" if host == "0.0.0.0" else host
    return f"[{host}]" if ":" in host else host


def check_free(host: str, port: int, option: str) -> None:
    """Raise DeployError if the port cannot be bound: it is taken, or the host is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            what = f"cannot listen on port {port} of {host}: {(error.strerror or str(error)).lower()}"
            raise DeployError(what, option, "choose another port, or stop the process that uses it") from None


def is_free(host: str, port: int) -> bool:
    """Whether a server could bind a port now."""
    try:
        check_free(host, port, "")
    except DeployError:
        return False
    return True


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind((host, 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def free_ports_below(limit: int, count: int, host: str = "127.0.0.1") -> list[int]:
    """Return distinct ports from 10,000 to `limit` that are free now.

    The system hands out higher ones as ephemeral ports: a limit below them keeps these free until a server starts.
    """
    while True:
        with contextlib.ExitStack() as probes:
            ports = random.SystemRandom().sample(range(10_000, limit), count)
            with contextlib.suppress(OSError):
                for port in ports:
                    probes.enter_context(socket.socket()).bind((host, port))
                return ports
