"""More conversations than the device's caches hold, in turns: with and without a cache in host memory.

SmolLM2-135M on the reference executor in fp32: 12 conversations of 4 turns share 4 slots, or pages of the same size.
`python -m benchmarks.host_cache`
"""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.measure import write
from trtkit.backends import load_backend
from trtkit.builder.decoders import open_decoder
from trtkit.config.load import load_config
from trtkit.llm.engine import EngineOptions, LLMEngine, Request
from trtkit.llm.execution import ReferenceDecoder, decoder_network
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from trtkit.llm.execution import DecoderNetwork

LENGTH, SLOTS, CHATS, TURNS = 1024, 4, 12, 4
PROMPT, TURN, ANSWER = 300, 40, 12


def main() -> None:
    """Measure and write the results."""
    figures: dict[str, object] = {}
    for name, overrides in (("slots", []), ("pages", ["llm.kv=paged", "llm.page_tokens=16"])):
        network = _network(overrides)
        (without, expected), (kept, tokens) = (converse(network, gib << 30) for gib in (0, 2))
        assert tokens == expected, "the answers differ"
        runs = {"without": without, "with": kept}
        ratios = {key: runs["without"][key] / runs["with"][key] for key in ("ttft_ms", "prompt_tokens")}
        figures[name] = {**runs, "ratios": {key: round(value, 2) for key, value in ratios.items()}}
    sizes = {"chats": CHATS, "turns": TURNS, "slot_count": SLOTS, "length": LENGTH}
    print(write("host_cache", {**sizes, "prompt": PROMPT, "turn": TURN, "answer": ANSWER, **figures}))
    print(json.dumps(figures, indent=1))


def converse(network: DecoderNetwork, host_bytes: int) -> tuple[dict[str, float], list[list[int]]]:
    """Return the figures of all turns after the first, one conversation after another, and all answers."""
    generator, vocabulary = np.random.default_rng(1), Vocabulary(network.vocab_size, ())
    settings = Settings.resolve(SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True), vocabulary)
    engine = LLMEngine(ReferenceDecoder(network, SLOTS), EngineOptions(host_cache_bytes=host_bytes))
    chats = [generator.integers(3, network.vocab_size, PROMPT).tolist() for _ in range(CHATS)]
    waits, tokens, before = [], [], 0
    for turn in range(TURNS):
        for index, ids in enumerate(chats):
            request = Request(f"{turn}-{index}", list(ids), settings)
            engine.submit(request)
            done = [each for _ in iter(lambda: engine.has_work, False) for each in engine.step()]
            tokens.append(done[0].token_ids)
            ids += [*done[0].token_ids, *generator.integers(3, network.vocab_size, TURN).tolist()]
            if turn and request.metrics.first_token_s is not None:
                waits.append(request.metrics.first_token_s - request.metrics.arrived_s)
        before = before or engine.statistics.prompt_tokens
    statistics = engine.statistics
    figures = {
        "ttft_ms": round(1e3 * median(waits), 1),
        "prompt_tokens": statistics.prompt_tokens - before,
        "reused_tokens": statistics.reused_tokens,
        "restored_tokens": statistics.restored_tokens,
        "host_mib": round(engine.host.size_bytes / 2**20),
    }
    return figures, tokens


def _network(overrides: list[str]) -> DecoderNetwork:
    sizes = ["precision=fp32", f"llm.max_batch_size={SLOTS}", f"llm.max_sequence_length={LENGTH}"]
    opened = open_decoder(resolve(load_config("llama", [*sizes, *overrides])))
    return decoder_network(load_backend("tensorrt_rtx"), opened, "last")


if __name__ == "__main__":
    main()
