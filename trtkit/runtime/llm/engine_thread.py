"""The engine in a thread of its own, which other threads and coroutines give orders to."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trtkit.errors import GenerationError, OverloadedError
from trtkit.runtime.llm.frontend import Frontend, asleep
from trtkit.runtime.llm.preparation import Order, Preparation
from trtkit.runtime.scheduling import DEFAULT_SCHEDULING
from trtkit.serving_options import ServingOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.generation import Engine
    from trtkit.runtime.llm.outputs import Delta
    from trtkit.runtime.llm.prompts import PreparedPrompt, Prompt
    from trtkit.runtime.llm.text_bundle import TextBundle
    from trtkit.runtime.sampling.params import SamplingParams
    from trtkit.runtime.scheduling import SchedulingParams

    _Work = Callable[[Engine | Exception], None]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class _Rest:
    """An order to sleep, or to wake up. future: of who gave it."""

    future: Future[None]
    wakes: bool


class EngineThread:
    """A bundle's engine in a thread. Every method may be called from any thread.

    The thread opens the bundle too: libgomp counts the worker threads of every thread that ever computed, and where
    they are more than the cores, workers sleep between operations instead of waiting for the next (SmolLM2 on two
    cores: 26 tokens a second instead of 42). Prompts are tokenized, and guides compiled, in other threads: see
    Preparation. on_step: called after every step, in the engine's thread; what it raises ends the engine.
    """

    def __init__(
        self,
        bundle: TextBundle | Bundle | Path | str,
        on_step: Callable[[Engine], None] | None = None,
        **options: Any,
    ) -> None:
        self._opened: Future[Frontend] = Future()
        self._orders: queue.SimpleQueue[tuple[Order, PreparedPrompt] | _Work | _Rest | str | None] = queue.SimpleQueue()
        self._on_step = on_step
        self._listeners: dict[str, Callable[[Delta | Exception], None]] = {}
        self._sleepers: list[Future[None]] = []
        self._is_waking = False
        self.failure: Exception | None = None
        self._is_waiting, self._turn_s, self._ordered_s = False, time.monotonic(), 0.0
        read = ServingOptions(**options)
        self._thread = threading.Thread(target=self._run, args=(bundle, read), name="trtkit-engine", daemon=True)
        self._thread.start()
        self.frontend = self._opened.result()
        self._preparation = Preparation(self.frontend.text, self._hand_over, read.max_queue)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        on_news: Callable[[Delta | Exception], None],
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> None:
        """Take a prompt; `on_news` is told each piece, the last with `output`, or the error that refused it."""
        if self._refuses(on_news):
            return
        self._preparation.add(Order(prompt, params, request_id, scheduling, on_news))

    def run(self, work: Callable[[Engine], T]) -> Future[T]:
        """Do `work` on the engine, in its thread, between two steps."""
        future: Future[T] = Future()
        if self._refuses(partial(_settle, future, work)):
            return future
        self._put(partial(_settle, future, work))
        return future

    def sleep(self) -> Future[None]:
        """Free the GPU's memory once all requests have ended. New ones are refused from now on until `wake`."""
        return self._rest(wakes=False)

    def wake(self) -> Future[None]:
        """Load the model again."""
        return self._rest(wakes=True)

    @property
    def silent_s(self) -> float:
        """Seconds since the thread last turned to its orders, 0 while none waits: how long its step takes, or hangs."""
        if self._is_waking:  # a model may take minutes to load
            return 0.0
        if self._is_waiting:
            return 0.0 if self._orders.empty() else time.monotonic() - self._ordered_s
        return time.monotonic() - self._turn_s

    def abort(self, request_id: str) -> None:
        """End a request; its last delta has the finish reason `abort`, or there is an error if it had not begun."""
        if not self._preparation.cancel(request_id):
            self._put(request_id)

    def close(self) -> None:
        """End all requests and the thread."""
        self._preparation.close()
        self._orders.put(None)
        self._thread.join()
        self.frontend.close()

    def _hand_over(self, order: Order, prepared: PreparedPrompt) -> None:
        """Give the engine what is prepared."""
        if not self._refuses(order.on_news):
            self._put((order, prepared))

    def _rest(self, *, wakes: bool) -> Future[None]:
        future: Future[None] = Future()
        if not self._refuses(partial(_refuse, future)):
            self._put(_Rest(future, wakes))
        return future

    def _put(self, order: tuple[Order, PreparedPrompt] | _Work | _Rest | str) -> None:
        if self._orders.empty():
            self._ordered_s = time.monotonic()
        self._orders.put(order)

    def _refuses(self, on_news: Callable[[Delta | Exception], None]) -> bool:
        """Whether the engine takes no more requests; then this one is told."""
        if self.failure is None and self._thread.is_alive():
            return False
        on_news(GenerationError("the engine has stopped", fix="open the bundle again"))
        return True

    def _run(self, bundle: TextBundle | Bundle | Path | str, options: ServingOptions) -> None:
        """Open the bundle, then serve; what opening raises is raised where the thread was asked for."""
        try:
            self._opened.set_result(Frontend(bundle, options))
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._loop(self._opened.result())

    def _loop(self, frontend: Frontend) -> None:
        """Take orders and step, until closed. After a step that fails nothing is right: it ends every request."""
        is_open = True
        while is_open:
            is_open = self._take_orders(frontend)
            try:
                frontend.step()
                if self._on_step is not None and frontend.awake_engine is not None:
                    self._on_step(frontend.engine)
                news = frontend.news()
            except Exception as error:
                self.failure = error
                break
            for delta in news:
                self._tell(delta.request_id, delta, is_last=delta.output is not None)
            if self._sleepers and not frontend.has_work:
                self._settle_sleepers(frontend.sleep)
        stopped = self.failure or GenerationError("the engine was closed", fix="open the bundle again")
        self._settle_sleepers(partial(_raise, stopped))
        for name in list(self._listeners):
            self._tell(name, stopped, is_last=True)
        while not self._orders.empty():
            order = self._orders.get()
            if isinstance(order, tuple):
                order[0].on_news(stopped)
            elif isinstance(order, _Rest):
                order.future.set_exception(stopped)
            elif callable(order):
                order(stopped)

    def _take_orders(self, frontend: Frontend) -> bool:
        """Take all orders that wait, and wait for one where there is nothing to do; return False to close."""
        while True:
            self._turn_s, self._is_waiting = time.monotonic(), not (frontend.has_work or self._sleepers)
            try:
                order = self._orders.get(block=self._is_waiting)
            except queue.Empty:
                return True
            self._turn_s, self._is_waiting = time.monotonic(), False
            if order is None:
                return False
            if isinstance(order, str):
                frontend.cancel(order)
            elif isinstance(order, _Rest):
                self._take_rest(frontend, order)
            elif callable(order):
                order(frontend.awake_engine or asleep())
            else:
                self._start(frontend, *order)

    def _take_rest(self, frontend: Frontend, order: _Rest) -> None:
        """Wake up now, or sleep as soon as there is nothing to do."""
        if not order.wakes:
            self._sleepers.append(order.future)
            return
        woken = GenerationError("the model was woken before all its requests had ended", fix="put it to sleep again")
        self._settle_sleepers(partial(_raise, woken))
        self._is_waking = True
        _attempt(order.future, frontend.wake)
        self._is_waking = False

    def _settle_sleepers(self, work: Callable[[], None]) -> None:
        """Do `work`, and tell those who wait for the model to sleep."""
        sleepers, self._sleepers = self._sleepers, []
        for future in sleepers:
            _attempt(future, work)

    def _start(self, frontend: Frontend, order: Order, prepared: PreparedPrompt) -> None:
        if self._sleepers or frontend.awake_engine is None:
            order.on_news(OverloadedError("the model is asleep", fix="wake it, or ask another server"))
            return
        try:
            frontend.start(prepared, order.request_id, order.scheduling, is_streamed=True)
        except Exception as error:
            order.on_news(error)
            return
        self._listeners[order.request_id] = order.on_news

    def _tell(self, name: str, news: Delta | Exception, *, is_last: bool) -> None:
        listener = self._listeners.pop(name, None) if is_last else self._listeners.get(name)
        if listener is not None:
            listener(news)


def _settle(future: Future[T], work: Callable[[Engine], T], engine: Engine | Exception) -> None:
    """Do `work` on the engine, if there is one; its outcome becomes that of `future`."""
    if isinstance(engine, Exception):
        future.set_exception(engine)
    else:
        _attempt(future, partial(work, engine))


def _attempt(future: Future[T], work: Callable[[], T]) -> None:
    """Do `work`; what it returns or raises becomes the outcome of `future`."""
    try:
        result = work()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _raise(error: Exception) -> None:
    raise error


def _refuse(future: Future[None], error: Delta | Exception) -> None:
    assert isinstance(error, Exception)
    future.set_exception(error)
