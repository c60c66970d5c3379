"""Sleeping models free the device's memory; after they wake, answers are unchanged."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from tests.selection import slow_unless
from tests.support import tiny_llm
from trtkit import LLM, AsyncLLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.errors import BackendError, GenerationError, OverloadedError
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated

PARAMS = [tiny_llm.GREEDY, SamplingParams(temperature=1.1, seed=3, max_tokens=10)] * 2


@pytest.fixture(scope="module", params=["linear", "paged"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sleeper")
    tiny_llm.save(folder / "hf")
    sizes = f"max_batch_size: 4, max_sequence_length: 96, max_prefill_length: 16, logits: all, kv: {request.param}"
    (folder / "m.yaml").write_text(f"source: {{hf: {folder}/hf}}\nllm: {{{sizes}}}\n")
    return build_bundle(load_config(str(folder / "m.yaml")), folder / "bundle", new_runner()).bundle.path


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.generate(tiny_llm.PROMPTS, PARAMS)]


@pytest.mark.parametrize(
    "options", slow_unless(lambda options: not options, [{}, {"lookup": 3}, {"draft": True}]), ids=str
)
def test_memory_goes_and_comes_back_with_the_same_answers(
    options: dict[str, Any], bundle: Path, gpu: Simulated
) -> None:
    gpu.plans.add(open_bundle(bundle))
    options = {"draft": bundle} if "draft" in options else options
    gc.collect()
    empty = gpu.device.allocated_bytes
    with LLM(bundle, runtime="tensorrt", **options) as llm:
        opened = gpu.device.allocated_bytes
        before = answers(llm)
        assert gpu.device.allocated_bytes >= opened > sum(open_bundle(bundle).manifest.totals.weight_bytes.values())
        for _ in range(2):
            llm.sleep()
            llm.sleep()  # once more changes nothing
            assert gpu.device.allocated_bytes == empty == 0
            with pytest.raises(GenerationError, match="the model is asleep"):
                answers(llm)
            llm.wake()
            llm.wake()
            assert gpu.device.allocated_bytes == opened
            assert llm.statistics.steps == 0
            assert answers(llm) == before
    with LLM(bundle, runtime="reference") as reference:
        assert answers(reference) == before


def test_a_stream_keeps_a_model_awake(bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))
    with LLM(bundle, runtime="tensorrt") as llm:
        stream = llm.stream("do not go", tiny_llm.GREEDY)
        first = next(stream)
        with pytest.raises(GenerationError, match="requests are running"):
            llm.sleep()
        rest = [token for delta in stream for token in delta.token_ids]
        llm.sleep()
        llm.wake()
        (output,) = llm.generate("do not go", tiny_llm.GREEDY)
        assert output.outputs[0].token_ids == (*first.token_ids, *rest)


def test_a_model_that_cannot_wake_stays_asleep(bundle: Path, gpu: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.plans.add(open_bundle(bundle))
    with LLM(bundle, runtime="tensorrt") as llm:
        before = answers(llm)
        llm.sleep()
        with monkeypatch.context() as patch:
            patch.setattr(gpu.plans, "network", lambda _plan: None)
            with pytest.raises(BackendError, match="cannot load the plan"):
                llm.wake()
        assert gpu.device.allocated_bytes == 0
        llm.wake()
        assert answers(llm) == before


def test_coroutines_wait_for_sleep_and_are_refused_until_the_model_wakes(bundle: Path, gpu: Simulated) -> None:
    gpu.plans.add(open_bundle(bundle))

    async def tokens(llm: AsyncLLM, prompt: str) -> list[int]:
        return [token async for delta in llm.generate(prompt, tiny_llm.GREEDY) for token in delta.token_ids]

    async def run() -> None:
        llm = AsyncLLM(bundle, runtime="tensorrt")
        expected = [await tokens(llm, prompt) for prompt in tiny_llm.PROMPTS]
        running = [asyncio.create_task(tokens(llm, prompt)) for prompt in tiny_llm.PROMPTS]
        while not llm.thread.frontend.jobs:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        asleep = [asyncio.create_task(llm.sleep()) for _ in range(2)]
        assert await asyncio.gather(*running) == expected  # they end first
        await asyncio.gather(*asleep)
        assert gpu.device.allocated_bytes == 0
        with pytest.raises(OverloadedError, match="the model is asleep"):
            await tokens(llm, "do not")
        with pytest.raises(GenerationError, match="the model is asleep"):
            llm.thread.run(lambda engine: engine.free_slots).result()
        assert llm.thread.silent_s == 0
        await llm.wake()
        assert [await tokens(llm, prompt) for prompt in tiny_llm.PROMPTS] == expected
        llm.close()
        with pytest.raises(GenerationError, match="the engine has stopped"):
            await llm.sleep()

    asyncio.run(run())
