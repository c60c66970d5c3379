"""`AsyncLLM` and the engine's thread: coroutines share a batch; failing, leaving or waiting ones harm nobody."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import served_heads, tiny_chat
from tests.support.tiny_llm import GREEDY, PROMPTS
from trtkit import LLM, AsyncLLM, SamplingParams
from trtkit.errors import GenerationError, RequestError
from trtkit.llm import EngineThread, TextBundle

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.llm.engine import LLMEngine


def test_an_interrupted_batch_leaves_the_engine_empty(llm: LLM) -> None:
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (2, 40, 40)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS[:3], params, on_output=interrupt)
    assert not llm.frontend.engine.has_work


async def collect(llm: AsyncLLM, prompt: str, params: SamplingParams) -> tuple[str, Any]:
    """Return the streamed text and the last delta's output."""
    text, output = "", None
    async for delta in llm.generate(prompt, params):
        text += delta.text
        output = delta.output or output
    return text, output


def test_coroutines_share_one_batch(llm: LLM, llm_bundle: Path) -> None:
    expected = [output.outputs[0].text for output in llm.generate(PROMPTS * 3, GREEDY)]

    async def main() -> list[tuple[str, Any]]:
        running = AsyncLLM(llm_bundle, runtime="reference")
        try:
            return await asyncio.gather(*(collect(running, prompt, GREEDY) for prompt in PROMPTS * 3))
        finally:
            running.close()

    found = asyncio.run(main())
    assert [text for text, _ in found] == expected
    assert [output.outputs[0].text for _, output in found] == expected


def test_coroutines_that_fail_or_leave_harm_nobody(llm: LLM, llm_bundle: Path) -> None:
    expected = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    long = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True)

    async def leave(running: AsyncLLM) -> None:
        async for _ in running.generate(PROMPTS[1], long):
            break

    async def main() -> list[Any]:
        running = AsyncLLM(llm_bundle, runtime="reference")
        try:
            aborted = asyncio.create_task(collect(running, PROMPTS[2], long))
            tasks = [collect(running, PROMPTS[0], GREEDY), collect(running, "", GREEDY), leave(running), aborted]
            asyncio.get_running_loop().call_later(0.05, aborted.cancel)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            return [*found, await collect(running, PROMPTS[0], GREEDY)]
        finally:
            running.close()

    good, empty, left, aborted, after = asyncio.run(main())
    assert good[0] == after[0] == expected
    assert isinstance(empty, RequestError)
    assert left is None
    assert isinstance(aborted, asyncio.CancelledError)


def test_an_aborted_request_ends_with_what_it_has(llm_bundle: Path) -> None:
    async def main() -> Any:
        running = AsyncLLM(llm_bundle, runtime="reference")
        try:
            last = None
            params = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)
            async for delta in running.generate(PROMPTS[0], params, request_id="mine"):
                await running.abort("mine")
                last = delta
            return last
        finally:
            running.close()

    last = asyncio.run(main())
    gc.collect()
    assert last.finish_reason == "abort"
    assert 1 <= len(last.output.outputs[0].token_ids) < 90


def test_a_request_that_takes_long_to_prepare_delays_nobody_and_can_be_aborted(
    llm_bundle: Path, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].text
    guided = SamplingParams(guided_regex="[a-z]+", max_tokens=4)
    is_free = threading.Event()
    prepare = TextBundle.prepare

    def slow(self: TextBundle, prompt: Any, params: SamplingParams) -> Any:
        if params.guided:
            assert is_free.wait(60)
        return prepare(self, prompt, params)

    monkeypatch.setattr(TextBundle, "prepare", slow)
    engine = EngineThread(llm_bundle, runtime="reference", max_queue=3)
    news: dict[str, queue.SimpleQueue[Any]] = {name: queue.SimpleQueue() for name in "abcde"}
    try:
        for name in "abc":
            engine.submit(PROMPTS[1], guided, name, news[name].put)
        engine.submit(PROMPTS[0], GREEDY, "d", news["d"].put)
        assert str(news["d"].get(timeout=60)).startswith("3 requests are already waiting")
        engine.abort("a")
        assert str(news["a"].get(timeout=60)).startswith("a: the request was aborted")
        engine.submit(PROMPTS[0], GREEDY, "e", news["e"].put)
        text = ""
        while (delta := news["e"].get(timeout=60)).output is None:
            text += delta.text
        assert text + delta.text == wanted
        is_free.set()
        assert news["b"].get(timeout=60).token_ids
    finally:
        is_free.set()
        engine.close()
    assert news["a"].empty()


def test_work_on_the_engine_and_after_steps_is_done_in_its_thread(llm_bundle: Path) -> None:
    steps: list[tuple[str, int]] = []
    tested = EngineThread(
        llm_bundle,
        lambda engine: steps.append((threading.current_thread().name, engine.statistics.steps)),
        runtime="reference",
    )
    assert tested.run(lambda _: threading.current_thread().name).result() == "trtkit-engine"
    assert steps == []
    with pytest.raises(ZeroDivisionError):
        tested.run(lambda _: 1 // 0).result()
    news: queue.SimpleQueue[Any] = queue.SimpleQueue()
    tested.submit(PROMPTS[0], GREEDY, "a", news.put)
    while news.get().output is None:
        pass
    assert tested.run(lambda engine: engine.free_slots).result() == tested.frontend.engine.slots.count
    assert steps == [("trtkit-engine", count) for count in range(1, len(steps) + 1)]
    assert len(steps) > 1
    tested.close()
    with pytest.raises(GenerationError, match="the engine has stopped"):
        tested.run(lambda engine: engine.free_slots).result()


def test_an_engine_that_hangs_shows_it_and_an_idle_one_does_not(llm_bundle: Path) -> None:
    may_go, news = threading.Event(), queue.SimpleQueue[Any]()

    def wait(_: Any) -> None:
        may_go.wait(60)

    thread = EngineThread(llm_bundle, wait, runtime="reference")
    assert thread.silent_s == 0
    thread.submit("a", SamplingParams(temperature=0, max_tokens=1), "only", news.put)
    before = 0.0
    for _ in range(3):
        while thread.silent_s <= before + 0.01:
            pass
        before = thread.silent_s
    may_go.set()
    news.get(timeout=60)
    thread.run(lambda _: None).result()
    while thread.silent_s > 0:
        pass
    thread.close()


@pytest.fixture(scope="module")
def guessing_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Logits of every token: linear caches, pages, and heads that guess."""
    folder = tmp_path_factory.mktemp("guessing")
    return {
        "linear": tiny_chat.build(folder / "linear"),
        "paged": tiny_chat.build(folder / "paged", "llm.kv=paged"),
        "heads": served_heads.build(folder / "heads"),
    }


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["linear", "paged", "heads"])
def test_requests_whose_tokens_are_guessed_have_the_answers_they_have_alone(
    guessing_bundles: dict[str, Path], kind: str, count: int
) -> None:
    bundle = guessing_bundles[kind]
    words = ["the sky", "a sea", "any fire", "one and one and one and one"]
    prompts = [f"{words[index % 4]} {words[index % 3]} is {index % 20} is" for index in range(count)]
    heats = (0.0, 0.8, 2.0)
    params = [
        SamplingParams(temperature=heats[index % 3], seed=index % 7, max_tokens=tokens, ignore_eos=True)
        for index in range(count)
        for tokens in [4 + index % 13 if index % 3 else 50]  # greedy ones repeat themselves in the end
    ]
    with LLM(bundle, speculate=0 if kind == "heads" else None) as llm:
        cases = {(prompt, str(each)): (prompt, each) for prompt, each in zip(prompts, params, strict=True)}
        alone = {key: llm.generate([prompt], each)[0].outputs[0].text for key, (prompt, each) in cases.items()}

    async def leave(running: AsyncLLM, index: int) -> None:
        async for _ in running.generate(prompts[index], params[index]):
            break

    async def main() -> tuple[list[Any], Counts]:
        running = AsyncLLM(bundle, **({"speculate": 2} if kind == "heads" else {"lookup": 4}))
        try:
            work = [collect(running, prompt, each) for prompt, each in zip(prompts, params, strict=True)]
            leaving = [leave(running, index) for index in range(0, count, 10)]
            outputs = await asyncio.gather(*work, *leaving)
            async with asyncio.timeout(60):
                while (after := await asyncio.wrap_future(running.thread.run(counts))).has_work:
                    await asyncio.sleep(0.01)
            return outputs[:count], after
        finally:
            running.close()

    outputs, after = asyncio.run(main())
    expected = [alone[prompt, str(each)] for prompt, each in zip(prompts, params, strict=True)]
    assert [text for text, _ in outputs] == expected
    assert after.drafted > after.accepted > 0
    assert (after.waiting, after.free_slots, after.held_pages) == (0, 3, 0)


@dataclass(frozen=True)
class Counts:
    """What an engine holds when nobody asks it anything. held_pages: of running requests."""

    has_work: bool
    waiting: int
    free_slots: int
    held_pages: int
    drafted: int
    accepted: int


def counts(engine: LLMEngine) -> Counts:
    pages, numbers = engine.execution.cache.pages, engine.statistics
    return Counts(
        engine.has_work,
        engine.waiting,
        engine.free_slots,
        0 if pages is None else pages.held,
        numbers.drafted_tokens,
        numbers.accepted_tokens,
    )
