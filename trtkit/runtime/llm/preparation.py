"""What a request needs before the engine: tokens, words, guides, prepared in threads of their own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import GenerationError, OverloadedError
from trtkit.runtime.llm.prompts import characters

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.runtime.llm.outputs import Delta
    from trtkit.runtime.llm.prompts import PreparedPrompt, Prompt
    from trtkit.runtime.llm.text_bundle import TextBundle
    from trtkit.runtime.sampling.params import SamplingParams
    from trtkit.runtime.scheduling import SchedulingParams

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
