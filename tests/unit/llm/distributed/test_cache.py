"""What rank 0 decides about caches suits all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from trtkit.llm.distributed.cache import GroupBlocks, GroupCache, blocks_part, load_blocks_part
from trtkit.llm.distributed.messages import Message
from trtkit.llm.distributed.serve import _Server
from trtkit.llm.execution import Call
from trtkit.llm.execution.kv_cache import KvCache
from trtkit.llm.execution.paged_cache import PagedCache
from trtkit.llm.execution.saved import CacheArray
from trtkit.network.input_spec import Axis, InputSpec

if TYPE_CHECKING:
    from collections.abc import Callable

POOL = InputSpec(
    "past_key_0",
    "fp32",
    (Axis("pages"), Axis("key_value_heads", 1), Axis("page_tokens", 16), Axis("head_dim", 2)),
    "cache",
)
COPIED = InputSpec("key_positions", "int32", (Axis("kv_window"),), "scheduler")
KEYS = CacheArray("past_key_0", "float32", 1, 2)
STATE = CacheArray("past_state_1", "float32", 1, 2, is_state=True)


def group(arrays: tuple[CacheArray, ...], channel: Any = None, run: Any = None) -> GroupCache:
    """Return the caches of two pipeline stages. arrays: of the second."""
    own = PagedCache([POOL, COPIED], 2, 512, lambda _: torch.float32)
    return GroupCache(own, [(KEYS,), arrays], channel, run)


@pytest.mark.parametrize(("arrays", "is_parted"), [((KEYS,), True), ((KEYS, STATE), False), ((), False)])
def test_rows_run_by_length_only_where_no_stage_needs_them_together(
    arrays: tuple[CacheArray, ...], is_parted: bool
) -> None:
    call = Call(0, np.array([[3], [4]]), np.array([400, 5]), np.array([1, 1]))
    assert group(arrays).prepare(call).runs_together != is_parted


def test_a_first_stage_without_attention_keeps_the_blocks_of_the_others() -> None:
    """Two slots of 48 tokens, of which the second's last two blocks go to rank 0's host and come back."""
    linear = InputSpec(
        "past_key_0",
        "fp32",
        (Axis("batch"), Axis("key_value_heads", 1), Axis("cached_tokens", 48), Axis("head_dim", 2)),
        "cache",
    )
    own, other = (KvCache(specs, 2, 48, lambda _: torch.float32) for specs in ([], [linear]))
    cached = torch.arange(2 * 48 * 2, dtype=torch.float32).reshape(2, 1, 48, 2)
    held = other.view(slice(0, 2))["past_key_0"]
    held.copy_(cached)
    theirs = other.blocks(16)
    assert theirs is not None
    channel = SimpleNamespace(receive=lambda *_: blocks_part(theirs, [4, 5]))

    def run(message: Message, work: Callable[[], None]) -> None:
        work()
        if message.name == "load_blocks":
            load_blocks_part(theirs, 1, message)

    blocks = GroupCache(own, [(), (KEYS,)], channel, run).blocks(16)  # type: ignore[arg-type]
    assert blocks is not None
    assert (blocks.size_bytes, blocks.places(1, 1, 2)) == (theirs.size_bytes, theirs.places(1, 1, 2))
    rows = blocks.memory(2)
    assert blocks.save([4, 5], list(rows))()
    held[1, :, 16:] = -1.0
    blocks.load([4, 5], list(rows))
    assert torch.equal(held, cached)


def test_a_stage_without_attention_has_no_part_of_blocks() -> None:
    class Silent:
        """Ranks that send nothing, and must not be waited for."""

        def receive(self, *_: object) -> torch.Tensor:
            raise AssertionError

    def run(_: Message, work: Callable[[], None]) -> None:
        work()

    blocks = group((), Silent(), run).blocks(16)
    assert isinstance(blocks, GroupBlocks)
    rows = blocks.memory(2)
    assert blocks.save([1, 2], list(rows))()

    runner: Any = SimpleNamespace(execution=SimpleNamespace(cache=SimpleNamespace(specs=[])))
    server = _Server(SimpleNamespace(), runner)  # type: ignore[arg-type]
    server.do(Message("save_blocks", {"tokens": 16, "places": [1, 2]}))
    server.do(Message("load_blocks", {"tokens": 16, "starts": [0, 128], "places": [1, 2]}))


def test_every_rank_moves_tokens() -> None:
    told: list[Message] = []

    def run(message: Message, work: Callable[[], None]) -> None:
        told.append(message)
        work()

    moved: list[list[list[int]]] = []
    own = SimpleNamespace(move=lambda *arrays: moved.append([each.tolist() for each in arrays]), positions=None)
    cache = GroupCache(own, [(KEYS,)], SimpleNamespace(), run)  # type: ignore[arg-type]
    cache.move(np.array([3, 0]), np.array([9, 7]), np.array([8, 5]))
    runner = SimpleNamespace(execution=SimpleNamespace(cache=own))
    _Server(SimpleNamespace(), runner).do(told[0])  # type: ignore[arg-type]
    assert moved == [[[3, 0], [9, 7], [8, 5]]] * 2
