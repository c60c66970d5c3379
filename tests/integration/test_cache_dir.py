"""A cache folder on disk: the next process resumes from it, whatever happened to the last one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import tiny_llm
from tests.support.generation import PAGE_TOKENS, SLOTS, answer, caches_of, engine
from trtkit import LLM
from trtkit.errors import RequestError
from trtkit.llm.engine import CacheFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.llm.engine import LLMEngine

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
PROMPTS = [[5 + index, *range(10, 31)] for index in range(6)]
SERVE = """
import sys
from trtkit import LLM, SamplingParams

with LLM(sys.argv[1], runtime="reference", slots=1, cache_dir=sys.argv[2], cache_dir_gib=0.0004) as llm:
    for number in range(10**6):
        llm.generate([[5 + number % 40, *range(10, 60)]], SamplingParams(temperature=0, max_tokens=2))
        print(number, flush=True)
"""


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., LLMEngine]:
    def start(model: str = "m", model_type: str = "llama") -> LLMEngine:
        folder = CacheFolder(tmp_path, 1 << 20, model)
        return engine(SLOTS, model_type, cache_folder=folder, host_block_tokens=PAGE_TOKENS, min_shared_tokens=1)

    return start


@pytest.mark.parametrize("model_type", ["llama", "qwen3_next"])
@pytest.mark.parametrize("pages", [None, 40], ids=["linear", "paged"])
def test_the_next_engine_goes_on_where_the_last_one_stopped(
    model_type: str, pages: int | None, opened: Callable[..., LLMEngine], tmp_path: Path
) -> None:
    with caches_of(pages):
        first = opened(model_type=model_type)
        told = [answer(first, prompt, **GREEDY) for prompt in PROMPTS]
        first.close()
        following = [[*prompt, *tokens, 7] for prompt, tokens in zip(PROMPTS, told, strict=True)]
        expected = [answer(first, prompt, **GREEDY) for prompt in following]
        before = files_of(tmp_path)
        for model, reads in (("m", True), ("another", False)):
            second = opened(model, model_type=model_type)
            assert [answer(second, prompt, **GREEDY) for prompt in following] == expected
            known = len(PROMPTS[0]) + 4  # the last token was never read
            known -= 0 if second.execution.cache.has_states else known % PAGE_TOKENS
            assert second.statistics.restored_tokens == second.statistics.file_tokens == reads * known * len(PROMPTS)
            second.close()
        assert set(before) < set(files_of(tmp_path))


def test_damaged_files_are_computed_again(opened: Callable[..., LLMEngine], tmp_path: Path) -> None:
    first = opened()
    expected = [answer(first, prompt, **GREEDY) for prompt in PROMPTS]
    first.close()
    for index, path in enumerate(files_of(tmp_path)):
        data = bytearray(path.read_bytes())
        data[-1 - index] ^= 255
        path.write_bytes(data[: len(data) - index % 2])
    second = opened()
    assert [answer(second, prompt, **GREEDY) for prompt in PROMPTS] == expected
    assert second.statistics.file_tokens == 0
    second.close()
    third = opened()
    assert [answer(third, prompt, **GREEDY) for prompt in PROMPTS] == expected
    assert third.statistics.file_tokens > 0
    third.close()


def test_commands_take_the_folder(llm_bundle: Path, tmp_path: Path, trtkit: Callable[..., Ran]) -> None:
    words = "the quick brown fox jumps over the lazy dog, and says: 1, 2, 3!"
    asked = ("generate", llm_bundle, words, "--runtime", "reference", "--cache-dir", tmp_path / "kv", "--json")
    first, second = trtkit(*asked).json(), trtkit(*asked).json()
    assert second["text"] == first["text"]
    assert [each["metrics"]["reused_tokens"] for each in (first, second)] == [0, 16]
    assert files_of(tmp_path / "kv")
    refused = trtkit(*asked, "--host-cache-gib", 0)
    assert refused.code == 2
    assert "--cache-dir: files are written from host memory, but `host_cache_gib` is 0" in refused.err
    refused = trtkit(*asked, "--cache-dir-gib", "inf")
    assert (refused.code, "--cache-dir-gib: inf GiB is not a finite number" in refused.err) == (2, True)
    with (
        LLM(llm_bundle, runtime="reference", cache_dir=tmp_path / "kv"),
        pytest.raises(RequestError, match="another process uses this folder for caches of this model"),
    ):
        LLM(llm_bundle, runtime="reference", cache_dir=tmp_path / "kv")


@pytest.mark.slow
def test_an_engine_killed_at_any_moment_leaves_a_folder_that_the_next_one_goes_on_from(
    llm_bundle: Path, tmp_path: Path
) -> None:
    r, from_files = random.Random(1), 0
    prompts = [[5 + number % 40, *range(10, 60)] for number in range(20)]
    with LLM(llm_bundle, runtime="reference", host_cache_gib=0, slots=1) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, tiny_llm.GREEDY)]
    for _ in range(6):
        command = [sys.executable, "-c", SERVE, str(llm_bundle), str(tmp_path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(r.randint(1, 30)):
            process.stdout.readline()
        time.sleep(r.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        with LLM(llm_bundle, runtime="reference", cache_dir=tmp_path, slots=1) as llm:
            outputs = llm.generate(prompts, tiny_llm.GREEDY)
            assert [output.outputs[0].token_ids for output in outputs] == expected
            from_files += llm.statistics.file_tokens
    assert from_files > 0
