"""`AsyncLLM`: coroutines stream answers from an engine that runs in a thread of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trtkit.llm.engine_thread import EngineThread
from trtkit.llm.named_settings import default_params
from trtkit.llm.scheduler import DEFAULT_SCHEDULING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.outputs import Delta
    from trtkit.llm.prompts import Prompt
    from trtkit.llm.sampling.params import SamplingParams
    from trtkit.llm.scheduler import SchedulingParams
    from trtkit.llm.text_bundle import TextBundle


class AsyncLLM:
    """An open bundle for coroutines, which share one batch. options: keywords of ServingOptions.

    thread: the engine's thread.
    """

    def __init__(self, bundle: TextBundle | Bundle | Path | str, **options: Any) -> None:
        self.thread = EngineThread(bundle, **options)
        self._count = 0

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> AsyncIterator[Delta]:
        """Stream the answer to one prompt. Leaving the loop early, or cancelling the task, ends the request.

        Without settings, decoding is greedy, with up to 128 tokens, as in `LLM.generate`.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Queue[Any]()
        self._count += 1
        name = request_id or f"async-{self._count}"

        def put(item: Delta | Exception) -> None:
            loop.call_soon_threadsafe(news.put_nowait, item)

        self.thread.submit(prompt, sampling_params or default_params(), name, put, scheduling)
        is_done = False
        try:
            while not is_done:
                item = await news.get()
                if isinstance(item, Exception):
                    is_done = True
                    raise item
                is_done = item.output is not None
                yield item
        finally:
            if not is_done:
                self.thread.abort(name)

    async def abort(self, request_id: str) -> None:
        """Cancel a request."""
        self.thread.abort(request_id)

    async def sleep(self) -> None:
        """Free the GPU's memory once all requests have ended; new ones are refused until `wake`."""
        await asyncio.wrap_future(self.thread.sleep())

    async def wake(self) -> None:
        """Load the model again. Answers stay the same; statistics and caches start anew."""
        await asyncio.wrap_future(self.thread.wake())

    async def load_adapter(self, name: str, folder: Path | str) -> None:
        """Load a LoRA adapter; see `LLM.load_adapter`. It is read in a thread, while requests run."""
        adapter = await asyncio.to_thread(self.thread.frontend.read_adapter, folder)
        await asyncio.wrap_future(self.thread.run(lambda engine: engine.load_adapter(name, adapter)))

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter: new requests are refused, running ones finish. Raises RequestError for unknown names."""
        await asyncio.wrap_future(self.thread.run(lambda engine: engine.unload_adapter(name)))

    def close(self) -> None:
        """End all requests and free the memory."""
        self.thread.close()
