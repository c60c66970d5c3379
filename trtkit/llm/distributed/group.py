"""A group of ranks as one process sees it: the other ranks, the channel to them, and what happens if one fails."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from trtkit.errors import RankError, TrtkitError
from trtkit.jobs.faults import internal_error, user_error
from trtkit.llm.distributed.channel import Channel
from trtkit.llm.distributed.messages import Message
from trtkit.llm.distributed.watch import SILENCE_S, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trtkit.llm.distributed.members import Members
    from trtkit.llm.distributed.world import World

JOIN_TIMEOUT_S = 600.0
"""How long a rank waits for the others to start: on several machines they are started one after the other."""
_END_TIMEOUT_S = 5.0
_STUCK_S = 2.0


class RankGroup:
    """All ranks, connected. members: those that this process started.

    abort: releases devices that wait for a lost rank. Raises RankError if a rank does not join.
    """

    def __init__(self, world: World, members: Members | None = None) -> None:
        self.world, self._members = world, members
        self._waits = False
        self._is_closed = False
        self.abort: Callable[[], None] = lambda: None
        self._watch = Watch(world, self._exited, self._on_fault)
        try:
            self._watch.join(JOIN_TIMEOUT_S)
            with self.guarded():
                self.channel = Channel(world.group("all", range(world.count)))
        except BaseException:
            self.close()
            raise

    @property
    def member_pids(self) -> Mapping[int, int]:
        """Process ids of the ranks that this process started, by rank."""
        return {} if self._members is None else self._members.pids

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Guard work that needs all ranks: a failure in it is reported to the group and ends every rank."""
        self._watch.check()
        self._waits = True
        try:
            yield
        except BaseException as error:
            failure = self._failure(error)
            if failure is error:
                raise
            raise failure from error
        finally:
            self._waits = False
        self._watch.check()

    def post(self, key: str, text: str) -> None:
        """Publish a text to the ranks that collect it."""
        self.world.store.set(f"{key} {self.world.rank}", text)

    def collect(self, key: str) -> list[str]:
        """Return every rank's text, by rank, once all have posted theirs."""
        keys = [f"{key} {rank}" for rank in range(self.world.count)]
        while not self.world.store.check(keys):
            self._watch.check()
            time.sleep(0.01)
        return [text.decode() for text in self.world.store.multi_get(keys)]

    def settle(self) -> None:
        """Expect quick answers from every rank from now on: all have opened their networks."""
        self._watch.silence_s = SILENCE_S

    def close(self) -> None:
        """End the other ranks: in an orderly way, unless something has failed."""
        if self._is_closed:
            return
        self._is_closed = True
        is_well = self._watch.fault is None and hasattr(self, "channel")
        if is_well and self.world.rank == 0:
            with contextlib.suppress(TrtkitError), self.guarded():
                self.channel.tell(Message("close"))
        self._watch.stop()
        if self._members is not None:
            self._members.end(_END_TIMEOUT_S if is_well else 0.0)

    def _exited(self) -> TrtkitError | None:
        return None if self._members is None else self._members.exited()

    def _failure(self, error: BaseException) -> BaseException:
        """Return the error that all ranks report for an exception here; the other ranks end."""
        is_lost = isinstance(error, RankError) and isinstance(error.__cause__, RuntimeError)
        fault = self._watch.cause(error) if is_lost else _as_fault(error)
        reported = self._watch.report(fault)
        self._is_closed = True
        self._watch.stop()
        self._watch.fault = reported
        if self._members is not None:
            self._members.kill()
        return reported if is_lost else error

    def _on_fault(self, fault: TrtkitError) -> None:
        """Release whatever waits: children are killed, which closes connections, and waiting devices are aborted."""
        if self._members is not None:
            self._members.kill()
        self.abort()
        if self.world.rank == 0 and not self.world.is_launched:
            return
        end = time.monotonic() + _STUCK_S
        while self._waits and time.monotonic() < end:
            time.sleep(0.05)
        if self._waits or self.world.rank:
            print(f"error: {fault}", file=sys.stderr, flush=True)
            os._exit(1)


def _as_fault(error: BaseException) -> TrtkitError:
    """Return an exception as the error that all ranks report."""
    if isinstance(error, Exception):
        return user_error(error) or internal_error(error, "of a rank", "")
    return TrtkitError(f"interrupted: {type(error).__name__}", "ranks")
