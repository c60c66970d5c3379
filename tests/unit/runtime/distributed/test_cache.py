"""What rank 0 decides about caches suits all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from trtkit.network.input_spec import Axis, InputSpec
from trtkit.runtime.decoder import Call
from trtkit.runtime.decoder.paged_cache import PagedCache
from trtkit.runtime.decoder.saved import CacheArray
from trtkit.runtime.distributed.blocks import GroupBlocks
from trtkit.runtime.distributed.cache import GroupCache
from trtkit.runtime.distributed.messages import Command, Message
from trtkit.runtime.distributed.serve import _Server

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
    own = PagedCache([POOL, COPIED], (2, 512), lambda _: torch.float32)
    return GroupCache(own, [(KEYS,), arrays], channel, run)


@pytest.mark.parametrize(("arrays", "is_parted"), [((KEYS,), True), ((KEYS, STATE), False), ((), False)])
def test_rows_run_by_length_only_where_no_stage_needs_them_together(
    arrays: tuple[CacheArray, ...], is_parted: bool
) -> None:
    call = Call(0, np.array([[3], [4]]), np.array([400, 5]), np.array([1, 1]))
    assert group(arrays).place(call).runs_together != is_parted


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
    server.do(Message(Command.SAVE_BLOCKS, (16, 1, 2)))
    server.do(Message(Command.LOAD_BLOCKS, (16, 2, 0, 128, 1, 2)))
