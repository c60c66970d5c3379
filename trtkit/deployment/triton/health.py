"""Whether a server's Python models still run: Triton reports a model ready after its process died, and fails requests.

`python -m trtkit.deployment.triton.health` is the probe for Kubernetes: it exits with 1 unless the server is live and
every model that it reports ready has all its processes.
"""

import os
import sys
from pathlib import Path
from typing import Any

from trtkit.deployment.triton.endpoints import Endpoints, ModelState, is_live, model_config, model_states
from trtkit.errors import DeployError

_STUB = "triton_python_backend_stub"


def stubs(session: int | None = None) -> dict[int, list[str]]:
    """Return the command line of each living process that runs a Python model, by process id.

    session: whose processes to count, such as the server's as started by `trtkit serve`; None for the whole machine or
    container.
    """
    commands = {}
    for folder in Path("/proc").iterdir():
        words = _command(folder) if folder.name.isdigit() else []
        if words and Path(words[0]).name == _STUB and (session is None or _session(int(folder.name)) == session):
            commands[int(folder.name)] = words
    return commands


def lost_models(endpoints: Endpoints, session: int | None = None) -> list[ModelState]:
    """Return the models that the server reports ready although they lack a process.

    Raises DeployError if it is silent.
    """
    running = list(stubs(session).values())
    ready = [state for state in model_states(endpoints) if state.is_ready]
    return [state for state in ready if _count(state, running) < _needed(model_config(endpoints, state))]


def main() -> None:
    """Exit with 0 if all is well, or with 1 and the reason. Its argument is the HTTP port, 8000 by default."""
    endpoints = Endpoints(http_port=int(sys.argv[1])) if len(sys.argv) > 1 else Endpoints()
    try:
        lost = lost_models(endpoints)
    except DeployError as error:
        sys.exit(str(error))
    if lost:
        sys.exit(f"no process: {', '.join(f'{state.name} version {state.version}' for state in lost)}")
    if not is_live(endpoints):
        sys.exit("the server is not live")


def _count(state: ModelState, running: list[list[str]]) -> int:
    """Return how many processes run a version of a model: each has the path of its model.py as an argument."""
    folder = f"/{state.name}/{state.version}/"
    return sum(any(folder in word for word in words[1:]) for words in running)


def _needed(config: dict[str, Any]) -> int:
    """Return how many processes each version of a model should have."""
    if config.get("backend") != "python":
        return 0
    return sum(int(group["count"]) * max(1, len(group.get("gpus", ()))) for group in config["instance_group"])


def _command(folder: Path) -> list[str]:
    """Return a process's command line, empty once it has exited."""
    try:
        return [word.decode(errors="replace") for word in (folder / "cmdline").read_bytes().split(b"\0") if word]
    except OSError:
        return []


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


if __name__ == "__main__":
    main()
