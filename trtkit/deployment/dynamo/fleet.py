"""Dynamo's frontend and workers on this machine: started, watched and stopped together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import zmq

from trtkit.deployment.dynamo.gate import Gate
from trtkit.deployment.dynamo.options import ADMIN_TOKEN, ASLEEP, BLOCK_SIZE, MODULE, SILENT
from trtkit.deployment.process import (
    POLL_S,
    ServerProcess,
    check_free,
    free_ports_below,
    is_free,
    open_local,
    reachable,
)
from trtkit.errors import DeployError
from trtkit.serving_options import API_KEY
from trtkit.threads import shares_of_machine, visible_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtkit.deployment.dynamo.model_folder import ServableBundle
    from trtkit.deployment.dynamo.options import DynamoOptions


_Role = Literal["agg", "prefill", "decode"]
_PREFILL: _Role = "prefill"
_LAST_LINES = 20
_PYTHON = (sys.executable, "-P", "-m")  # without -P, modules of the current folder would come first
# Warnings, except for a worker's answers to health checks and the routing of pictures, which is not used.
_LOG = "warn,tower_http=off,mm_routing=off,dynamo_llm::http::service::metrics=off"
# Lines that would let clients fill the log: the frontend has one for each request, whatever its filter says, and calls
# those that it refuses errors.
_OF_REQUESTS = re.compile(
    r" INFO http-request[^ ]* request_span: "
    r"|ERROR http-request: .*( http response sent status=4\d\d | Backend error detected: \(4\d\d,)"
)
_SYSTEM_PORTS = 2**15  # Dynamo 1.6.1 reads a worker's port for health as 16 bits with a sign
# For its router, the frontend fetches the beginning of each image that a request names by its address; the worker then
# refuses the address. It asks this machine's workers for their models' files, and nobody else: no port is 0.
_NOWHERE = "http://127.0.0.1:0"
_FRONTEND = {
    **dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"), _NOWHERE),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1"),
    "DYN_MM_ALLOW_INTERNAL": "0",
    # Operators' routes would be open to every client: one of them limits how busy workers may be, for all clients.
    "DYN_DISABLE_FRONTEND_ADMIN_API": "1",
}
# A worker that fails this often within this many seconds is not restarted.
MOST_FAILURES, _WITHIN_S = 3, 60.0
# How often workers are checked.
_LOOK_S = 2.0
# Time limits for a worker's own port to answer and for a bundle to open.
_TIMEOUT_S, _OPEN_S = 5, 600
_METRIC = re.compile(r"^(trtkit_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class LocalFleet:
    """A frontend and its workers; leaving the `with` block stops them.

    models: with distinct names, each with `replicas` workers. admin_token: secret that requests to a worker's own port
    must carry to change it. on_line: called from threads with each log line and the name of its process.
    """

    def __init__(
        self,
        models: Sequence[ServableBundle],
        options: DynamoOptions,
        on_line: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        _check(models, options)
        self.models, self.options = tuple(models), options
        self.admin_token = os.environ.get(ADMIN_TOKEN) or secrets.token_urlsafe(24)
        self._on_line = on_line
        self._scratch = tempfile.TemporaryDirectory(prefix="trtkit-dynamo-")
        self._last: dict[str, deque[str]] = {}
        self._broker: Broker | None = None
        self._frontend: ServerProcess | None = None
        self._gate: Gate | None = None
        # Where Dynamo's frontend listens; the gate has the public address if clients need a key.
        self._frontend_address = (options.host, options.port)
        if options.api_key is not None:
            self._frontend_address = ("127.0.0.1", free_ports_below(_SYSTEM_PORTS, 1)[0])
        self.workers: list[Member] = []
        self._lock, self._is_stopped = threading.Lock(), threading.Event()

    def __enter__(self) -> Self:
        try:
            check_free(self.options.host, self.options.port, "--http-port")
            self._broker = Broker() if self._routes_by_cache else None
            for assignment in _assignments(self.models, self.options):
                self.workers.append(self._start_worker(assignment))
            self._frontend = self._start("frontend", self._frontend_command(), _FRONTEND)
            if self.options.api_key is not None:
                backend_port, limit = self._frontend_address[1], self._body_mib << 20
                self._gate = Gate(self.options.host, self.options.port, backend_port, self.options.api_key, limit)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Wait until every worker is up and a prompt has been answered. Raises DeployError if a process exits."""
        waiting = {member.number for member in self.workers}
        while waiting:
            self._raise_dead()
            waiting -= {member.number for member in self.workers if member.is_healthy}
            time.sleep(10 * POLL_S)
        for model in self.models:
            body = {"model": model.name, "prompt": [0], "max_tokens": 1, "temperature": 0}
            while not self._answers(body):
                self._raise_dead()
                time.sleep(POLL_S)

    def watch(self) -> None:
        """Keep the workers running until the fleet is stopped.

        A worker that exits or hangs is restarted; its requests continue on other workers. Raises DeployError if the
        frontend exits or a worker keeps failing.
        """
        while self._frontend is not None and self._frontend.exit_code() is None:
            for index, member in enumerate(self.workers):
                if member.process.exit_code() is not None or member.is_hung(self.options.hang_timeout_s):
                    with self._lock:
                        if self._is_stopped.is_set():
                            return
                        self.workers[index] = self._restart(member)
            if self._is_stopped.wait(_LOOK_S):
                return
        self._raise_dead()

    def stop(self) -> None:
        """Stop the frontend, so that no more requests arrive, then the workers."""
        with self._lock:
            self._is_stopped.set()
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        processes = [process for process in (self._frontend, *(worker.process for worker in self.workers)) if process]
        for process in processes:
            process.ask_to_end()
        for process in processes:
            process.stop(self.options.exit_timeout_s)
        if self._broker is not None:
            self._broker.close()
        self._scratch.cleanup()

    @property
    def frontend_pid(self) -> int | None:
        return None if self._frontend is None else self._frontend.pid

    @property
    def _routes_by_cache(self) -> bool:
        return self.options.router == "kv" and self.options.replicas > 1

    def _restart(self, member: Member) -> Member:
        """Restart a failed worker. Raises DeployError if it fails too often."""
        member.failures.append(time.monotonic())
        name = _name(member.number)
        if len(member.failures) == MOST_FAILURES and member.failures[-1] - member.failures[0] < _WITHIN_S:
            raise DeployError(f"{name} failed {MOST_FAILURES} times within a minute: {self._last_words(name)}")
        was_running = member.process.exit_code() is None
        member.process.stop(0)
        how = (
            f"hung for {self.options.hang_timeout_s} s (--hang-timeout)"
            if was_running
            else f"ended with {member.process.ending()}"
        )
        started = self._start_worker(member.assignment, member.health_port)
        new = f"as process {started.process.pid}, port {started.health_port}"
        self._on_line("serve", f"{name} {how}; it is started again {new}")
        started.failures = member.failures
        return started

    def _start_worker(self, assignment: _Assignment, old_port: int | None = None) -> Member:
        """Start a worker. old_port: of the worker that it replaces, reused if it is free."""
        options, model, number = self.options, assignment.model, assignment.number
        port = old_port if old_port and is_free("127.0.0.1", old_port) else free_ports_below(_SYSTEM_PORTS, 1)[0]
        is_apart = assignment.role == _PREFILL and options.prefill_bundle is not None
        bundle = options.prefill_bundle if is_apart else model.path
        command = [*_PYTHON, MODULE, str(bundle), "--name", model.name, "--endpoint-types", model.endpoint_types]
        if len(self.models) > 1:  # the frontend sends a model's requests to all workers of a namespace
            command += ["--namespace", f"model-{self.models.index(model)}"]
        serving = replace(options.serving, lora=_adapters(model, options))
        if is_apart:  # its own build says what fits
            serving = replace(serving, slots=None, cache_gib=None, weight_budget_gib=None)
        if serving.cache_dir is not None:
            serving = replace(serving, cache_dir=Path(serving.cache_dir) / _name(number))
        command += ["--options", serving.to_json()]
        for flag, value in (
            ("--tool-call-parser", model.tool_call_parser),
            ("--reasoning-parser", model.reasoning_parser),
        ):
            command += [] if value is None else [flag, value]
        command += [] if self._routes_by_cache else ["--no-kv-routing"]
        command += ["--role", assignment.role]
        environment = {"DYN_SYSTEM_PORT": str(port), ADMIN_TOKEN: self.admin_token, **assignment.share}
        return Member(assignment, self._start(_name(number), command, environment), port)

    def _frontend_command(self) -> list[str]:
        options = self.options
        router = options.router if options.replicas > 1 else "round-robin"
        host, port = self._frontend_address
        command = [*_PYTHON, "dynamo.frontend", "--http-host", host]
        command += ["--http-port", str(port), "--discovery-backend", "file", "--request-plane", "tcp"]
        command += ["--event-plane", "zmq", "--router-mode", router, "--migration-limit", str(options.migrations)]
        return [*command, "--kv-cache-block-size", str(BLOCK_SIZE)]

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> ServerProcess:
        last = self._last.setdefault(name, deque(maxlen=_LAST_LINES))

        def note(line: str) -> None:
            if _OF_REQUESTS.search(line):
                return
            last.append(line)
            if not self._is_stopped.is_set():  # processes that end together miss each other
                self._on_line(name, line)

        inherited = {name: value for name, value in os.environ.items() if name != API_KEY}
        return ServerProcess(command, {**inherited, **self._environment(), **environment}, note)

    @property
    def _body_mib(self) -> int:
        return self.options.body_mib or (64 if any(model.takes_images for model in self.models) else 4)

    def _environment(self) -> dict[str, str]:
        """Return the environment of all processes: how they find each other, everything on the loopback address."""
        return {
            "DYN_FILE_KV": str(Path(self._scratch.name) / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "UCX_NET_DEVICES": "lo",  # by which prefill workers lend caches
            "DYN_HTTP_BODY_LIMIT_MB": str(self._body_mib),
            "DYN_HEALTH_CHECK_ENABLED": "true",
            "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
            "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
            "DYN_LOG": os.environ.get("DYN_LOG", _LOG),
            "HF_HUB_OFFLINE": "1",
            **({} if self._broker is None else self._broker.environment),
        }

    def _answers(self, body: dict[str, object]) -> bool:
        """Whether the model answers. Raises DeployError if it refuses."""
        data = json.dumps(body).encode()
        host, port = self._frontend_address
        url = f"http://{reachable(host)}:{port}/v1/completions"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        try:
            with open_local(request, timeout=60):
                return True
        except urllib.error.HTTPError as error:
            if error.code in {404, 503}:  # the model is not known yet
                return False
            raise DeployError(f"the model refuses a prompt: {error.read().decode()}") from None
        except OSError:
            return False

    def _raise_dead(self) -> None:
        """Raise DeployError if a process has exited."""
        everyone = {_name(member.number): member.process for member in self.workers}
        for name, process in {"frontend": self._frontend, **everyone}.items():
            if process is not None and process.exit_code() is not None:
                raise DeployError(f"the {name} ended with {process.ending()}: {self._last_words(name)}")

    def _last_words(self, name: str) -> str:
        return "\n".join(list(self._last[name])[-6:])


def _name(number: int) -> str:
    return f"worker {number}"


def _check(models: Sequence[ServableBundle], options: DynamoOptions) -> None:
    """Raise DeployError for models that cannot be served with these options."""
    for index, model in enumerate(models):
        if any(model.name == other.name for other in models[:index]):
            raise DeployError(
                f"two models are called `{model.name}`", str(model.path), "name one by `--name MODEL=NAME`"
            )
        if model.has_states and options.prefill_workers:
            what = "prefill workers are not supported for models with recurrent states"
            raise DeployError(what, str(model.path), "serve without `--prefill-workers`")
    if options.prefill_workers and any(_adapters(model, options) for model in models):
        raise DeployError("prefill workers take no LoRA adapters", "--lora", "serve without `--prefill-workers`")


def _adapters(model: ServableBundle, options: DynamoOptions) -> Mapping[str, str | Path] | None:
    """Return the folders of a model's adapters by name."""
    return options.serving.lora if model.lora is None else model.lora


@dataclass(frozen=True)
class _Assignment:
    """The role of a worker, kept for restarts. share: of the machine."""

    number: int
    model: ServableBundle
    role: _Role
    share: dict[str, str]


def _assignments(models: Sequence[ServableBundle], options: DynamoOptions) -> list[_Assignment]:
    """Return all workers: each model's answering workers, then those that only prefill."""
    answers: _Role = "decode" if options.prefill_workers else "agg"
    roles = [(model, answers) for model in models for _ in range(options.replicas)]
    roles += [(model, _PREFILL) for model in models for _ in range(options.prefill_workers)]
    shares = shares_of_machine([model.ranks for model, _ in roles], visible_gpus())
    return [
        _Assignment(number, model, role, share)
        for number, ((model, role), share) in enumerate(zip(roles, shares, strict=True))
    ]


class Broker:
    """A running proxy. environment: variables that make Dynamo's processes use it."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        publishers, subscribers = self._context.socket(zmq.XSUB), self._context.socket(zmq.XPUB)
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (publishers, subscribers)]
        self._thread = threading.Thread(target=_run, args=(publishers, subscribers), daemon=True)
        self._thread.start()
        url = f"xsub=tcp://127.0.0.1:{ports[0]} , xpub=tcp://127.0.0.1:{ports[1]}"
        self.environment = {"DYN_ZMQ_BROKER_URL": url, "DYN_ZMQ_BROKER_ENABLED": "true"}

    def close(self) -> None:
        self._context.destroy(linger=0)
        self._thread.join()


def _run(publishers: zmq.Socket[bytes], subscribers: zmq.Socket[bytes]) -> None:
    with contextlib.suppress(zmq.ZMQError):  # its context has ended
        zmq.proxy(publishers, subscribers)


@dataclass
class Member:
    """A worker: its process, its health address, and its failure times. is_started: whether it has ever served."""

    assignment: _Assignment
    process: ServerProcess
    health_port: int
    failures: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_FAILURES))
    is_started: bool = False
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def number(self) -> int:
        return self.assignment.number

    @property
    def is_healthy(self) -> bool:
        return self._read("health") is not None

    def is_hung(self, limit_s: float) -> bool:
        """Whether a step of its engine, or an answer to this check, has taken longer than the limit.

        A busy engine may keep Dynamo's own probe waiting, a sleeping one refuses it, and an idle one may do neither.
        Opening a bundle may take ten minutes.
        """
        self.is_started = self.is_started or self.is_healthy
        text = self._read("metrics") if self.is_started else None
        values = {name: float(value) for name, value in _METRIC.findall(text or "")}
        if values.get(SILENT, 0.0) > limit_s:
            return True
        is_busy = any(values.get(name) for name in ("trtkit_slots_busy", "trtkit_requests_waiting", ASLEEP))
        if text is not None and (is_busy or self.is_healthy):
            self.heard_s = time.monotonic()
        return time.monotonic() - self.heard_s > (limit_s if self.is_started else max(limit_s, _OPEN_S))

    def _read(self, path: str) -> str | None:
        """Return the answer of the worker's own port, None if its status is not 200."""
        try:
            with open_local(f"http://127.0.0.1:{self.health_port}/{path}", timeout=_TIMEOUT_S) as answer:
                return str(answer.read().decode())
        except OSError:
            return None
