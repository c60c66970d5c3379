"""A server after its warm-up: 200 prompts of any length compile and capture nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.integration.engines.planted import planted
from tests.selection import slow_unless
from tests.simulated_tensorrt.residency import watch
from tests.support import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.llm.engine_thread import EngineThread
from trtkit.llm.execution.engine import _MOST_GRAPHS, few_slots
from trtkit.llm.sampling import kernel

if TYPE_CHECKING:
    from tests.simulated_tensorrt import Simulated

KINDS = {
    "packed": "batching: packed",
    "separate": "batching: separate",
    "window": "batching: packed, kv_window: used",
    "paged": "batching: packed, kv: paged, page_tokens: 16",
}
PROMPTS, SLOTS, MOST_COMPILED = 200, 4, 16


@pytest.fixture(scope="module", params=slow_unless(lambda kind: kind in ("packed", "paged"), KINDS))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp(request.param), "m", KINDS[request.param]))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp("packed"), "m", KINDS["packed"]))


def generate(llm: LLM, count: int) -> None:
    random = np.random.default_rng(1)
    prompts = [random.integers(6, 300, int(random.integers(1, 60))).tolist() for _ in range(count)]
    params = [SamplingParams(temperature=0, max_tokens=int(random.integers(1, 9))) for _ in prompts]
    llm.generate(prompts, params)


def test_nothing_is_compiled_or_captured_for_200_random_prompts(bundle: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(bundle)
    with LLM(bundle.path, runtime="tensorrt", slots=SLOTS, host_cache_gib=0) as llm:
        llm.frontend.warm_up()
        (engine,) = gpu.runtimes[-1].engines
        compiled, captures = len(engine.compiled), gpu.device.captures
        assert 0 < compiled < MOST_COMPILED
        generate(llm, PROMPTS)
        assert len(engine.compiled) == compiled
        assert gpu.device.captures == captures > 0
        assert len(engine.compiled_later) > compiled  # mixed steps have any shape, and wait for none
        assert all(profile == 0 for profile, _ in engine.compiled_later)


def test_without_a_warm_up_the_first_steps_compile_and_capture(packed: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(packed)
    with LLM(packed.path, runtime="tensorrt", slots=SLOTS) as llm:
        (engine,) = gpu.runtimes[-1].engines
        assert not engine.compiled
        generate(llm, 12)
        assert len(engine.compiled) > 1
        assert gpu.device.captures > 1


def test_contexts_exist_when_a_model_is_open(packed: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(packed)
    with LLM(packed.path, runtime="tensorrt", slots=SLOTS):
        (engine,) = gpu.runtimes[-1].engines
        assert len(engine.contexts) == 2


def test_prompts_that_compile_while_they_wait_are_seen(packed: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(packed)
    mistake = "trtkit.runtime.runtime_cache", "strategies.EAGER if is_captured else strategies.LAZY", "strategies.EAGER"
    with planted(*mistake), LLM(packed.path, runtime="tensorrt", slots=SLOTS) as llm:
        llm.frontend.warm_up()
        (engine,) = gpu.runtimes[-1].engines
        generate(llm, 40)
        assert len(engine.compiled) > MOST_COMPILED


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 8])
def test_a_run_covers_its_slots_with_few_sizes(count: int) -> None:
    spans = [slice(first, stop) for first in range(count) for stop in range(first + 1, count + 1)]
    runs = {(span.start, span.stop): few_slots(span, count) for span in spans}
    for (start, stop), run in runs.items():
        assert 0 <= run.start <= start < stop <= run.stop <= count
        assert run.stop - run.start <= max(4 * (stop - start) - 4, 1) or run == slice(0, count)
    assert len({run.stop - run.start for run in runs.values()}) <= count.bit_length() + 1


@pytest.mark.parametrize("count", [16, 31, 32, 64, 100, 256])
def test_graphs_of_all_steps_of_many_linear_slots_are_kept(count: int) -> None:
    """Each with two draws; a run of more rows than decode has a 16th of the slots, or four times as many as decode."""
    spans = [slice(first, stop) for first in range(count) for stop in range(first + 1, count + 1)]
    runs = [few_slots(span, count) for span in spans]
    assert 2 * len({(run.start, run.stop) for run in runs}) <= _MOST_GRAPHS
    for span, run in zip(spans, runs, strict=True):
        rows, ran = span.stop - span.start, run.stop - run.start
        assert run.start <= span.start < span.stop <= run.stop
        assert ran <= max(4 * rows, count // 4) or run == slice(0, count)


def test_steps_are_launched_where_a_capture_fails(packed: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(packed)
    params = SamplingParams(temperature=0, max_tokens=6)
    answers = []
    for failing in (0, 1 << 20):
        gpu.device.failing_captures, gpu.device.captures = failing, 0
        with LLM(packed.path, runtime="tensorrt", slots=SLOTS) as llm:
            answers.append([output.outputs[0].token_ids for output in llm.generate([[20, 30], [40]], params)])
        assert 0 < gpu.device.captures < 6  # no step is captured again
    assert answers[0] == answers[1]


def test_a_server_is_warm_before_it_is_ready(packed: Bundle, gpu: Simulated, caplog: pytest.LogCaptureFixture) -> None:
    """Graphs are captured, progress is logged, kernels are on disk, and closing happens in the engine's thread."""
    gpu.plans.add(packed)
    with caplog.at_level(logging.INFO, "trtkit.engine"):
        thread = EngineThread(packed.path, runtime="tensorrt", slots=SLOTS)
    assert gpu.device.captures > 0
    assert any("warming up: decode step" in record.getMessage() for record in caplog.records)
    kept = thread.frontend.execution.engine._cache._file  # type: ignore[attr-defined]
    assert kept.is_file()
    thread.close()
    assert not thread._thread.is_alive()


def test_a_kernel_that_does_not_run_leaves_sampling_to_torch(
    packed: Bundle, gpu: Simulated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a machine without a C compiler, where Triton's first launch raises this."""
    gpu.plans.add(packed)
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=6)
    answers = []
    for has_compiler in (True, False):
        with monkeypatch.context() as patch, watch(gpu.device, patch.setattr):
            if not has_compiler:
                patch.setattr(kernel, "kernels", no_compiler)
            with LLM(packed.path, runtime="tensorrt", slots=SLOTS) as llm:
                answers.append([output.outputs[0].token_ids for output in llm.generate([[20, 30], [40]], params)])
    assert answers[0] == answers[1]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "tokens are sampled by torch, which is slower" in warnings[0]
    assert "Failed to find C compiler" in warnings[0]
    assert "apt-get install gcc" in warnings[0]


def no_compiler(**_options: Any) -> Any:
    raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.")
