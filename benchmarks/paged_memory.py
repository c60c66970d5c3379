"""How many sequences of SmolLM2-135M fit into 2 GiB of slots or pages, and how fast each serves 64 requests.

Requests are a tenth of the maximum length on average: 205 of 2,048 tokens. On the reference executor in fp32.
`python -m benchmarks.paged_memory`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measure import interleaved, ratio, seconds, summary, write
from trtkit.backends import load_backend
from trtkit.builder.decoders import decoder_size, open_decoder
from trtkit.config.load import load_config
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import ReferenceDecoder, decoder_network
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

MEMORY_BYTES, LENGTH, MOST, REQUESTS, REPEATS = 2 << 30, 2048, 512, 64, 1
MEAN_TOKENS, OUTPUT_TOKENS = LENGTH // 10, 48
FORMS = {"linear": None, "pages of 16": 16, "pages of 64": 64, "pages of 128": 128}


class Memory:
    """The model with 2 GiB of caches. page_tokens: None for slots."""

    def __init__(self, page_tokens: int | None) -> None:
        overrides = ["precision=fp32", f"llm.max_batch_size={MOST}", f"llm.max_sequence_length={LENGTH}"]
        overrides += [] if page_tokens is None else ["llm.kv=paged", f"llm.page_tokens={page_tokens}"]
        opened = open_decoder(resolve(load_config("llama", overrides)))
        size = decoder_size(opened)
        network = decoder_network(load_backend("tensorrt_rtx"), opened, "last")
        self.tokens = MEMORY_BYTES // size.kv_bytes_per_token
        self.vocab_size, self.page_tokens = network.vocab_size, page_tokens
        if page_tokens is None:
            self._decoder = ReferenceDecoder(network, self.tokens // LENGTH)
        else:
            self._decoder = ReferenceDecoder(
                network, MOST, pool=PoolSize(self.tokens // page_tokens, size.weight_bytes)
            )

    def requests(self, prompts: Sequence[int], max_tokens: int) -> list[Request]:
        """Return requests with different prompts of these lengths."""
        generator, words = np.random.default_rng(1), Vocabulary(self.vocab_size, ())
        settings = Settings.resolve(SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True), words)
        ids = [generator.integers(3, self.vocab_size, length).tolist() for length in prompts]
        return [Request(str(index), each, settings) for index, each in enumerate(ids)]

    def held(self, lengths: Sequence[int]) -> dict[str, float]:
        """Return how many of the sequences fit at once, and the unused share of their memory."""
        engine = LLMEngine(self._decoder, EngineOptions(token_budget=1, min_shared_tokens=1 << 30, host_cache_bytes=0))
        for request in self.requests(lengths, 1):
            engine.submit(request)
        engine.step()  # admits as many as fit
        running = self._decoder.slots - engine.free_slots
        used, pages = sum(lengths[:running]), self._decoder.cache.pages
        reserved = running * LENGTH if pages is None else pages.held * pages.page_tokens
        for index in range(len(lengths)):
            engine.cancel(str(index))
        return {"sequences": running, "waste": round(1 - used / reserved, 4)}

    def answer(self, prompts: Sequence[int]) -> None:
        """Serve requests of `OUTPUT_TOKENS` tokens, as many at once as fit."""
        engine = LLMEngine(self._decoder, EngineOptions(min_shared_tokens=1 << 30, host_cache_bytes=0))
        for request in self.requests(prompts, OUTPUT_TOKENS):
            engine.submit(request)
        while engine.has_work:
            engine.step()


def main() -> None:
    """Measure and write the results."""
    generator = np.random.default_rng(0)
    spread = generator.lognormal(0, 0.8, MOST)
    lengths = np.clip(spread / spread.mean() * MEAN_TOKENS, 8, LENGTH - 1).astype(int).tolist()
    memories = {name: Memory(page_tokens) for name, page_tokens in FORMS.items()}
    capacity = {name: memory.held(lengths) for name, memory in memories.items()}
    print(capacity, flush=True)
    prompts = [max(1, length - OUTPUT_TOKENS) for length in lengths[:REQUESTS]]
    timed = {name: memories[name] for name in ("linear", "pages of 16")}
    runs = {name: lambda memory=memory: seconds(lambda: memory.answer(prompts)) for name, memory in timed.items()}
    samples = interleaved(runs, REPEATS, 0)
    tokens = REQUESTS * OUTPUT_TOKENS
    speed = {name: summary([tokens / each for each in values]) for name, values in samples.items()}
    write(
        "paged_memory",
        {
            "memory_bytes": MEMORY_BYTES,
            "tokens": memories["linear"].tokens,
            "mean_tokens": round(float(np.mean(lengths)), 1),
            "capacity": capacity,
            "requests": REQUESTS,
            "output_tokens_per_second": speed,
            "paged_to_linear": ratio(samples["linear"], samples["pages of 16"]),
        },
    )


if __name__ == "__main__":
    main()
