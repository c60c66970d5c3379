"""A thread of every rank that notices when another rank is lost, hangs or has failed.

Each rank writes a counter into the store every second; a rank whose counter stands still does not answer. The first
fault that any rank notices is written there, too, so that all ranks report the same one.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

from trtkit.errors import RankError, TrtkitError
from trtkit.jobs.faults import error_from_json, error_to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.distributed.world import World

SILENCE_S, OPENING_SILENCE_S = 5.0, 60.0
"""Seconds without a heartbeat after which a rank counts as hung; longer while it reads its weights."""
_BEAT_S, _POLL_S = 1.0, 0.1
_FAULT = "fault"


class Watch:
    """A rank's knowledge of the others.

    silence_s: seconds without a heartbeat after which a rank counts as hung. exited: returns the error of a child
    process that has ended, None while all run. on_fault: called once, from the thread, when a fault is known; it
    releases whatever waits for the lost rank.
    """

    def __init__(
        self, world: World, exited: Callable[[], TrtkitError | None], on_fault: Callable[[TrtkitError], None]
    ) -> None:
        self._world, self._store = world, world.store.clone()  # type: ignore[attr-defined] # others wait on theirs
        self._exited, self._on_fault = exited, on_fault
        self._others = [rank for rank in range(world.count) if rank != world.rank]
        self._beats = dict.fromkeys(self._others, (b"", time.monotonic()))
        self._has_joined = False
        self.silence_s = OPENING_SILENCE_S
        self._stopped, self._known = threading.Event(), threading.Event()
        self.fault: TrtkitError | None = None
        self._thread = threading.Thread(target=self._run, name="trtkit-ranks", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until every rank has started. Raises RankError if some do not, and the fault of one that failed."""
        end = time.monotonic() + timeout_s
        waiting = self._others
        while waiting := [rank for rank in waiting if not self._store.check([_beat(rank)])]:
            self.check()
            if time.monotonic() > end:
                missing = ", ".join(map(str, waiting))
                raise self.report(RankError(f"rank {missing} has not joined within {timeout_s:.0f} seconds", "ranks"))
            time.sleep(_POLL_S)
        self._has_joined = True

    def check(self) -> None:
        """Raise the fault, if there is one."""
        if self.fault is not None:
            raise self.fault

    def report(self, error: TrtkitError) -> TrtkitError:
        """Publish a fault to all ranks; return the first one that any rank reported."""
        data = json.dumps({"rank": self._world.rank, **error_to_json(error)})
        try:
            data = self._store.compare_set(_FAULT, "", data).decode()
        except RuntimeError:  # the store is lost, and rank 0 with it
            return error
        return _fault(data)

    def cause(self, error: BaseException) -> TrtkitError:
        """Return the fault that made an operation between ranks fail.

        It may become known a little later: a closed connection is noticed at once, silence after some seconds. An
        operation that timed out has waited for longer than that.
        """
        self._known.wait(_BEAT_S if "imed out" in str(error) else self.silence_s + 2 * _BEAT_S)
        if self.fault is not None:
            return self.fault
        return error if isinstance(error, TrtkitError) else RankError(str(error), "ranks")

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        beat, next_beat_s = 0, 0.0
        while not self._stopped.wait(_POLL_S):
            is_due = time.monotonic() >= next_beat_s
            if is_due:
                beat, next_beat_s = beat + 1, time.monotonic() + _BEAT_S
            fault = self._look(beat if is_due else None)
            if fault is not None and not self._stopped.is_set():
                self.fault = fault
                self._known.set()
                self._on_fault(fault)
                return

    def _look(self, beat: int | None) -> TrtkitError | None:
        """Send a heartbeat if it is due, and return the fault that is known now."""
        try:
            fault = self._exited()
            if fault is not None:
                return self.report(fault)
            if self._store.check([_FAULT]):
                return _fault(self._store.get(_FAULT).decode())
            if beat is None:
                return None
            self._store.set(_beat(self._world.rank), str(beat))
            silent = self._silent() if self._has_joined else None
        except RuntimeError:
            return RankError("rank 0 is gone: its store does not answer", "ranks")
        return None if silent is None else self.report(silent)

    def _silent(self) -> TrtkitError | None:
        """Return the fault of a rank whose heartbeat has stopped."""
        now, last = time.monotonic(), max(seen for _, seen in self._beats.values())
        was_asleep = now - last > 2 * self.silence_s  # no rank was heard: this process itself was suspended
        beats = self._store.multi_get([_beat(rank) for rank in self._others])
        for rank, beat in zip(self._others, beats, strict=True):
            known, seen = self._beats[rank]
            if beat != known or was_asleep:
                self._beats[rank] = beat, now
            elif now - seen > self.silence_s:
                fix = "see whether its process is stopped or its machine is reachable; then start again"
                return RankError(f"rank {rank} has not answered for {self.silence_s:.0f} seconds", "ranks", fix)
        return None


def _beat(rank: int) -> str:
    return f"beat {rank}"


def _fault(data: str) -> TrtkitError:
    """Return a reported fault, with the rank it came from."""
    stated = json.loads(data)
    error = error_from_json(stated)
    if not isinstance(error, RankError):
        error.where = f"rank {stated['rank']}: {error.where}" if error.where else f"rank {stated['rank']}"
    return error
