"""A decoder's weights: their paths in trtkit, their names in the checkpoint, their shapes.

Paths are those of network layers with dots: `layers.7.attention.q.weight`. A family's name table maps modules
(`layers.{i}.attention.q`) to the checkpoint's; `.weight` and `.bias` are appended to both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.models.attention import AttentionSpec
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.registry import decoder_spec
from trtkit.models.spec import LearnedPositions

if TYPE_CHECKING:
    from trtkit.arrays import MatrixShape
    from trtkit.models.attention import LatentSpec, NormSpec
    from trtkit.models.feed_forward import MlpSpec
    from trtkit.models.spec import BlockSpec, DecoderSpec, LayerSpec


class StoredWeight(Protocol):
    """A weight that has not been read yet.

    parts: the pieces that are concatenated along `axis`; empty for a single array.
    """

    axis: int

    @property
    def parts(self) -> Sequence[StoredWeight]:
        """The pieces that are concatenated along `axis`."""
        ...

    def part_with(self, axis: int, start: int, stop: int) -> tuple[StoredWeight, int] | None:
        """Return the part that holds rows or columns start..stop, and where it starts; None if they span several."""
        ...

    def read(self) -> Any:
        """Return the array, memory-mapped or decoded."""
        ...


# Buffers that checkpoints hold although they can be computed, and ERNIE's multi-token prediction heads.
_BUFFERS = re.compile(r"rotary_emb\.inv_freq$|\.(attn|attention)\.(masked_)?bias$|^model\.mtp_")
_WRAPPED = re.compile(r"(?:(?:module|_orig_mod)\.)+")


@dataclass(frozen=True)
class Weight:
    """One weight of a model. name: in the checkpoint. is_table: its rows are looked up or added, not multiplied."""

    path: str
    name: str
    shape: Shape
    is_table: bool = False


def model_weights(spec: DecoderSpec) -> tuple[Weight, ...]:
    """Return every weight of the model."""
    return tuple(Weight(path, _checkpoint_name(spec, path), shape) for path, shape in model_shapes(spec))


class WeightArrays(Mapping[str, Any]):
    """Weights by path, each read from the source when it is accessed."""

    def __init__(self, names: Mapping[str, str], source: Mapping[str, Any]) -> None:
        self._names, self._source = names, source

    def __getitem__(self, path: str) -> Any:
        return self._source[self._names[path]]

    def stored(self, path: str) -> StoredWeight | None:
        """Return a weight without reading it; None if the source does not support that."""
        stored = getattr(self._source, "stored", None)
        return stored(self._names[path]) if stored else None

    def name_of(self, path: str) -> str:
        return self._names[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def stored_spec(fields: Mapping[str, Any], where: str, source: Mapping[str, Any]) -> DecoderSpec:
    """Return `decoder_spec` with the LM head that its checkpoint holds. Raises SourceError, ProblemsError."""
    return with_stored_head(decoder_spec(fields, where), source)


def with_stored_head(spec: DecoderSpec, source: Mapping[str, Any]) -> DecoderSpec:
    """Return `spec` with an untied LM head if the checkpoint holds one that differs from the embedding.

    transformers does the same, whatever `tie_word_embeddings` states (`PreTrainedModel.tie_weights`).
    """
    if not spec.head.is_tied:
        return spec
    head, table = f"{spec.names['lm_head']}.weight", _names(spec, source)["embedding.weight"]
    is_single = head not in source or table not in source or head == table
    return spec if is_single or _tied_copy(spec, source) else replace(spec, head=replace(spec.head, is_tied=False))


def _tied_copy(spec: DecoderSpec, source: Mapping[str, Any]) -> str:
    """Return the name of a stored LM head that equals the embedding; empty if there is none."""
    head, table = f"{spec.names['lm_head']}.weight", _names(spec, source)["embedding.weight"]
    both = spec.head.is_tied and head in source and table in source
    return head if both and _is_same(source, head, table) else ""


def _is_same(source: Mapping[str, Any], name: str, other: str) -> bool:
    """Whether two arrays of a checkpoint are equal. Quantized arrays never are."""
    if _is_quantized(source, name) or _is_quantized(source, other) or _shape(source, name) != _shape(source, other):
        return False
    rows = zip(_row_blocks(source[name]), _row_blocks(source[other]), strict=True)
    return all(np.array_equal(np.asarray(mine, np.float32), np.asarray(others, np.float32)) for mine, others in rows)


def _row_blocks(array: Any) -> Iterator[Any]:
    """Yield a matrix in blocks of rows, so that comparing two of them needs little memory."""
    return (array[start : start + 4096] for start in range(0, len(array), 4096))


def find_weights(spec: DecoderSpec, source: Mapping[str, Any], where: str = "weights") -> WeightArrays:
    """Return a model's weights from a checkpoint (arrays by name), after checking all names and shapes.

    Raises ProblemsError with every weight that is missing, of another shape, or unknown.
    """
    names = _names(spec, source)
    problems = [*_missing(spec, names, source), *_extra(spec, set(names.values()), source)]
    if problems:
        refuse_wrapped(source, where)
        shown = problems[:20]
        rest = [Problem(f"and {len(problems) - 20} more")] if len(problems) > 20 else []
        summary = f"the weights do not fit a `{spec.model_type}` of this config"
        raise ProblemsError(summary, [Problem(p.what, where) for p in [*shown, *rest]])
    return WeightArrays(names, source)


def refuse_wrapped(source: Iterable[str], where: str) -> None:
    """Raise SourceError if all names have the prefix that DDP or `torch.compile` adds."""
    prefixes = {match[0] if (match := _WRAPPED.match(name)) else "" for name in source}
    if len(prefixes) == 1 and (prefix := prefixes.pop()):
        what = f"the names of all weights begin with `{prefix}`, which DDP and `torch.compile` add"
        raise SourceError(what, where, f"save the module inside the wrapper, or remove `{prefix}` from the names")


def _names(spec: DecoderSpec, source: Mapping[str, Any]) -> dict[str, str]:
    """Return each weight's name in the checkpoint. A tied embedding may be stored as the LM head alone."""
    is_bare = bool(spec.prefix) and not any(name.startswith(spec.prefix) for name in source)
    names = {
        weight.path: weight.name.removeprefix(spec.prefix) if is_bare else weight.name for weight in model_weights(spec)
    }
    head = f"{spec.names['lm_head']}.weight"
    if spec.head.is_tied and names["embedding.weight"] not in source and head in source:
        names["embedding.weight"] = head
    return names


def _missing(spec: DecoderSpec, names: Mapping[str, str], source: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield weights that are missing or have another shape."""
    for weight in model_weights(spec):
        name = names[weight.path]
        if name not in source:
            yield Problem(f"`{name}` is missing, of shape {list(weight.shape)}")
        elif (shape := _shape(source, name)) != weight.shape and not (
            spec.is_in_out and shape == weight.shape[::-1] and _is_quantized(source, name)
        ):
            yield Problem(f"`{name}` has shape {list(shape)}; expected {list(weight.shape)}")


def _shape(source: Mapping[str, Any], name: str) -> Shape:
    """Return a weight's shape, without reading it if the source supports that."""
    shape_of = getattr(source, "shape_of", None)
    return tuple(shape_of(name) if shape_of else source[name].shape)


def _is_quantized(source: Mapping[str, Any], name: str) -> bool:
    """Whether a weight is quantized. If so, it is [out, in], however the family stores its matrices."""
    is_quantized = getattr(source, "is_quantized", None)
    return bool(is_quantized and is_quantized(name))


def _extra(spec: DecoderSpec, known: set[str], source: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield weights that the model does not have."""
    table = _names(spec, source)["embedding.weight"] if spec.table_copies else ""
    copies = [name for name in spec.table_copies if name in source and table in source]
    tied = {_tied_copy(spec, source), *(name for name in copies if _is_same(source, name, table))}
    for name in source:
        if name not in known and name not in tied and not _BUFFERS.search(name) and not name.startswith(spec.unused):
            yield Problem(f"`{name}` is not a weight of this model")


def _checkpoint_name(spec: DecoderSpec, path: str) -> str:
    numbers = re.findall(r"\.(\d+)\.", path)
    for letter, number in zip("ie", numbers, strict=False):
        path = path.replace(f".{number}.", f".{{{letter}}}.", 1)
    module, _, suffix = path.rpartition(".")
    pattern = spec.names[module] + f".{suffix}" if suffix in ("weight", "bias") else spec.names[path]
    return pattern.format(**dict(zip("ie", numbers, strict=False)))


Shape = tuple[int, ...]
_Part = tuple[str, Shape]
"""A weight's path and shape."""

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
    """Yield the weights of per-layer embeddings and streams that are outside layers."""
    block, D = spec.block, spec.hidden_size
    if block.per_layer is not None:
        yield from block.per_layer.outside(D)
        yield from _norm("per_layer_norm", block.norm, block.per_layer.size)
    if block.streams is not None:
        yield from block.streams.outside(D)


def _besides_parts(inside: str, block: BlockSpec, size: int) -> Iterator[_Part]:
    """Yield a layer's weights that belong to none of its parts."""
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
    """Yield an MLP's weights. inputs: size of its input and output; None for the hidden size."""
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
    if moe.separate_norm is not None:
        for name in ("input_norm", "output_norm", "shared_norm"):
            yield from _norm(f"{path}.{name}", moe.separate_norm, spec.hidden_size)
        yield f"{path}.router_scale", (spec.hidden_size,)
        yield f"{path}.expert_scale", (moe.num_experts,)
    if moe.shared is not None:
        yield from _mlp(f"{path}.shared", moe.shared, spec)
        if moe.is_shared_gated:
            yield from _linear(f"{path}.shared_router", spec, (1, spec.hidden_size), has_bias=False)
