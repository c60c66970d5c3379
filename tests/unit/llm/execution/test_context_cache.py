"""Caches of ranks that share positions hold together what one rank's caches hold, whatever is done with them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from trtkit.errors import ExecutionError
from trtkit.llm.cache import PageCopies
from trtkit.llm.execution.cached_places import NewTokens
from trtkit.llm.execution.paged_cache import open_cache
from trtkit.llm.execution.pool_size import PoolSize
from trtkit.models.context import context_of
from trtkit.models.share import WHOLE, Share
from trtkit.network.input_spec import BATCH, Axis, InputSpec

if TYPE_CHECKING:
    from trtkit.llm.execution.kv_cache import KvCache
    from trtkit.llm.execution.saved import SavedSequence

SLOTS, LENGTH, PAGE, NAME = 4, 96, 24, "past_key_0"


def cache_of(share: Share, page_tokens: int | None) -> KvCache:
    """Return one rank's cache, of 2 heads of 3 elements."""
    context = context_of(share, page_tokens)
    axes = (
        BATCH,
        Axis("key_value_heads", 2),
        Axis("cached_tokens", context.linear_length(LENGTH)),
        Axis("head_dim", 3),
    )
    if page_tokens is not None:
        axes = (Axis("pages"), axes[1], Axis("page_tokens", page_tokens // share.count), axes[3])
    spec = InputSpec(NAME, "fp32", axes, "cache", "present_key_0")
    pool = PoolSize(None if page_tokens is None else 1 + SLOTS * LENGTH // page_tokens)
    return open_cache([spec], SLOTS, LENGTH, lambda _: torch.float32, pool=pool, context=share)


def held(cache: KvCache, slot: int, tokens: int) -> torch.Tensor:
    """Return a slot's first tokens, of this rank's positions, with zeros for others."""
    saved, whole = cache.save(slot, tokens), torch.zeros(2, tokens, 3)
    own = saved.form.views(saved.data)[NAME]
    whole[:, cache.context.positions(own.shape[1])] = own
    return whole


def write(cache: KvCache, slot: int, start: int, new: torch.Tensor, padding: int) -> None:
    """Write new tokens [2, n, 3] of a slot, and some of padding after them."""
    count = new.shape[1]
    padded = torch.cat([new, torch.full((2, padding, 3), -1.0)], 1)[None]
    table = None
    if cache.pages is not None:
        slots, starts = np.array([slot]), np.array([start])
        copies = cache.pages.reserve(slots, starts, starts + count)
        cache.copy_pages(PageCopies(*copies))
        table = torch.from_numpy(cache.table[slots].copy())  # type: ignore[attr-defined]
    places = [torch.tensor([number]) for number in (slot, start, count)]
    cache.append(NewTokens(*places, table), {NAME: padded})


@pytest.mark.parametrize("page_tokens", [None, PAGE], ids=["linear", "paged"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shards_hold_together_what_one_cache_holds(ranks: int, page_tokens: int | None) -> None:
    """Appends across blocks with padding, copies of prefixes, sequences that are saved and loaded, and slots reused."""
    r = random.Random(ranks)
    one, shards = cache_of(WHOLE, page_tokens), [cache_of(Share(rank, ranks), page_tokens) for rank in range(ranks)]
    lengths = [0] * SLOTS
    for step in range(60):
        slot, other = r.sample(range(SLOTS), 2)
        kind = r.choice(["write", "write", "copy", "move"])
        if kind == "write" or not lengths[other]:
            start = r.choice([0, lengths[slot]]) if lengths[slot] < LENGTH - 40 else 0
            count = r.randint(1, 30)
            new = torch.rand(2, count, 3) + step
            for cache in (one, *shards):
                write(cache, slot, start, new, padding=r.randint(0, 3))
            lengths[slot] = start + count
        elif kind == "copy":
            lengths[slot] = r.randint(1, lengths[other])
            for cache in (one, *shards):
                cache.copy(other, slot, slice(0, lengths[slot]))
        else:
            saved: list[SavedSequence] = [cache.save(other, lengths[other]) for cache in (one, *shards)]
            for cache, each in zip((one, *shards), saved, strict=True):
                cache.load(slot, each)
            lengths[slot] = lengths[other]
        for slot, tokens in enumerate(lengths):
            if tokens:
                together = sum(held(shard, slot, tokens) for shard in shards)
                assert torch.equal(together, held(one, slot, tokens)), (step, kind, slot)  # type: ignore[arg-type]


def test_a_sequence_of_another_layout_is_refused() -> None:
    saved = [cache_of(Share(1, 3), PAGE), cache_of(Share(0, 3), PAGE)]
    write(saved[0], 0, 0, torch.rand(2, 30, 3), padding=0)
    with pytest.raises(ExecutionError) as error:
        saved[1].load(0, saved[0].save(0, 30))
    own, other = (f"`past_key_0` of 2 heads of 3 in float32, part {part} of 3 in blocks of 8 tokens" for part in (1, 2))
    assert error.value.what == f"the saved sequence holds {other}, the model {own}"


@pytest.mark.parametrize("page_tokens", [None, PAGE], ids=["linear", "paged"])
def test_blocks_on_the_host_are_shards_of_a_block(page_tokens: int | None) -> None:
    shares = [Share(rank, 3) for rank in range(3)]
    caches, new = [cache_of(share, page_tokens) for share in shares], torch.rand(2, 96, 3)
    for cache in caches:
        write(cache, 1, 0, new, padding=0)
        tokens = page_tokens or cache.block_multiple
        blocks = cache.blocks(tokens)
        assert blocks is not None
        assert blocks.size_bytes == -(-4 * 2 * (tokens // 3) * 3 // 16) * 16
        rows, places = blocks.memory(1), blocks.places(1, 1, 1)
        blocks.save(places, list(rows))
        blocks.settle()
        before = held(cache, 1, 96)
        write(cache, 1, 0, torch.zeros_like(new), padding=0)
        assert not held(cache, 1, 96).any()
        blocks.load(blocks.places(1, 1, 1), list(rows))()
        after = held(cache, 1, 96)
        assert torch.equal(after[:, tokens : 2 * tokens], before[:, tokens : 2 * tokens])
        assert not after[:, :tokens].any()
        assert not after[:, 2 * tokens :].any()
