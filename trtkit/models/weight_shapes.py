"""The path and the shape of every weight that a model has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.models.attention import AttentionSpec
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.spec import LearnedPositions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import MatrixShape
    from trtkit.models.attention import NormSpec
    from trtkit.models.feed_forward import MlpSpec
    from trtkit.models.latent import LatentSpec
    from trtkit.models.spec import BlockSpec, DecoderSpec, LayerSpec

Shape = tuple[int, ...]
_Part = tuple[str, Shape]
"""A path below some module, and a shape."""

XIELU_WEIGHTS = ("alpha_p", "alpha_n", "beta", "eps")
"""The scalars of a learned activation."""
STREAM_NORMS = ("streams.router_norm", "laurel.norm")


def model_shapes(spec: DecoderSpec) -> Iterator[_Part]:
    """Yield every path of the model with its shape."""
    D, V = spec.hidden_size, spec.vocab_rows
    if spec.is_first_stage or (spec.is_last_stage and spec.head.is_tied):
        yield "embedding.weight", (V, D)
    if spec.is_first_stage:
        if isinstance(spec.embedding.positions, LearnedPositions):
            yield "position_embedding.weight", (spec.embedding.positions.count + spec.embedding.positions.offset, D)
        yield from _norm("embedding_norm", spec.embedding.norm, D)
    yield from _besides_layers(spec)
    for index, layer in spec.numbered_layers:
        yield from _layer(f"layers.{index}", layer, spec)
    if not spec.is_last_stage:
        return
    yield from _norm("final_norm", spec.head.norm, D)
    if not spec.head.is_tied:
        yield "lm_head.weight", (V, D)
    if spec.head.has_bias:
        yield "lm_head.bias", (V,)


def _besides_layers(spec: DecoderSpec) -> Iterator[_Part]:
    """Yield the weights outside of layers of what layers have besides their parts."""
    block, D = spec.block, spec.hidden_size
    if block.per_layer is not None:
        yield from block.per_layer.outside(D)
        yield from _norm("per_layer_norm", block.norm, block.per_layer.size)
    if block.streams is not None:
        yield from block.streams.outside(D)


def _besides_parts(inside: str, block: BlockSpec, size: int) -> Iterator[_Part]:
    """Yield what a layer has in addition to its parts."""
    for spec in (block.per_layer, block.streams):
        if spec is not None:
            yield from ((f"{inside}.{path}", shape) for path, shape in spec.inside(size))
    norms = [*(["per_layer.norm"] if block.per_layer else []), *(STREAM_NORMS if block.streams else [])]
    for name in norms:
        yield from _norm(f"{inside}.{name}", block.norm, size)
    if block.has_scalar:
        yield f"{inside}.scalar", (1,)


def _layer(inside: str, layer: LayerSpec, spec: DecoderSpec) -> Iterator[_Part]:
    D = spec.hidden_size
    for name in filter(layer.has_norm, spec.block.norms):
        yield from _norm(f"{inside}.{name}", spec.block.norm, D)
    if isinstance(layer.mixer, AttentionSpec):
        yield from _attention(f"{inside}.attention", layer.mixer, spec)
        relative = layer.mixer.relative
        if relative is not None and inside == f"layers.{relative.layer}":
            yield f"{inside}.attention.relative_bias.weight", (relative.buckets, layer.mixer.num_attention_heads)
    if layer.recurrent is not None:
        part = layer.recurrent.part
        yield from ((f"{inside}.{part}.{weight.name}", weight.shape) for weight in layer.recurrent.weights(D))
    if layer.cross is not None:
        size = layer.cross.num_attention_heads * layer.cross.head_dim
        yield from _linear(f"{inside}.cross.q", spec, (size, D), layer.cross.has_bias)
        yield from _linear(f"{inside}.cross.o", spec, (D, size), layer.cross.has_bias)
    if isinstance(layer.feed_forward, MoeSpec):
        yield from _moe(f"{inside}.moe", layer.feed_forward, spec)
    elif layer.feed_forward is not None:
        yield from _mlp(f"{inside}.mlp", layer.feed_forward, spec)
    yield from _besides_parts(inside, spec.block, D)


def _norm(path: str, norm: NormSpec | None, *shape: int) -> Iterator[_Part]:
    if norm is not None and norm.has_weight:
        yield f"{path}.weight", shape
    if norm is not None and norm.has_bias:
        yield f"{path}.bias", shape


def _linear(path: str, spec: DecoderSpec, shape: MatrixShape, has_bias: bool) -> Iterator[_Part]:
    """Yield a matrix of shape [out, in] and its bias."""
    yield f"{path}.weight", shape[::-1] if spec.is_in_out else shape
    if has_bias:
        yield f"{path}.bias", shape[:1]


def _attention(path: str, attention: AttentionSpec, spec: DecoderSpec) -> Iterator[_Part]:
    D = spec.hidden_size
    N, K, H = attention.num_attention_heads, attention.num_key_value_heads, attention.head_dim
    if attention.latent is not None:
        yield from _latent(path, attention, attention.latent, spec)
        return
    if attention.qkv in ("separate", "no_values"):
        queries = 2 * N if attention.is_gated else N
        for name in attention.projections:
            width = attention.value_dim if name == "v" and attention.value_dim is not None else H
            rows = (queries if name == "q" else K) * width
            yield from _linear(f"{path}.{name}", spec, (rows, D), attention.has_bias(name))
    else:
        yield from _linear(f"{path}.qkv", spec, ((N + 2 * K) * H, D), attention.has_qkv_bias)
    if attention.gate is not None:
        yield from _linear(f"{path}.z", spec, (N * attention.gate_size, D), has_bias=False)
    yield from _linear(f"{path}.o", spec, (D, attention.output_size), attention.has_output_bias)
    for name, heads in (("q_norm", N), ("k_norm", K)):
        if name == "k_norm" and attention.cache_of is not None:
            continue
        if attention.qk_norm == "listed_heads":
            for head in range(heads):
                yield from _norm(f"{path}.{name}.heads.{head}", attention.norm, H)
        else:
            yield from _norm(f"{path}.{name}", attention.norm, *_qk_norm_shape(attention, heads))
    yield from _norm(f"{path}.o_norm", attention.output_norm, attention.output_size)
    if attention.has_sinks:
        yield f"{path}.sinks", (N,)


def _latent(path: str, attention: AttentionSpec, latent: LatentSpec, spec: DecoderSpec) -> Iterator[_Part]:
    D, N, C = spec.hidden_size, attention.num_attention_heads, attention.latent_rank
    has_bias, rank, sizes = attention.has_qkv_bias, latent.query_rank, latent.sizes
    if rank is None:
        yield from _linear(f"{path}.q", spec, (N * sizes["q"], D), has_bias=False)
    else:
        yield from _linear(f"{path}.q_a", spec, (rank, D), has_bias)
        yield from _norm(f"{path}.q_a_norm", attention.norm, rank)
        yield from _linear(f"{path}.q_b", spec, (N * sizes["q_b"], rank), has_bias=False)
    yield from _linear(f"{path}.kv_a", spec, (C + latent.rope_dim, D), has_bias)
    yield from _norm(f"{path}.kv_a_norm", attention.norm, C)
    yield from _linear(f"{path}.kv_b", spec, (N * sizes["kv_b"], C), has_bias=False)
    yield from _linear(f"{path}.o", spec, (D, attention.output_size), attention.has_output_bias)


def _qk_norm_shape(attention: AttentionSpec, heads: int) -> Shape:
    H = attention.head_dim
    return {"none": (), "head": (H,), "each_head": (heads, H), "all": (heads * H,)}[attention.qk_norm]


def _mlp(path: str, mlp: MlpSpec, spec: DecoderSpec, inputs: int | None = None) -> Iterator[_Part]:
    """Yield an MLP's weights. inputs: elements that it reads and gives, if they are not the hidden state's."""
    D, F = inputs or spec.hidden_size, mlp.intermediate_size
    if mlp.is_fused:
        yield from _linear(f"{path}.gate_up", spec, (2 * F, D), mlp.has_bias)
    else:
        for name in ("gate", "up") if mlp.is_gated else ("up",):
            yield from _linear(f"{path}.{name}", spec, (F, D), mlp.has_bias)
    yield from _norm(f"{path}.norm", mlp.norm, F)
    yield from _linear(f"{path}.down", spec, (D, F), mlp.has_bias)
    if mlp.has_learned_activation:
        yield from ((f"{path}.act.{name}", (1,) if name.startswith("alpha") else ()) for name in XIELU_WEIGHTS)


def _moe(path: str, moe: MoeSpec, spec: DecoderSpec) -> Iterator[_Part]:
    yield from _linear(f"{path}.router", spec, (moe.num_experts, spec.hidden_size), moe.routing.has_bias)
    if moe.routing.choice_bias_axes:
        yield f"{path}.choice_bias", (1,) * (moe.routing.choice_bias_axes - 1) + (moe.num_experts,)
    for index in moe.experts:
        yield from _mlp(f"{path}.experts.{index}", moe.expert, spec, moe.latent_size)
    if moe.latent_size is not None:
        yield from _linear(f"{path}.latent.in", spec, (moe.latent_size, spec.hidden_size), moe.has_latent_bias)
        yield from _linear(f"{path}.latent.out", spec, (spec.hidden_size, moe.latent_size), moe.has_latent_bias)
    yield from _norm(f"{path}.norm", moe.norm, spec.hidden_size)
    if moe.apart is not None:
        for name in ("input_norm", "output_norm", "shared_norm"):
            yield from _norm(f"{path}.{name}", moe.apart, spec.hidden_size)
        yield f"{path}.router_scale", (spec.hidden_size,)
        yield f"{path}.expert_scale", (moe.num_experts,)
    if moe.shared is not None:
        yield from _mlp(f"{path}.shared", moe.shared, spec)
        if moe.is_shared_gated:
            yield from _linear(f"{path}.shared_router", spec, (1, spec.hidden_size), has_bias=False)
