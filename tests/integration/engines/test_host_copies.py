"""Caches are copied to host memory and back on a separate stream: early or late, tokens are the same."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import torch

from tests.integration.engines.planted import planted
from tests.support import tiny_llm
from trtkit import LLM
from trtkit.builder.build import build_bundle
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner
from trtkit.llm.cache import PageTables
from trtkit.llm.execution.host_blocks import LocalBlocks
from trtkit.llm.execution.saved import CacheArray, CacheForm
from trtkit.runtime.host_device import HostDevice

if TYPE_CHECKING:
    from tests.simulated_tensorrt import Simulated

COPIES = "trtkit.llm.execution.host_blocks"
MISTAKES = {
    "a copy to the host before the block is packed": "self._copies.wait(stream.record())",
    "a block read before it has come": "stream.wait(loaded)",
}
UNFREED = "user.wait(free)"
"""Without it, a buffer is filled while it is emptied."""


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return open_bundle(tiny_llm.build(tmp_path_factory.mktemp("copies"), "m"))


@pytest.fixture(scope="module")
def paged(linear: Bundle) -> Bundle:
    folder = linear.path.parent
    config = load_config(str(folder / "m.yaml"), ["llm.kv=paged", "llm.page_tokens=16"])
    return build_bundle(config, folder / "paged", new_runner()).bundle


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each buffer hold one block, so that it is needed again at once."""
    monkeypatch.setattr(COPIES + "._STAGED_BYTES", 1)


def answers(bundle: Bundle, runtime: str, count: int, *, has_host: bool = True) -> tuple[list[tuple[int, ...]], int]:
    """Return the answers of `count` conversations in turn on one slot, and how many tokens came from the host."""
    r, tokens = random.Random(2), []
    with LLM(bundle, runtime=runtime, slots=1, host_cache_gib=1e-3 if has_host else 0) as llm:
        prompts = [[r.randrange(5, 60) for _ in range(20)] for _ in range(count)]
        for _ in range(3):
            for prompt in prompts:
                (output,) = llm.generate([list(prompt)], tiny_llm.GREEDY)
                tokens.append(output.outputs[0].token_ids)
                prompt += [*output.outputs[0].token_ids[:5], 9, 11]
        return tokens, llm.statistics.restored_tokens


@pytest.mark.parametrize(
    ("kind", "count", "hurries"),
    [
        ("linear", 3, True),
        ("paged", 5, False),
        pytest.param("linear", 3, False, marks=pytest.mark.slow),
        pytest.param("paged", 5, True, marks=pytest.mark.slow),
    ],
)
def test_engines_go_on_from_the_host(
    kind: str, count: int, hurries: bool, gpu: Simulated, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    gpu.plans.add(bundle)
    gpu.device.hurries = hurries
    expected, _ = answers(bundle, "reference", count, has_host=False)
    tokens, restored = answers(bundle, "tensorrt", count)
    assert tokens == expected
    assert restored >= 6 * 16


@pytest.mark.parametrize("name", MISTAKES)
def test_a_missing_wait_is_seen(name: str, linear: Bundle, gpu: Simulated) -> None:
    gpu.plans.add(linear)
    expected, seen = answers(linear, "reference", 3, has_host=False)[0], []
    with planted(COPIES, MISTAKES[name], "pass"):
        for hurries in (False, True):
            gpu.device.hurries = hurries
            seen.append(answers(linear, "tensorrt", 3)[0] != expected)
    assert any(seen)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_buffer_that_is_filled_while_it_is_emptied_is_seen(is_planted: bool) -> None:
    """More blocks than there are buffers, saved at once: copies to the host are late."""
    with planted(COPIES, UNFREED, "pass") if is_planted else nullcontext():
        device, count = HostDevice(), 8
        stream = device.stream()
        array = stream.empty((1, 1, count, 2, 1), torch.float32)
        array.copy_(torch.arange(2.0 * count).view(array.shape))
        form = CacheForm("", 2, (CacheArray("key", "float32", 1, 1),))
        blocks = LocalBlocks(form, {"key": array}, stream)
        blocks._staged = 1
        host = blocks.memory(count)
        blocks.save(list(range(count)), list(host))
        stream.synchronize()
        blocks.settle()
    saved = torch.cat([form.block_views(host)["key"][block].flatten() for block in range(count)])
    assert torch.equal(saved, torch.arange(2.0 * count)) is not is_planted


@pytest.mark.parametrize("hurries", [True, False])
def test_what_was_loaded_ahead_of_its_turn_gives_the_same_tokens(
    hurries: bool, paged: Bundle, gpu: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty prompts wait for one slot, twice; pages hold a third of them, and the host all."""
    gpu.plans.add(paged)
    gpu.device.hurries = hurries
    r, loaded, register_held = random.Random(4), [], PageTables.register_held
    prompts = [[r.randrange(5, 60) for _ in range(36)] for _ in range(40)]

    def noted(tables: PageTables, known: list[int], new: list[int], contents: list[bytes]) -> list[int]:
        loaded.extend(new)
        return register_held(tables, known, new, contents)

    monkeypatch.setattr(PageTables, "register_held", noted)
    tokens = []
    for runtime, host_gib in (("reference", 0.0), ("tensorrt", 1e-2)):
        with LLM(paged, runtime=runtime, slots=1, cache_gib=3e-4, host_cache_gib=host_gib) as llm:
            runs = [llm.generate([list(prompt) for prompt in prompts], tiny_llm.GREEDY) for _ in range(2)]
            tokens.append([output.outputs[0].token_ids for run in runs for output in run])
    assert tokens[0] == tokens[1]
    assert len(loaded) > 20
