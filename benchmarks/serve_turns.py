"""Conversations on two Dynamo workers: what the router gains by knowing the host's cache, too.

`python -m benchmarks.serve_turns` writes results/serve_turns.json. Two workers with SmolLM2 serve more conversations
than their slots hold, with a router that knows the slots' contents, and with one that knows the host's blocks too,
alternately. Then one worker is killed halfway, and each answer is compared with that of a single undisturbed worker: in
fp16, where rounding turns near ties of logits into ties, and in fp32.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI

from benchmarks.measure import write
from tests.support.dynamo import MODEL, Served, serving
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.deployment.dynamo import fleet
from trtkit.deployment.dynamo.options import MODULE
from trtkit.jobs.runner import ChildRunner

CHATS, TURNS, ROUNDS = 8, 3, 2
FIRST_WORDS, TURN_WORDS, TOKENS = 160, 25, 8
SLOTS, CONCURRENCIES = 2, (1, 2)
WORDS = (
    "river stone market winter engine garden letter bridge harvest signal mountain copper window teacher island "
    "morning paper forest machine silver harbor story kitchen planet summer doctor village thunder mirror desert"
)
WORKERS = {"device only": "benchmarks.device_events", "all tiers": MODULE}


@dataclass
class Turns:
    """What clients saw: prompt tokens and cached ones, seconds to first tokens, answers by (conversation, turn)."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    first_token_s: list[float] = field(default_factory=list)
    answers: dict[tuple[int, int], str] = field(default_factory=dict)


async def converse(served: Served, concurrency: int, kill_at: int | None = None) -> Turns:
    """Return the figures of turns after each conversation's first. kill_at: the answer after which to kill a worker.

    Each concurrency has its own conversations, which start together, so that both workers get some.
    """
    client = AsyncOpenAI(base_url=served.fleet.options.url, api_key="none", timeout=600, max_retries=0)
    seen, r = Turns(), random.Random(concurrency)
    chats: list[list[Any]] = [[] for _ in range(CHATS)]
    kills = [] if kill_at is None else [kill_at]

    async def ask(turn: int, chat: int, free: asyncio.Semaphore) -> None:
        async with free:
            if kills and len(seen.answers) >= kills[0]:
                kills.clear()
                os.kill(served.fleet.workers[0].process.pid, signal.SIGKILL)
            started, first_s, pieces, usage = time.perf_counter(), None, [], None
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=chats[chat],
                max_tokens=TOKENS,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            async for piece in stream:
                usage = piece.usage or usage
                for choice in piece.choices:
                    if choice.delta.content:
                        first_s = first_s or time.perf_counter() - started
                        pieces.append(choice.delta.content)
        assert usage is not None
        answer = seen.answers[chat, turn] = "".join(pieces)
        chats[chat].append({"role": "assistant", "content": answer})
        if turn:
            details = usage.prompt_tokens_details
            seen.prompt_tokens += usage.prompt_tokens
            seen.cached_tokens += 0 if details is None else details.cached_tokens or 0
            seen.output_tokens += usage.completion_tokens
            seen.first_token_s.append(first_s or time.perf_counter() - started)

    started = time.perf_counter()
    for turn in range(TURNS):
        for messages in chats:
            text = " ".join(r.choices(WORDS.split(), k=TURN_WORDS if turn else FIRST_WORDS))
            messages.append({"role": "user", "content": text})
        if turn == 1:
            started = time.perf_counter()
        free = asyncio.Semaphore(concurrency if turn else CHATS)
        await asyncio.gather(*(ask(turn, chat, free) for chat in r.sample(range(CHATS), CHATS)))
    seen.seconds = time.perf_counter() - started
    return seen


def run(bundle: Path, worker: str, replicas: int = 2, kill_at: int | None = None) -> dict[int, Turns]:
    """Return the turns' figures at each concurrency, on new workers that run the module `worker`."""
    fleet.MODULE = worker  # type: ignore[attr-defined]
    with serving(bundle, replicas=replicas, slots=SLOTS) as served:
        seen = {}
        for concurrency in CONCURRENCIES if kill_at is None else CONCURRENCIES[-1:]:
            seen[concurrency] = asyncio.run(converse(served, concurrency, kill_at))
            print(worker, replicas, kill_at, concurrency, row([seen[concurrency]]), flush=True)
    return seen


def row(runs: list[Turns]) -> dict[str, float]:
    """Return the figures of several runs together."""
    waits = [1e3 * each for run in runs for each in run.first_token_s]
    return {
        "hit_rate": round(sum(run.cached_tokens for run in runs) / sum(run.prompt_tokens for run in runs), 3),
        "ttft_mean_ms": round(statistics.mean(waits), 1),
        "ttft_p99_ms": round(float(np.percentile(waits, 99)), 1),
        "output_tokens_per_s": round(sum(run.output_tokens for run in runs) / sum(run.seconds for run in runs), 2),
        "requests": len(waits),
    }


def wrong(seen: Turns, expected: Turns) -> int:
    """Return how many answers differ from the expected ones or are missing."""
    return sum(seen.answers.get(key) != answer for key, answer in expected.answers.items())


def wrong_in_fp32(folder: Path) -> int:
    """Return how many answers of two workers, of which one is killed, differ from a single worker's, in fp32."""
    bundle = build_bundle(load_config("llama", ["precision=fp32"]), folder, ChildRunner()).bundle.path
    alone, killed = (
        run(bundle, WORKERS["all tiers"], replicas, kill_at)[CONCURRENCIES[-1]]
        for replicas, kill_at in ((1, None), (2, CHATS * TURNS // 2))
    )
    return wrong(killed, alone)


def main() -> None:
    """Build the bundle, measure, write."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = build_bundle(load_config("llama"), Path(folder) / "llama", ChildRunner()).bundle.path
        alone = run(bundle, WORKERS["all tiers"], replicas=1)
        runs: dict[str, list[dict[int, Turns]]] = {name: [] for name in WORKERS}
        for _ in range(ROUNDS):
            for name, worker in WORKERS.items():
                runs[name].append(run(bundle, worker))
        killed = run(bundle, WORKERS["all tiers"], kill_at=CHATS * TURNS // 2)
        exact = wrong_in_fp32(Path(folder) / "fp32")
    figures: dict[str, Any] = {
        "model": "SmolLM2-135M, reference executor, two workers of one core",
        "conversations": CHATS,
        "turns": TURNS,
        "slots_per_worker": SLOTS,
        "rounds": ROUNDS,
        "answers_of_each_run": CHATS * TURNS,
        "wrong answers in fp32, a worker killed": exact,
    }
    for concurrency, expected in alone.items():
        rows: dict[str, Any] = {"one worker": row([expected])}
        for name, fleets in runs.items():
            of = [each[concurrency] for each in fleets]
            rows[name] = {**row(of), "wrong_answers": sum(wrong(each, expected) for each in of)}
        if concurrency in killed:
            seen = killed[concurrency]
            rows["all tiers, a worker killed"] = {**row([seen]), "wrong_answers": wrong(seen, expected)}
        figures[f"concurrency {concurrency}"] = rows
    write("serve_turns", figures)


if __name__ == "__main__":
    main()
