"""Processes that compute: their threads, where they import from, and what ends one that cannot end itself."""

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# Turns of a waiting thread before it sleeps: some ten microseconds. libgomp's own default is many milliseconds, which
# on a busy machine are spent on the core that the other thread needs.
_SPIN_COUNT = "3000"


def wait_briefly() -> None:
    """Let torch's threads sleep soon when they wait; call it before torch is imported. The user's own setting stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def share_of_cores(processes: int) -> dict[str, str]:
    """Return the environment in which a process uses its part of the cores, of `processes` equal ones.

    Empty for a single process, and where the user has set the number of threads.
    """
    if processes == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes))}


def visible_gpus() -> list[str]:
    """Return the GPUs that processes may use, as CUDA_VISIBLE_DEVICES names them."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [gpu for gpu in listed.split(",") if gpu not in {"", "-1"}]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(index) for index in range(len(list(folder.iterdir())))] if folder.is_dir() else []


def shares_of_machine(ranks: Sequence[int], gpus: Sequence[str]) -> list[dict[str, str]]:
    """Return each process's part of the machine: a GPU per rank, in turn, or cores in equal parts without GPUs.

    ranks: of each process.
    """
    if not gpus:
        return [share_of_cores(sum(ranks))] * len(ranks)
    turns = itertools.cycle(gpus)
    return [{"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(itertools.islice(turns, count)))} for count in ranks]


def import_paths() -> dict[str, str]:
    """Return the environment in which a child imports what this process can: a server's embedded Python has paths that
    a fresh one lacks.
    """
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@contextmanager
def ends_after(seconds: float, error: str) -> Iterator[None]:
    """End this process, with an error on stderr, if the block takes longer.

    For calls of a library that waits with the interpreter's lock held: no thread of this process can act then, and no
    handler of a signal runs. So a child waits, and kills.
    """
    import signal
    import subprocess

    is_parent = (
        f"grep -q '^PPid:[[:space:]]*{os.getpid()}$' /proc/$$/status"  # its number may be another process's by then
    )
    script = f"""sleep {seconds:g}; {is_parent} && {{ printf '%s\\n' "$1" >&2; kill -KILL {os.getpid()}; }}"""
    command = ["sh", "-c", script, "sh", f"error: {error}"]
    guard = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
