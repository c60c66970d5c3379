"""LoRA adapters per request, on engines and on the reference decoder, against PEFT's model of each."""

from __future__ import annotations

import gc
import json
import resource
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import LlamaForCausalLM

from tests.support import tiny_llm
from tests.support.adapters import greedy_tokens, save_adapter
from tests.support.tiny_llm import PROMPTS
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import open_bundle
from trtkit.config.load import load_config
from trtkit.errors import ProblemsError, RequestError, SourceError
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Ran
    from tests.simulated_tensorrt import Simulated

RANKS = (1, 2, 3, 4, 5, 7, 8, 12)
MOST = 24
"""Ranks that fit at once: fewer than those of all adapters."""
COUNT = 10
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
SHARED = "the quick brown fox jumps over the lazy dog, and says: 1, 2, 3! do not go gentle into that good night. "
RUNTIMES = pytest.mark.parametrize("runtime", ["reference", "tensorrt"])
CACHES = pytest.mark.parametrize("kv", ["linear", "paged"])


@dataclass(frozen=True)
class Models:
    """A model, its adapters by rank, and bundles that take adapters."""

    folder: Path

    @cached_property
    def hf(self) -> Any:
        return LlamaForCausalLM.from_pretrained(self.folder / "hf").eval()

    def adapter(self, rank: int) -> Path:
        return self.folder / f"adapter-{rank}"

    @property
    def adapters(self) -> dict[str, Path]:
        return {f"rank-{rank}": self.adapter(rank) for rank in RANKS}

    def tokens(self, prompt: str, name: str | None, count: int = COUNT) -> list[int]:
        ids = tiny_llm.tokenizer()(prompt).input_ids
        return greedy_tokens(self.hf, None if name is None else self.adapters[name], ids, count)

    def bundle(self, kv: str) -> Path:
        return self.folder / kv


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    models = Models(tmp_path_factory.mktemp("adapters"))
    tiny_llm.save(models.folder / "hf")
    for rank in RANKS:
        targets = ["q_proj", "v_proj", "down_proj"] if rank % 2 else ["k_proj", "o_proj", "gate_proj", "up_proj"]
        save_adapter(models.adapter(rank), models.hf, rank, r=rank, target_modules=targets)
    for kv in ("linear", "paged"):
        sizes = "max_batch_size: 4, max_sequence_length: 96, max_prefill_length: 16, logits: all"
        config = models.folder / f"{kv}.yaml"
        lora = f"lora: {{max_rank_sum: {MOST}}}"
        config.write_text(f"source: {{hf: hf}}\nprecision: fp32\nllm: {{{sizes}, kv: {kv}, {lora}}}\n")
        build_bundle(load_config(str(config)), models.bundle(kv), new_runner())
    return models


def opened(models: Models, kv: str, runtime: str, gpu: Simulated, **options: Any) -> LLM:
    if runtime == "tensorrt":
        gpu.plans.add(open_bundle(models.bundle(kv)))
    return LLM(models.bundle(kv), runtime=runtime, **options)


def with_adapter(name: str | None, params: SamplingParams = GREEDY) -> SamplingParams:
    return replace(params, adapter=name)


@RUNTIMES
@CACHES
def test_requests_of_eight_adapters_answer_as_peft(models: Models, kv: str, runtime: str, gpu: Simulated) -> None:
    """Sixteen requests, of which four run at once; their adapters take turns in a memory that holds fewer."""
    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(16)]
    names = [None, *models.adapters][::-1]
    chosen = [names[index % 9] for index in range(16)]
    with opened(models, kv, runtime, gpu, lora=models.adapters) as llm:
        assert llm.adapters == list(models.adapters)
        outputs = llm.generate(prompts, [with_adapter(name) for name in chosen])
        assert llm.frontend.adapters is not None
        assert len(llm.frontend.adapters.residents) < len(RANKS)
    for prompt, name, output in zip(prompts, chosen, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == models.tokens(prompt, name)


@pytest.mark.parametrize(("runtime", "slots"), [("reference", 4), ("reference", 1), ("tensorrt", 4)])
@CACHES
def test_a_beginning_is_shared_within_an_adapter_only(
    models: Models, kv: str, runtime: str, slots: int, gpu: Simulated
) -> None:
    """The same prompt again and again: by the model, by two adapters, and by each of them once more.

    What one slot, or its pages, has no room for is kept on the host.
    """
    order = [None, "rank-4", "rank-5", "rank-4", None, "rank-5"]
    with opened(models, kv, runtime, gpu, lora=models.adapters, slots=slots) as llm:
        reused = []
        for name in order:
            (output,) = llm.generate(SHARED, with_adapter(name))
            assert list(output.outputs[0].token_ids) == models.tokens(SHARED, name)
            reused.append(output.metrics.reused_tokens)
    assert reused[:3] == [0, 0, 0]
    assert min(reused[3:]) >= 16


@CACHES
def test_requests_at_once_share_within_an_adapter_only(models: Models, kv: str, gpu: Simulated) -> None:
    """By the time that the last two begin, the model and an adapter have both computed the prompt."""
    order = [None, "rank-4", None, "rank-4"]
    with opened(models, kv, "reference", gpu, lora=models.adapters) as llm:
        outputs = llm.generate([SHARED] * 4, [with_adapter(name) for name in order])
    for name, output in zip(order, outputs, strict=True):
        assert list(output.outputs[0].token_ids) == models.tokens(SHARED, name)
    reused = [output.metrics.reused_tokens for output in outputs]
    assert reused[:2] == [0, 0]
    assert min(reused[2:]) >= 16


def test_files_of_cached_beginnings_are_shared_within_an_adapter_only(
    models: Models, gpu: Simulated, tmp_path: Path
) -> None:
    """Engines after one another, each with one adapter, the first that it knows."""
    reused = []
    for rank in (4, 5, 4):
        lora = {"one": models.adapter(rank)}
        with opened(models, "paged", "reference", gpu, lora=lora, cache_dir=tmp_path / "cache") as llm:
            (output,) = llm.generate(SHARED, with_adapter("one"))
            assert list(output.outputs[0].token_ids) == models.tokens(SHARED, f"rank-{rank}")
            reused.append(output.metrics.reused_tokens)
    assert reused[:2] == [0, 0]
    assert reused[2] >= 16


@CACHES
def test_speculation_and_beams_keep_the_adapter(models: Models, kv: str, gpu: Simulated) -> None:
    prompts, names = PROMPTS[:3], ["rank-7", None, "rank-8"]
    with opened(models, kv, "reference", gpu, lora=models.adapters, lookup=3) as llm:
        outputs = llm.generate(prompts, [with_adapter(name) for name in names])
        assert [list(output.outputs[0].token_ids) for output in outputs] == list(map(models.tokens, prompts, names))
    params = SamplingParams(temperature=0, max_tokens=6, num_beams=3, n=2, ignore_eos=True)
    with opened(models, kv, "reference", gpu, lora=models.adapters) as llm:
        together = llm.generate([SHARED, SHARED], [with_adapter(name, params) for name in ("rank-8", "rank-7")])
        alone = [llm.generate(SHARED, with_adapter(name, params))[0] for name in ("rank-8", "rank-7")]
    answers = [[each.token_ids for each in output.outputs] for output in (*together, *alone)]
    assert answers[:2] == answers[2:]
    assert answers[0] != answers[1]


def test_adapters_come_and_go_while_requests_run(models: Models, gpu: Simulated) -> None:
    with opened(models, "linear", "reference", gpu, slots=1) as llm:
        assert llm.adapters == []
        with pytest.raises(RequestError, match="no adapter `fast` is loaded") as caught:
            llm.generate("the", with_adapter("fast"))
        assert caught.value.fix == "loaded: none"
        llm.load_adapter("fast", models.adapter(5))
        running, waiting = (llm.frontend.add(PROMPTS[0], with_adapter("fast")) for _ in range(2))
        llm.frontend.step()
        llm.unload_adapter("fast")
        with pytest.raises(RequestError, match="no adapter `fast` is loaded"):
            llm.generate("the", with_adapter("fast"))
        llm.load_adapter("fast", models.adapter(8))  # another one of the name
        (other,) = llm.generate(PROMPTS[0], with_adapter("fast"))
        for job in (running, waiting):
            assert list(job.completions[0].token_ids) == models.tokens(PROMPTS[0], "rank-5")
        assert list(other.outputs[0].token_ids) == models.tokens(PROMPTS[0], "rank-8")
        llm.unload_adapter("fast")
        assert llm.frontend.adapters is not None
        assert (llm.frontend.adapters.free_ranks, llm.frontend.adapters.residents) == (MOST, [])


@RUNTIMES
def test_adapters_stay_loaded_while_a_model_sleeps(models: Models, runtime: str, gpu: Simulated) -> None:
    with opened(models, "linear", runtime, gpu, lora={"rank-5": models.adapter(5)}) as llm:
        llm.load_adapter("rank-8", models.adapter(8))
        for _ in range(2):
            outputs = llm.generate([PROMPTS[0]] * 2, [with_adapter(name) for name in llm.adapters])
            tokens = [list(output.outputs[0].token_ids) for output in outputs]
            assert tokens == [models.tokens(PROMPTS[0], name) for name in ("rank-5", "rank-8")]
            llm.sleep()
            llm.wake()


def test_requests_wait_for_adapters_that_do_not_fit_beside_those_that_run(models: Models, gpu: Simulated) -> None:
    """Ranks 12, 8 and 7 are more than 24: the last waits until a request has ended, and two later ones pass it."""
    names, prompts = ["rank-12", "rank-8", "rank-7", None, "rank-8"], [*PROMPTS, *PROMPTS][:5]
    with opened(models, "linear", "reference", gpu, lora=models.adapters) as llm:
        outputs = llm.generate(prompts, [with_adapter(name) for name in names])
    waited = [output.metrics.ttft_s for output in outputs]
    assert waited[2] > max(waited[:2] + waited[3:])
    assert [list(output.outputs[0].token_ids) for output in outputs] == list(map(models.tokens, prompts, names))


def churn(models: Models, llm: LLM, count: int) -> None:
    """Load and unload adapters while requests with them, and without, begin and end."""
    rng, frontend = np.random.default_rng(0), llm.frontend
    for index in range(count):
        name, rank = f"adapter-{index}", int(rng.choice(RANKS))
        llm.load_adapter(name, models.adapter(rank))
        params = replace(with_adapter(name if index % 3 else None), max_tokens=int(rng.integers(1, 6)))
        frontend.add(PROMPTS[index % len(PROMPTS)], params)
        for _ in range(int(rng.integers(0, 4))):
            frontend.step()
        llm.unload_adapter(name)
    while frontend.jobs:
        frontend.step()
    frontend.step()


def resident_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


@pytest.mark.slow
def test_four_hundred_more_loads_and_unloads_leave_memory_flat(models: Models, gpu: Simulated) -> None:
    """The tolerance is half of what the matrices of 400 adapters take: 3.3 MiB."""
    sizes = [(models.adapter(rank) / "adapter_model.safetensors").stat().st_size for rank in RANKS]
    leaked_mib = 400 * sum(sizes) / len(sizes) / 2**20
    with opened(models, "paged", "reference", gpu, max_queue=400) as llm:
        churn(models, llm, 100)
        early = resident_mib()
        churn(models, llm, 400)
        grown = resident_mib() - early
    assert grown < leaked_mib / 2


@CACHES
@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_loads_and_unloads_leave_nothing(models: Models, kv: str, count: int, gpu: Simulated) -> None:
    with opened(models, kv, "reference", gpu, max_queue=count) as llm:
        adapters, pages = llm.frontend.adapters, llm.frontend.execution.cache.pages
        assert adapters is not None
        churn(models, llm, count)
        assert (adapters.names, adapters.residents, adapters.free_ranks) == ([], [], MOST)
        assert vars(adapters)["_numbers"] == {}
        assert vars(adapters)["_unloaded"] == set()
        assert llm.frontend.execution.adapters.ranks == 0  # type: ignore[union-attr]
        assert pages is None or pages.free == pages.pages - 1
        (output,) = llm.generate(PROMPTS[0], GREEDY)
        assert list(output.outputs[0].token_ids) == models.tokens(PROMPTS[0], None)


def test_what_cannot_be_loaded_is_refused(models: Models, gpu: Simulated, tmp_path: Path) -> None:
    wide = save_adapter(tmp_path / "wide", models.hf, r=MOST + 1, target_modules=["q_proj"])
    head = save_adapter(tmp_path / "head", models.hf, r=2, target_modules=["lm_head", "q_proj"])
    with opened(models, "linear", "reference", gpu) as llm:
        with pytest.raises(ProblemsError, match=r"its rank, 25, is above `llm\.lora\.max_rank_sum`, 24"):
            llm.load_adapter("wide", wide)
        with pytest.raises(ProblemsError, match="it changes `lm_head`, which the engine takes no adapters for"):
            llm.load_adapter("head", head)
        with pytest.raises(SourceError, match="no such folder"):
            llm.load_adapter("none", tmp_path / "nowhere")
        llm.load_adapter("one", models.adapter(1))
        with pytest.raises(RequestError, match="an adapter `one` is loaded already"):
            llm.load_adapter("one", models.adapter(2))
        with pytest.raises(RequestError, match="no adapter `ones` is loaded") as caught:
            llm.unload_adapter("ones")
        assert caught.value.fix == "did you mean `one`? loaded: `one`"


def test_the_command_answers_with_adapters(models: Models, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    file, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    names = ["rank-5", None, "rank-8"]
    file.write_text("\n".join(json.dumps({"prompt": PROMPTS[0], "adapter": name}) for name in names))
    adapters = [f"--lora={name}={models.adapters[name]}" for name in ("rank-5", "rank-8")]
    fixed = ("--no-chat", "--ignore-eos", "--max-tokens", COUNT, "--runtime", "reference", "-q")
    ran = trtkit("generate", models.bundle("linear"), "--prompts", file, "--output", output, *adapters, *fixed)
    assert ran.code == 0, ran.err
    answers = [json.loads(line)["token_ids"] for line in output.read_text().splitlines()]
    assert answers == [models.tokens(PROMPTS[0], name) for name in names]
    other = ["--lora", f"rank-5={models.adapter(7)}", adapters[1]]
    ran = trtkit("generate", models.bundle("linear"), "--prompts", file, "--output", output, *other, *fixed)
    assert ran.code == 2
    assert "`--lora rank-5`" in ran.err
    ran = trtkit("generate", models.bundle("linear"), PROMPTS[0], "--adapter", "fr", adapters[0], *fixed)
    assert (ran.code, "no adapter `fr` is loaded" in ran.err) == (2, True)
    ran = trtkit("generate", models.bundle("linear"), PROMPTS[0], "--lora", "fr", *fixed)
    assert (ran.code, "`fr` is not NAME=FOLDER" in ran.err) == (2, True)


def test_an_engine_without_adapters_says_how_to_build_one_with(tiny_bundle: Path, models: Models) -> None:
    with LLM(tiny_bundle, runtime="reference") as llm:
        for work in (
            lambda: llm.load_adapter("one", models.adapter(1)),
            lambda: llm.generate("the", with_adapter("one")),
            lambda: llm.unload_adapter("one"),
        ):
            with pytest.raises(RequestError, match="the engine takes no LoRA adapters") as caught:
                work()
            assert caught.value.fix.startswith("build with `--set llm.lora.max_rank_sum=64`")
        assert llm.adapters == []


def test_inspect_shows_the_inputs_of_adapters_in_a_row(models: Models, trtkit: Callable[..., Ran]) -> None:
    ran = trtkit("inspect", models.bundle("linear"))
    text = "layers.0.attention.q.lora_a .. layers.1.mlp.down.lora_b fp32, of LoRA adapters; rank_owners int32"
    assert text in " ".join(ran.out.replace("│", " ").split())
    assert ran.out.count("lora_a") == 1
