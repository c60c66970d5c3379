"""Open a bundle of several ranks: start the other ranks, or join those that a launcher started."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from trtkit.errors import RequestError
from trtkit.jobs.json_form import from_json, to_json
from trtkit.llm.distributed.decoder import DistributedDecoder, RankFacts
from trtkit.llm.distributed.group import JOIN_TIMEOUT_S, RankGroup
from trtkit.llm.distributed.members import Members
from trtkit.llm.distributed.serve import serve
from trtkit.llm.distributed.stage import GridPosition, StageRunner
from trtkit.llm.distributed.world import host_world, launched_count, launched_world
from trtkit.llm.execution.call import Call
from trtkit.llm.execution.single import Peers, open_rank
from trtkit.reference import GlooRank

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.llm.distributed.world import World
    from trtkit.llm.execution.single import OpenOptions


def open_distributed(bundle: Bundle, options: OpenOptions) -> DistributedDecoder:
    """Open rank 0 of a bundle of several ranks. Under a launcher such as torchrun, every other rank serves and exits.

    Raises RequestError if the launcher started another number of ranks than the bundle has, RankError if a rank fails.
    """
    count, launched = bundle.manifest.grid.ranks, launched_count()
    if launched is None:
        world, port = host_world(count)
        return _open(bundle, options, RankGroup(world, Members(bundle.path, count, port, options)))
    if launched != count:
        what = f"{launched} ranks were launched; the bundle has {count}"
        raise RequestError(what, "WORLD_SIZE", f"launch {count} ranks, or start the command without a launcher")
    world = launched_world()
    if world.rank:
        _serve_and_exit(bundle, options, world)
    return _open(bundle, options, RankGroup(world))


def serve_rank(bundle: Bundle, options: OpenOptions, world: World) -> None:
    """Serve as a rank other than 0 until rank 0 closes. Raises the fault of a rank that failed."""
    group = RankGroup(world)
    runner, _ = _runner(bundle, options, group)
    serve(group, runner)


def _serve_and_exit(bundle: Bundle, options: OpenOptions, world: World) -> NoReturn:
    serve_rank(bundle, options, world)
    sys.exit(0)


def _open(bundle: Bundle, options: OpenOptions, group: RankGroup) -> DistributedDecoder:
    try:
        runner, facts = _runner(bundle, options, group)
        decoder = DistributedDecoder(group, runner, facts)
    except BaseException:
        group.close()
        raise
    for size in (2, 1):  # one call per profile, in the same order on every rank
        decoder.check(Call(0, np.ones((1, size), np.int64), np.zeros(1, np.int64), np.full(1, size)))
    return decoder


def _runner(bundle: Bundle, options: OpenOptions, group: RankGroup) -> tuple[StageRunner, list[RankFacts]]:
    """Open this rank's network and wait for the others'."""
    grid, world = bundle.manifest.grid, group.world
    with group.guarded():
        members = None
        if grid.stage_ranks > 1:
            members = GlooRank(world.group("stage", grid.stage_members(world.rank)), JOIN_TIMEOUT_S)
        execution = open_rank(bundle, options, Peers(grid.engine_of(world.rank), world.local_rank, members))
        group.abort = execution.abort
        if world.rank:
            execution.cache.follow()
        arrays, row_tokens = execution.cache.form(1).arrays, execution.packed.row_tokens if execution.packed else 1
        rank_facts = RankFacts(execution.description, arrays, row_tokens)
        group.post("facts", json.dumps(to_json(rank_facts)))
        facts = [from_json(RankFacts, json.loads(text)) for text in group.collect("facts")]
    group.settle()
    runner = StageRunner(execution, group.channel, GridPosition(world.rank, grid, members, options.parts))
    return runner, facts
