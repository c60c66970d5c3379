"""SmolLM2 on Dynamo against the same bundle in this process and on Triton; effects of KV routing and prefill workers.

`python -m benchmarks.serve_dynamo` writes results/serve_dynamo.json: tokens per second and time to first token of all
three in turn, at concurrency 1, 8 and 32; prompt tokens that two workers compute for prompts with shared prefixes,
with KV routing and round-robin; long prompts on one worker, and on a decode worker with a prefill worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tritonclient.grpc.aio as triton
from openai import AsyncOpenAI

from benchmarks.measure import write
from tests.support import triton as triton_server
from tests.support.dynamo import MODEL, Served, serving
from tests.support.served_llm import tensor
from trtkit import AsyncLLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.cli.main import main as trtkit
from trtkit.config.load import load_config
from trtkit.jobs.runner import ChildRunner

CONCURRENCY = (1, 8, 32)
ROUNDS, TOKENS, PROMPT = 3, 16, 24
GROUPS, TURNS = 5, 6
LONG, LONG_REQUESTS = 192, 4
Answer = Callable[[list[int]], AsyncIterator[int]]
Row = dict[str, Any]


def prompt(number: int, length: int = PROMPT) -> list[int]:
    """Return a prompt that shares no prefix with another number's."""
    return [5 + (number * 7919 + place * 104729) % 40000 for place in range(length)]


@dataclass(frozen=True)
class Way:
    """A way to answer prompts. pids: of the servers' session leaders."""

    answer: Answer
    pids: tuple[int, ...] = ()

    def cpu_s(self) -> float:
        """Return the servers' CPU time so far, or this process's if there are no servers."""
        if not self.pids:
            return time.process_time()
        stats = [path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
        ticks = sum(int(each[11]) + int(each[12]) for each in stats if int(each[3]) in self.pids)
        return ticks / os.sysconf("SC_CLK_TCK")


async def measure(way: Way, concurrency: int, prompts: list[list[int]]) -> dict[str, float]:
    """Return tokens per second, CPU seconds per token, and the median time to first token in seconds.

    concurrency: requests in flight. CPU time is the servers', without the client's.
    """
    first_s: list[float] = []
    free = asyncio.Semaphore(concurrency)

    async def request(ids: list[int]) -> None:
        async with free:
            started, count = time.perf_counter(), 0
            async for new in way.answer(ids):
                if count == 0:
                    first_s.append(time.perf_counter() - started)
                count += new
            assert count == TOKENS

    begun, cpu_s, tokens = time.perf_counter(), way.cpu_s(), len(prompts) * TOKENS
    await asyncio.gather(*map(request, prompts))
    rate = tokens / (time.perf_counter() - begun)
    cpu_s = (way.cpu_s() - cpu_s) / tokens
    return {"tokens_per_s": rate, "cpu_s_per_token": cpu_s, "first_token_s": statistics.median(first_s)}


def in_process(llm: AsyncLLM) -> Answer:
    async def answer(ids: list[int]) -> AsyncIterator[int]:
        params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        async for delta in llm.generate({"prompt_token_ids": ids}, params):
            yield len(delta.token_ids)

    return answer


def by_dynamo(client: AsyncOpenAI) -> Answer:
    async def answer(ids: list[int]) -> AsyncIterator[int]:
        settings: Row = {"max_tokens": TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}
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


def by_triton(client: Any) -> Answer:
    async def answer(ids: list[int]) -> AsyncIterator[int]:
        values = {"input_ids": ids, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        inputs = [tensor(name, value) for name, value in values.items()]

        async def requests() -> AsyncIterator[Row]:
            yield {"model_name": "llama", "inputs": inputs, "enable_empty_final_response": True}

        async for result, error in client.stream_infer(requests()):
            if error is not None:
                raise error
            if not result.get_response().outputs:
                return
            yield int(result.as_numpy("sequence_length").sum())

    return answer


async def in_turn(ways: Mapping[str, Way], concurrency: int, first: int) -> Row:
    """Return each way's medians, and the medians of its ratios to this process, round by round."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    count = max(4, concurrency)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            results[name].append(await measure(way, concurrency, [prompt(first + each) for each in range(count)]))
            first += count
    row: Row = {"concurrency": concurrency}
    for name, samples in results.items():
        row[name] = {key: statistics.median(each[key] for each in samples) for key in samples[0]}
        pairs = list(zip(samples, results["in process"], strict=True))
        row[name]["ratio"] = statistics.median(own["tokens_per_s"] / base["tokens_per_s"] for own, base in pairs)
        overheads = (own["cpu_s_per_token"] - base["cpu_s_per_token"] for own, base in pairs)
        row[name]["cpu_overhead_us_per_token"] = 1e6 * statistics.median(overheads)
    print(row, flush=True)
    return row


@contextlib.contextmanager
def on_triton(bundle: Path) -> Iterator[tuple[str, int]]:
    """Deploy and serve a bundle; yield the gRPC address and the server's process."""
    with tempfile.TemporaryDirectory() as repository:
        trtkit(["deploy", str(bundle), "--repository", repository, "--name", "llama", "-q"])
        with triton_server.serving(Path(repository)) as running:
            yield running.grpc, running.server.pid


def pids_of(running: Served) -> tuple[int, ...]:
    """Return the process ids of a fleet."""
    fleet = running.fleet
    assert fleet.frontend_pid is not None
    return (fleet.frontend_pid, *(member.process.pid for member in fleet.workers))


def throughput(bundle: Path) -> list[Row]:
    """Measure all three ways in turn, at each concurrency."""
    with serving(bundle) as running, on_triton(bundle) as (grpc, pid):
        llm = AsyncLLM(bundle)

        async def all_rounds() -> list[Row]:
            openai = AsyncOpenAI(base_url=running.fleet.options.url, api_key="none", timeout=600)
            async with triton.InferenceServerClient(grpc) as client:
                dynamo = Way(by_dynamo(openai), pids_of(running))
                ways = {"in process": Way(in_process(llm)), "dynamo": dynamo, "triton": Way(by_triton(client), (pid,))}
                for number, way in enumerate(ways.values()):
                    await measure(way, 1, [prompt(number)])
                return [await in_turn(ways, each, 1000 * each) for each in CONCURRENCY]

        rows = asyncio.run(all_rounds())
        llm.close()
    return rows


def routing(bundle: Path) -> dict[str, float]:
    """Return the prompt tokens that two workers compute, by router: groups of prompts share 96 of 112 tokens."""
    computed: dict[str, float] = {}
    for router in ("kv", "round-robin"):
        with serving(bundle, replicas=2, router=router) as running:
            before = running.metric("prompt_tokens_total")
            client = running.client()
            for turn in range(TURNS):
                for group in range(GROUPS):
                    ids = prompt(100_000 + group, 96) + prompt(200_000 + TURNS * group + turn, 16)
                    client.completions.create(model=MODEL, prompt=ids, max_tokens=1, temperature=0)
            computed[router] = running.metric("prompt_tokens_total") - before
        print(router, computed[router], flush=True)
    return {**computed, "prompt_tokens": float(TURNS * GROUPS * 112)}


def prefill_apart(bundle: Path) -> Row:
    """Measure long prompts on one worker, and on a decode worker with a prefill worker."""
    row: Row = {"prompt_length": LONG, "concurrency": LONG_REQUESTS}
    for name, workers in {"one worker": 0, "one more for prompts": 1}.items():
        with serving(bundle, prefill_workers=workers) as running:
            url = running.fleet.options.url

            async def rounds(url: str = url, pids: tuple[int, ...] = pids_of(running)) -> list[dict[str, float]]:
                way, found = Way(by_dynamo(AsyncOpenAI(base_url=url, api_key="none", timeout=600)), pids), []
                for turn in range(ROUNDS + 1):
                    prompts = [prompt(300_000 + LONG_REQUESTS * turn + each, LONG) for each in range(LONG_REQUESTS)]
                    found.append(await measure(way, LONG_REQUESTS, prompts))
                return found[1:]

            samples = asyncio.run(rounds())
            row[name] = {key: statistics.median(each[key] for each in samples) for key in samples[0]}
            row[name]["imported_tokens"] = running.metric("imported_tokens_total")
        print(name, row[name], flush=True)
    return row


def main() -> None:
    """Build the bundle, measure, write."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = build_bundle(load_config("llama"), Path(folder) / "llama", ChildRunner()).bundle.path
        figures: Row = {
            "model": "SmolLM2-135M, reference executor",
            "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        }
        figures |= {
            "threads": os.environ.get("OMP_NUM_THREADS", "all"),
            "new_tokens": TOKENS,
            "prompt_tokens": PROMPT,
            "rounds": ROUNDS,
        }
        figures |= {"throughput": throughput(bundle), "routing": routing(bundle), "prefill": prefill_apart(bundle)}
        write("serve_dynamo", figures)


if __name__ == "__main__":
    main()
