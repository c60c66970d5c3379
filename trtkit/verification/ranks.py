"""All ranks of a language model in one process, and how their replicated tensors differ from those of a single rank."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trtkit.builder.decoders import llm_options
from trtkit.dtypes import DTYPES
from trtkit.llm.execution import ReferenceDecoder, decoder_network
from trtkit.llm.execution.packed import PackedCall
from trtkit.models.parallel import SINGLE, grid_of
from trtkit.network.decoder import NEXT_HIDDEN_STATES
from trtkit.reference import Executor, Options, ThreadGroup
from trtkit.verification.layers import makers, measure, widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Literal

    from trtkit.backends import Backend
    from trtkit.builder.decoders import OpenedDecoder
    from trtkit.llm.execution import Call, DecoderNetwork
    from trtkit.llm.execution.packed import AnyCall
    from trtkit.models.parallel import Grid
    from trtkit.reference.ranks import Rank
    from trtkit.verification.layers import LayerName
    from trtkit.verification.report import LayerError

# Tensors that every rank of a stage holds: residual sums and norms. Norms inside attention cover a rank's own heads.
_ALIKE = re.compile(r"layers\.\d+/([^/]+|\w+_norm/[^/]+)$|(embedding|embedding_norm|final_norm)/[^/]+$")
_REDUCED = ("/all_reduce", "/reduce_scatter")
# Tensors that ranks hold for all tokens even if tokens are split between blocks: the final norm, of those with logits.
_OF_ALL_TOKENS = ("final_norm/",)


@dataclass(frozen=True, eq=False)
class RankNetworks:
    """The networks of all ranks, by rank."""

    grid: Grid
    networks: tuple[DecoderNetwork, ...]

    def members(self) -> list[Rank]:
        """Return every rank's place in its stage; the ranks are threads of this process."""
        groups = [ThreadGroup(self.grid.stage_ranks) for _ in range(self.grid.pipeline)]
        positions = (divmod(rank, self.grid.stage_ranks) for rank in range(self.grid.ranks))
        return [groups[stage].member(number) for stage, number in positions]

    def stages(self) -> Iterator[range]:
        """Yield each stage's ranks."""
        yield from map(self.grid.stage_members, range(0, self.grid.ranks, self.grid.stage_ranks))


class RankedDecoder:
    """Runs calls on all ranks with the reference executor, the ranks of a stage as threads."""

    def __init__(self, ranks: RankNetworks, slots: int) -> None:
        self._ranks = ranks
        pairs = zip(ranks.networks, ranks.members(), strict=True)
        self.decoders = [ReferenceDecoder(network, slots, ranks=member) for network, member in pairs]
        first = self.decoders[0]
        self.packed = None if first.packed is None else self
        self.row_tokens, self.max_length = min(decoder.row_tokens for decoder in self.decoders), first.max_length

    def forward(self, call: Call) -> torch.Tensor:
        """Run new tokens; return the first rank's fp32 logits: [R, V], or [R, S, V] of all tokens."""
        return self._through_stages(call, ReferenceDecoder.forward)

    def forward_packed(self, packed: PackedCall) -> torch.Tensor:
        """Run decoding slots and prompt chunks in one call; return the first rank's fp32 logits [N, V]."""
        return self._through_stages(packed, ReferenceDecoder.forward_packed)

    def _through_stages(self, call: AnyCall, run: Callable[[ReferenceDecoder, AnyCall], torch.Tensor]) -> torch.Tensor:
        """Run a call through the stages, each reading the previous stage's first rank; return the last result."""
        for stage in self._ranks.stages():
            with ThreadPoolExecutor(len(stage)) as pool:
                outputs = list(pool.map(lambda rank, call=call: run(self.decoders[rank], call), stage))
            call = replace(call, hidden=outputs[0])
        assert call.hidden is not None
        return call.hidden


def rank_networks(
    backend: Backend, opened: OpenedDecoder, logits: Literal["all", "last"] | None = None
) -> RankNetworks:
    """Return the networks that a build writes for all ranks; `logits` selects which logits they return."""
    grid = grid_of(opened.config)
    networks = (decoder_network(backend, replace(opened, rank=rank), logits) for rank in range(grid.ranks))
    return RankNetworks(grid, tuple(networks))


def single(opened: OpenedDecoder) -> OpenedDecoder:
    """Return the same model for a single rank, with the same kinds of calls."""
    calls = "packed" if opened.is_packed else "separate"
    llm = llm_options(opened.config).model_copy(update={"batching": calls})
    config = opened.config.model_copy(update={"parallel": None, "llm": llm})
    return replace(opened, model=replace(opened.model, config=config), rank=0)


def reference_decoder(
    backend: Backend, opened: OpenedDecoder, slots: int, logits: Literal["all", "last"] | None = None
) -> ReferenceDecoder | RankedDecoder:
    """Return an executor of the networks that a build writes, for one rank or for all of them together."""
    if grid_of(opened.config) == SINGLE:
        return ReferenceDecoder(decoder_network(backend, opened, logits), slots)
    return RankedDecoder(rank_networks(backend, opened, logits), slots)


def rank_errors(ranks: RankNetworks, whole: DecoderNetwork, call: Call) -> list[LayerError]:
    """Compare the tensors that a stage's ranks replicate with the widened single-rank network's, in execution order.

    Among ranks that differ, the worst one counts. The sum of the ranks' partial products is compared with the whole
    product.
    """
    names = makers(whole.layers)
    inputs = ReferenceDecoder(whole, len(call.starts)).inputs(call)
    type_of = "fp32" if any(name.dtype in {"fp16", "bf16"} for name in names.values()) else "fp64"
    wide = Executor(whole.layers, Options(widen=type_of))
    counterparts = {name: _counterpart(name, names) for name in _rank_tensors(ranks)}
    kept = wide.run(widened(inputs, type_of), keep={name for name in counterparts.values() if name})
    errors: dict[str, LayerError] = {}
    has_shares = ranks.grid.sequence
    for values in _values(ranks, call, [name for name, whole_name in counterparts.items() if whole_name]):
        for tensor, value in ((tensor, value) for tensor, value in values.items() if value.numel()):
            name = names[counterparts[tensor]]
            expected = kept[counterparts[tensor]]
            used = value[: len(expected)] if has_shares else value  # the tokens that fill the last share are nobody's
            error = measure(replace(name, layer=tensor), tensor, used, expected, None)
            if tensor not in errors or error.relative_rms_error > errors[tensor].relative_rms_error:
                errors[tensor] = error
    return list(errors.values())


def _joined(results: Sequence[dict[str, torch.Tensor]], tokens: int) -> list[dict[str, torch.Tensor]]:
    """Return tensors of which each rank has a share of the tokens, joined to those of all `tokens`."""
    rows = -(-tokens // len(results))
    alike = (name for name in results[0] if not name.startswith(_OF_ALL_TOKENS))
    shared = [name for name in alike if results[0][name].shape[:1] == (rows,)]
    whole = {name: torch.cat([result[name] for result in results]) for name in shared}
    return [result | whole for result in results]


def _rank_tensors(ranks: RankNetworks) -> list[str]:
    """Return the float tensors that ranks hold alike; positions differ by heads."""
    names: dict[str, LayerName] = {}
    for network in ranks.networks:
        names |= makers(network.layers)
    computed = (name for name, maker in names.items() if maker.kind != "CONSTANT" and DTYPES[maker.dtype].is_float)
    return [name for name in computed if name.endswith(_REDUCED) or _ALIKE.match(name)]


def _counterpart(name: str, names: Mapping[str, LayerName]) -> str:
    """Return the name of the same tensor in the single-rank network; empty if it has none."""
    summed = name.rpartition("/")[0] if name.endswith(_REDUCED) else name
    candidates = [f"{summed}/matmul", f"{summed.rpartition('/')[0]}/gather"] if name != summed else [name]
    return next((candidate for candidate in candidates if candidate in names), "")


def _values(ranks: RankNetworks, call: Call, wanted: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield each rank's requested tensors, stage by stage."""
    decoder = RankedDecoder(ranks, len(call.starts))
    for stage in ranks.stages():
        decoders = [decoder.decoders[rank] for rank in stage]
        with ThreadPoolExecutor(len(decoders)) as pool:
            results = list(pool.map(lambda decoder, call=call: decoder.tensors(call, set(wanted)), decoders))
        named = [{name: values[name] for name in wanted if name in values} for values in results]
        yield from _joined(named, int(call.counts.sum())) if ranks.grid.sequence else named
        hidden = results[0].get(NEXT_HIDDEN_STATES)
        if hidden is not None and decoder.packed is not None:  # of tokens, each a row of one
            hidden = PackedCall.of(call, has_all_logits=True).shaped(hidden[:, 0], has_all_logits=True)
        call = replace(call, hidden=hidden)
