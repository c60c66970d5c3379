"""How many threads compute, and how they wait for each other."""

from __future__ import annotations

import os

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
