"""The engine in a thread of its own; other threads tokenize requests and compile their grammars."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trtkit.errors import GenerationError, OverloadedError
from trtkit.llm.frontend import Frontend, asleep
from trtkit.llm.prompts import characters
from trtkit.llm.scheduler import DEFAULT_SCHEDULING
from trtkit.serving_options import ServingOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.engine import LLMEngine
    from trtkit.llm.outputs import Delta
    from trtkit.llm.prompts import PreparedPrompt, Prompt
    from trtkit.llm.sampling.params import SamplingParams
    from trtkit.llm.scheduler import SchedulingParams
    from trtkit.llm.text_bundle import TextBundle

    _Work = Callable[[LLMEngine | Exception], None]
    from collections.abc import Callable


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
        on_step: Callable[[LLMEngine], None] | None = None,
        **options: Any,
    ) -> None:
        self._opened: Future[Frontend] = Future()
        self._closed: Future[None] = Future()
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
        self._preparation = Preparation(self.frontend.text, self._hand_over, self.frontend.engine.most_waiting)

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

    def run(self, work: Callable[[LLMEngine], T]) -> Future[T]:
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
        self._closed.result()

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
            frontend = Frontend(bundle, options)
            try:
                frontend.warm_up()
            except BaseException:
                frontend.close()
                raise
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(frontend)
        try:
            self._loop(frontend)
        finally:
            _attempt(self._closed, frontend.close)  # here: the current GPU is a thread's own

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
        _attempt(order.future, partial(_wake, frontend))
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


def _wake(frontend: Frontend) -> None:
    frontend.wake()
    frontend.warm_up()


def _settle(future: Future[T], work: Callable[[LLMEngine], T], engine: LLMEngine | Exception) -> None:
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


# Text that is tokenized in about ten milliseconds, and as many words.
_QUICK_CHARACTERS, _QUICK_WORDS = 16_384, 64


@dataclass(frozen=True, eq=False)
class Order:
    """A request on its way to the engine; on_news is told deltas, or the error that ended it, by any thread."""

    prompt: Prompt
    params: SamplingParams
    request_id: str
    scheduling: SchedulingParams
    on_news: Callable[[Delta | Exception], None]

    @property
    def is_quick(self) -> bool:
        """Whether preparing it takes no time to speak of: a guide, an image, long text or many words may."""
        params, prompt = self.params, self.prompt
        if params.guided or len(params.bad_words) + len(params.force_words) > _QUICK_WORDS:
            return False
        has_images = isinstance(prompt, dict) and prompt.get("images")
        return not has_images and characters(prompt) <= _QUICK_CHARACTERS


class Preparation:
    """Prepares requests in two threads: what may take long waits for its like, and nothing else does.

    Tokenizers and llguidance are Rust and let other threads of Python run; one thread compiles all guides.
    hand_over: told what is prepared.
    most: requests that may wait here; None is any number.
    """

    def __init__(self, model: TextBundle, hand_over: Callable[[Order, PreparedPrompt], None], most: int | None) -> None:
        self._model, self._hand_over, self._most = model, hand_over, most
        self._quick, self._slow = (ThreadPoolExecutor(1, f"trtkit-{name}") for name in ("prompts", "long-prompts"))
        self._lock = threading.Lock()
        self._orders: dict[str, Order] = {}

    def add(self, order: Order) -> None:
        """Take a request; it is told an error if too many wait here, or one of its name."""
        with self._lock:
            is_full = self._most is not None and len(self._orders) >= self._most
            is_taken = order.request_id in self._orders
            if not is_full and not is_taken:
                self._orders[order.request_id] = order
        if is_full:
            order.on_news(OverloadedError(f"{self._most} requests are already waiting", "", "wait for answers"))
        elif is_taken:
            order.on_news(GenerationError("a request with this id is already running", order.request_id))
        else:
            (self._quick if order.is_quick else self._slow).submit(self._prepare, order)

    def cancel(self, request_id: str) -> bool:
        """End a request that is still here; it is told. Return whether there was one."""
        order = self._take(request_id)
        if order is not None:
            order.on_news(GenerationError("the request was aborted", request_id))
        return order is not None

    def close(self) -> None:
        """End all requests that are still here, and the threads."""
        for request_id in list(self._orders):
            self.cancel(request_id)
        self._quick.shutdown(cancel_futures=True)
        self._slow.shutdown(cancel_futures=True)

    def _prepare(self, order: Order) -> None:
        if order.request_id not in self._orders:
            return
        try:
            prepared = self._model.prepare(order.prompt, order.params)
        except Exception as error:
            if self._take(order.request_id) is not None:
                order.on_news(error)
            return
        if self._take(order.request_id) is not None:
            self._hand_over(order, prepared)

    def _take(self, request_id: str) -> Order | None:
        """Return a request that is no longer here; None if it was ended before."""
        with self._lock:
            return self._orders.pop(request_id, None)
