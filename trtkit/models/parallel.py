"""How ranks share a decoder: which heads, rows, columns, experts and layers each one holds.

Tensor parallel, as in Megatron-LM (https://arxiv.org/abs/1909.08053): projections to heads and to the intermediate
size are split by rows, those back by columns, and the ranks' partial outputs are summed; the embedding and the LM head
are split by vocabulary. Expert parallel: a rank computes whole experts. Pipeline parallel: a stage computes some of the
layers. Sequence parallel (https://arxiv.org/abs/2205.05198): between blocks, tensor parallel ranks split the tokens.
Context parallel (Helix, https://arxiv.org/abs/2507.07120): tensor parallel ranks split the cached positions of all
heads; see `trtkit.models.context`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.errors import ConfigError, Problem
from trtkit.models.attention import AttentionSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec
from trtkit.models.share import WHOLE, Share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.config.schema import ModelConfig
    from trtkit.models.recurrent import RecurrentSpec
    from trtkit.models.spec import DecoderSpec, LayerSpec

SECTION = "parallel"


@dataclass(frozen=True)
class Grid:
    """How many ranks share each layer (`tensor`) and its experts (`expert`); how many stages there are (`pipeline`).

    sequence: whether the ranks of a layer split the tokens of norms and residual sums.
    context: how many ranks split the cached positions: all `tensor` ranks, or 1.
    A stage's ranks are consecutive: rank r is number r % stage_ranks of stage r // stage_ranks.
    """

    tensor: int = 1
    expert: int = 1
    pipeline: int = 1
    sequence: bool = False
    context: int = 1

    @property
    def stage_ranks(self) -> int:
        """Number of ranks of one pipeline stage; collectives stay within a stage."""
        return max(self.tensor, self.expert)

    @property
    def ranks(self) -> int:
        return self.stage_ranks * self.pipeline

    def stage(self, rank: int) -> Share:
        return Share(rank // self.stage_ranks, self.pipeline)

    def engine_of(self, process: int) -> int:
        """Return the rank whose engine a running process has. Process 0, which samples, is in the last stage."""
        return (process - self.stage_ranks) % self.ranks

    def stage_members(self, rank: int) -> range:
        first = rank - rank % self.stage_ranks
        return range(first, first + self.stage_ranks)

    def tensor_share(self, rank: int) -> Share:
        """Return a rank's share of heads, intermediate sizes and vocabulary."""
        return Share(rank % self.stage_ranks, self.tensor) if self.tensor > 1 else WHOLE

    def token_share(self, rank: int) -> Share:
        """Return a rank's share of a call's tokens between blocks."""
        return self.tensor_share(rank) if self.sequence else WHOLE

    def context_share(self, rank: int) -> Share:
        """Return a rank's share of a sequence's cached positions."""
        return self.tensor_share(rank) if self.context > 1 else WHOLE

    def expert_shares(self, rank: int) -> tuple[Share, Share]:
        """Return a rank's share of the experts, and its share of each expert's intermediate size."""
        inner = self.stage_ranks // self.expert if self.tensor > 1 else 1
        expert, within = divmod(rank % self.stage_ranks, inner)
        return Share(expert, self.expert), Share(within, inner)


SINGLE = Grid()
_PARTS_PER_STAGE = 4
"""With four microbatches per stage the bubble is small. Source: https://arxiv.org/abs/1811.06965, section 2.3."""
_LEAST_TOKENS = 64
"""Minimum tokens per microbatch: fewer do not fill a device."""


def prefill_parts(stages: int, tokens: int) -> int:
    """Return the number of microbatches that a prefill of `tokens` new tokens is split into for a pipeline."""
    return max(1, min(_PARTS_PER_STAGE * stages, tokens // _LEAST_TOKENS)) if stages > 1 else 1


def grid_of(config: ModelConfig) -> Grid:
    """Return the grid of a config."""
    options = config.parallel
    if options is None:
        return SINGLE
    return Grid(options.tensor, options.expert, options.pipeline, options.sequence, options.context)


def check_grid(spec: DecoderSpec, grid: Grid, where: str) -> None:
    """Raise ConfigError with every reason why a grid cannot share a model."""
    problems = list(_problems(spec, grid))
    if problems:
        raise ConfigError(f"the config does not fit {where}", problems)


def rank_spec(spec: DecoderSpec, grid: Grid, rank: int) -> DecoderSpec:
    """Return the spec that one rank of a grid computes."""
    if grid == SINGLE:
        return spec
    stage = grid.stage(rank)
    held = stage.of(len(spec.layers))
    return replace(
        spec,
        layers=tuple(_layer(spec.layers[index], grid, rank) for index in held),
        vocab_share=grid.tensor_share(rank),
        stage=stage,
        first_layer=held.start,
        token_share=grid.token_share(rank),
    )


def _layer(layer: LayerSpec, grid: Grid, rank: int) -> LayerSpec:
    tensor = grid.tensor_share(rank)
    parallel = layer.parallel_mixer
    parallel = None if parallel is None else replace(parallel, mixer=parallel.mixer.of(tensor))
    layer = replace(layer, mixer=_mixer(layer.mixer, tensor, grid.context_share(rank)), parallel_mixer=parallel)
    feed_forward = layer.feed_forward
    if not isinstance(feed_forward, MoeSpec):
        return replace(layer, feed_forward=None if feed_forward is None else _mlp(feed_forward, tensor))
    experts, inner = grid.expert_shares(rank)
    shared = None if feed_forward.shared is None else _mlp(feed_forward.shared, tensor)
    part = replace(feed_forward, expert=_mlp(feed_forward.expert, inner), shared=shared, share=experts)
    return replace(layer, feed_forward=part)


def _mixer(
    mixer: AttentionSpec | RecurrentSpec | None, share: Share, context: Share
) -> AttentionSpec | RecurrentSpec | None:
    if not isinstance(mixer, AttentionSpec):
        return None if mixer is None else mixer.of(share)
    return replace(
        mixer,
        num_attention_heads=len(share.of(mixer.num_attention_heads)),
        num_key_value_heads=len(kv_heads_of(share, mixer.num_key_value_heads)),
        share=share,
        qkv="concatenated" if mixer.qkv == "fourths" and share.count > 1 else mixer.qkv,
        context=context,
        context_heads=_context_heads(mixer.num_key_value_heads, share, context),
    )


def _context_heads(heads: int, share: Share, context: Share) -> tuple[int, ...]:
    """Return the indices of the key/value heads gathered from all ranks that do not repeat an earlier one."""
    if context.count == 1:
        return ()
    numbers = [head for rank in range(share.count) for head in kv_heads_of(Share(rank, share.count), heads)]
    return tuple(index for index, head in enumerate(numbers) if head not in numbers[:index])


def _mlp(mlp: MlpSpec, share: Share) -> MlpSpec:
    return replace(mlp, intermediate_size=len(share.of(mlp.intermediate_size)), share=share)


def kv_heads_of(share: Share, heads: int) -> range:
    """Return a share's key/value heads; with fewer heads than shares, it is one that other shares hold, too."""
    if share.count <= heads:
        return share.of(heads)
    head = share.index * heads // share.count
    return range(head, head + 1)


def _problems(spec: DecoderSpec, grid: Grid) -> Iterator[Problem]:
    mixtures = [layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, MoeSpec)]
    if spec.reads_encoder and grid != SINGLE:
        yield Problem("layers that read an encoder cannot be shared by ranks", SECTION, "remove it")
        return
    if grid.pipeline > len(spec.layers):
        yield _problem(
            "pipeline", grid.pipeline, f"the model has {len(spec.layers)} layers", range(1, len(spec.layers) + 1)
        )
    if grid.pipeline > 1 and (
        spec.block.per_layer or any(attention.cache_of is not None for attention in spec.attentions)
    ):
        what = "its layers read vectors of the first stage, and caches of other layers"
        yield Problem(what, f"{SECTION}.pipeline", "set it to 1")
    if grid.expert > 1 and not mixtures:
        yield Problem("the model is not a mixture of experts", f"{SECTION}.expert", "remove it")
    elif any(moe.num_experts % grid.expert for moe in mixtures):
        counts = sorted({moe.num_experts for moe in mixtures})
        what = f"must divide the number of experts, {' and '.join(map(str, counts))}"
        yield _problem("expert", grid.expert, what, _divisors(counts))
    if grid.tensor > 1:
        yield from _tensor_problems(spec, grid, mixtures)
    if grid.context > 1:
        yield from _context_problems(spec)


def _tensor_problems(spec: DecoderSpec, grid: Grid, mixtures: list[MoeSpec]) -> Iterator[Problem]:
    attentions = {(attention.num_attention_heads, attention.num_key_value_heads) for attention in spec.attentions}
    counts = {count for layer in spec.layers if layer.recurrent is not None for count in layer.recurrent.counts}
    sizes = {layer.feed_forward.intermediate_size for layer in spec.layers if isinstance(layer.feed_forward, MlpSpec)}
    sizes |= {moe.shared.intermediate_size for moe in mixtures if moe.shared is not None}

    def fits(tensor: int) -> bool:
        inner = max(1, tensor // grid.expert)
        heads_fit = all(N % tensor == 0 and (K % tensor == 0 or tensor % K == 0) for N, K in attentions)
        sizes_fit = all(size % tensor == 0 for size in sizes | counts)
        return heads_fit and sizes_fit and all(moe.expert.intermediate_size % inner == 0 for moe in mixtures)

    if not fits(grid.tensor):
        parts = [f"{N} query and {K} key/value heads" for N, K in sorted(attentions)]
        parts += [f"{count} heads or channels of recurrent layers" for count in sorted(counts)]
        inner = sorted(sizes | {moe.expert.intermediate_size for moe in mixtures})
        what = f"does not divide {', '.join(parts)} and intermediate sizes of {', '.join(map(str, inner))}"
        most = max([N for N, _ in attentions] or counts)
        allowed = [count for count in range(1, most + 1) if count % grid.expert == 0 and fits(count)]
        yield _problem("tensor", grid.tensor, what, allowed)
    shared = [attention.norm for attention in spec.attentions if attention.qk_norm == "all"]
    shared += [attention.output_norm for attention in spec.attentions]
    shared += [layer.feed_forward.norm for layer in spec.layers if isinstance(layer.feed_forward, MlpSpec)]
    if any(norm is not None and norm.kind != "rms" for norm in shared):
        yield Problem("a layer norm over all heads cannot be shared by ranks", f"{SECTION}.tensor", "set it to 1")


def _context_problems(spec: DecoderSpec) -> Iterator[Problem]:
    """Yield the reasons why ranks cannot share cached positions."""
    if not spec.attentions:
        yield Problem("a model without attention caches no positions", f"{SECTION}.context", "remove it")
    if any(attention.relative is not None for attention in spec.attentions):
        yield Problem("relative position scores cannot be shared by ranks", f"{SECTION}.context", "remove it")


def _problem(key: str, value: int, what: str, allowed: range | list[int]) -> Problem:
    choices = ", ".join(map(str, list(allowed)[:12])) or "1"
    return Problem(f"{value}: {what}", f"{SECTION}.{key}", f"use one of {choices}")


def _divisors(counts: list[int]) -> list[int]:
    return [count for count in range(1, min(counts) + 1) if not any(total % count for total in counts)]
