"""SmolLM2 served by Dynamo against the same bundle in this process: tokens per second and time to first token.

`python -m benchmarks.serve_dynamo` writes results/serve_dynamo.json: concurrency 1, 8 and 32, one worker, rounds in
turn; and prompt tokens computed by two workers on prompts that share beginnings, routed by cache and in turn.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.measure import write
from tests.dynamo import MODEL, serving
from trtkit import AsyncLLM, SamplingParams
from trtkit.config.load import load_config
from trtkit.engine.build import build_bundle
from trtkit.jobs.runner import ChildRunner

CONCURRENCY = (1, 8, 32)
ROUNDS, TOKENS = 3, 48
GROUPS, TURNS = 6, 8
Answer = Callable[[list[int]], AsyncIterator[int]]


def prompt(number: int) -> list[int]:
    """Return 64 tokens that no other number's prompt begins with."""
    return [5 + (number * 7919 + place * 104729) % 40000 for place in range(64)]


async def measure(answer: Answer, concurrency: int, first: int) -> tuple[float, float]:
    """Return tokens per second, and the median time to the first token in seconds, of two requests per client."""
    first_s: list[float] = []
    tokens = 0

    async def client(number: int) -> None:
        nonlocal tokens
        for turn in range(2):
            started, count = time.perf_counter(), 0
            async for new in answer(prompt(first + 2 * number + turn)):
                if count == 0:
                    first_s.append(time.perf_counter() - started)
                count += new
            assert count == TOKENS
            tokens += count

    begun = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(concurrency)))
    return tokens / (time.perf_counter() - begun), statistics.median(first_s)


def in_process(llm: AsyncLLM) -> Answer:
    async def answer(ids: list[int]) -> AsyncIterator[int]:
        params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        async for delta in llm.generate({"prompt_token_ids": ids}, params):
            yield len(delta.token_ids)

    return answer


def served(client: AsyncOpenAI) -> Answer:
    async def answer(ids: list[int]) -> AsyncIterator[int]:
        settings: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}
        settings |= {"stream": True, "stream_options": {"include_usage": True}}
        stream: Any = await client.completions.create(model=MODEL, prompt=ids, **settings)
        count = 0
        async for piece in stream:
            if piece.choices and count == 0:
                count = 1
                yield 1
            if piece.usage:
                yield piece.usage.completion_tokens - count

    return answer


def throughput(bundle: Path) -> list[dict[str, object]]:
    """Measure both ways in turn, at each concurrency."""
    rows: list[dict[str, object]] = []
    with serving(bundle) as running:
        url, llm = running.fleet.options.url, AsyncLLM(bundle)

        async def all_rounds() -> None:
            client, number = AsyncOpenAI(base_url=url, api_key="none", timeout=600), 0
            ways = {"in process": in_process(llm), "dynamo": served(client)}
            for concurrency in CONCURRENCY:
                results: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
                for _ in range(ROUNDS):
                    for name, way in ways.items():
                        results[name].append(await measure(way, concurrency, number))
                        number += 2 * concurrency
                rates = {name: statistics.median(rate for rate, _ in each) for name, each in results.items()}
                firsts = {name: statistics.median(first for _, first in each) for name, each in results.items()}
                ratio = statistics.median(
                    ours / theirs
                    for (ours, _), (theirs, _) in zip(results["dynamo"], results["in process"], strict=True)
                )
                row = {"concurrency": concurrency, "tokens_per_s": rates, "first_token_s": firsts, "ratio": ratio}
                row["overhead_us_per_token"] = 1e6 * (1 / rates["dynamo"] - 1 / rates["in process"])
                rows.append(row)
                print(row, flush=True)

        asyncio.run(all_rounds())
        llm.close()
    return rows


def routing(bundle: Path) -> dict[str, float]:
    """Return the prompt tokens that two workers compute, by router: groups of prompts that share 96 of 112 tokens."""
    computed: dict[str, float] = {}
    for router in ("kv", "round-robin"):
        with serving(bundle, replicas=2, router=router) as running:
            before = running.metric("prompt_tokens_total")
            client = running.client()
            for turn in range(TURNS):
                for group in range(GROUPS):
                    ids = prompt(1000 + group) + prompt(2000 + group)[:32] + prompt(3000 + TURNS * group + turn)[:16]
                    client.completions.create(model=MODEL, prompt=ids, max_tokens=1, temperature=0)
            computed[router] = running.metric("prompt_tokens_total") - before
        print(router, computed[router], flush=True)
    return {**computed, "prompt_tokens": float(TURNS * GROUPS * 112)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bundle = build_bundle(load_config("llama"), Path(folder) / "llama", ChildRunner()).bundle.path
        write("serve_dynamo", {"throughput": throughput(bundle), "routing": routing(bundle)})


if __name__ == "__main__":
    main()
