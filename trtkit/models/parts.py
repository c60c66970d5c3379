"""The usual parts of a spec, read from a config. Families adapt them with `dataclasses.replace`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, NormSpec, RelativeSpec, RopeSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec
from trtkit.models.hf_config import FIX, HfConfig
from trtkit.models.rope import LAYER_TYPES
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec, HeadSpec, LayerSpec

Window = int | None


def attention_part(config: HfConfig, *, has_qkv_bias: bool = False, has_output_bias: bool = False) -> AttentionSpec:
    """Return (grouped-query) attention; scores are divided by sqrt(head_dim)."""
    heads = int(config.need("num_attention_heads"))
    head_dim = int(config.get("head_dim", int(config.need("hidden_size")) // heads))
    kv_heads = int(config.get("num_key_value_heads", heads))
    spec = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5)
    return replace(spec, has_qkv_bias=has_qkv_bias, has_output_bias=has_output_bias)


def biased_attention_part(config: HfConfig) -> AttentionSpec:
    """Return `attention_part` with biases on all four projections if `attention_bias` is set."""
    has_bias = bool(config.get("attention_bias", False))
    return attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)


def relative_part(config: HfConfig, layer: int) -> RelativeSpec:
    """Return T5's relative position bias, whose table `layer` stores. Raises SourceError for too small a distance."""
    buckets = int(config.get("relative_attention_num_buckets", 32))
    most = int(config.get("relative_attention_max_distance", 128))
    if buckets < 4 or most <= buckets // 2:  # the encoder uses half of the buckets for each direction
        raise SourceError(f"{buckets} buckets of distances up to {most} are not supported", config.where)
    return RelativeSpec(buckets, most, layer)


def mlp_part(config: HfConfig, *, has_bias: bool = False, size: str = "intermediate_size") -> MlpSpec:
    """Return a gated MLP with `hidden_act`."""
    return MlpSpec(int(config.need(size)), str(config.get("hidden_act", "silu")), has_bias=has_bias)


def rms_norm_part(config: HfConfig) -> NormSpec:
    """Return an RMS norm with `rms_norm_eps`."""
    return NormSpec("rms", float(config.get("rms_norm_eps", 1e-6)))


def layer_norm_part(config: HfConfig, *, has_bias: bool = True) -> NormSpec:
    """Return a layer norm with `layer_norm_eps`."""
    return NormSpec("layer", float(config.get("layer_norm_eps", 1e-5)), has_bias=has_bias)


def plain_mlp_part(config: HfConfig, *, has_bias: bool = True) -> MlpSpec:
    """Return an ungated MLP; it is four times as wide as the model if `intermediate_size` is missing."""
    size = int(config.get("intermediate_size", 4 * int(config.need("hidden_size"))))
    return MlpSpec(size, str(config.get("hidden_act", "gelu")), is_gated=False, has_bias=has_bias)


def optional_windows(config: HfConfig, default_types: Sequence[str] | None = None) -> list[Window]:
    """Return `sliding_windows` if `use_sliding_window` is set; otherwise no layer has a window."""
    config.get("max_window_layers")  # `layer_types` supersedes it
    if config.get("use_sliding_window", False):
        return sliding_windows(config, default_types)
    config.get("sliding_window")
    return [None] * len(layer_types(config, default_types or ["sliding_attention"] * config.need("num_hidden_layers")))


def late_windows(config: HfConfig) -> list[Window]:
    """Return `optional_windows`; without `layer_types`, layers from `max_window_layers` on have a window."""
    first, count = int(config.get("max_window_layers", 28)), int(config.need("num_hidden_layers"))
    return optional_windows(config, ["full_attention" if i < first else "sliding_attention" for i in range(count)])


def with_dense_layers(config: HfConfig, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Return `layers` with an MLP instead of experts, as `decoder_sparse_step` and `mlp_only_layers` state."""
    step, dense, mlp = int(config.get("decoder_sparse_step", 1)), config.get("mlp_only_layers", []), mlp_part(config)
    return tuple(
        replace(layer, feed_forward=mlp) if index in dense or (index + 1) % step else layer
        for index, layer in enumerate(layers)
    )


def granite_scaled(config: HfConfig, model: DecoderSpec) -> DecoderSpec:
    """Return `model` with Granite's factors of embeddings, residual sums and logits."""
    return replace(
        model,
        embedding=EmbeddingSpec(scale=float(config.get("embedding_multiplier", 1.0))),
        block=replace(model.block, residual_multiplier=float(config.get("residual_multiplier", 1.0))),
        head=replace(model.head, logit_scale=1 / float(config.get("logits_scaling", 1.0))),
    )


def gemma_mlp_part(config: HfConfig) -> MlpSpec:
    """Return a gated MLP with `hidden_activation`. In early configs, `hidden_act: gelu` means the tanh form, too."""
    stated = config.get("hidden_act", "gelu")
    usual = "gelu_pytorch_tanh" if stated == "gelu" else stated
    return replace(mlp_part(config), activation=str(config.get("hidden_activation", usual)))


def gemma_norm_part(config: HfConfig) -> NormSpec:
    """Return Gemma's RMS norm, whose stored weights are 1 less. Raises SourceError for bidirectional attention."""
    config.refuse("use_bidirectional_attention", False)
    return replace(rms_norm_part(config), weight_offset=1.0)


def sliding_windows(config: HfConfig, default_types: Sequence[str] | None = None) -> list[Window]:
    """Return each layer's `sliding_window`, None for full layers, by `layer_types`.

    default_types: used if the config lists none; None: all layers slide.
    Raises SourceError for an unknown layer type.
    """
    count, window = int(config.need("num_hidden_layers")), window_part(config)
    types = layer_types(config, default_types or ["sliding_attention"] * count)
    return [window if kind == "sliding_attention" else None for kind in types]


def window_part(config: HfConfig) -> Window:
    """Return `sliding_window`. Raises SourceError if it is below 1: transformers would then mask all tokens."""
    window = config.get("sliding_window")
    if window is not None and int(window) < 1:
        what = f"`sliding_window` is `{window}`; expected at least 1"
        raise SourceError(what, config.where, "write null if no layer slides")
    return None if window is None else int(window)


def layer_types(config: HfConfig, usual: Sequence[str], known: Sequence[str] = LAYER_TYPES) -> list[str]:
    """Return `layer_types`, or the `usual` ones if the config lists none. Raises SourceError for an unknown type."""
    types, count = list(config.get("layer_types", list(usual))), int(config.need("num_hidden_layers"))
    if len(types) != count:
        raise SourceError(f"`layer_types` has {len(types)} entries for {count} layers", config.where)
    for kind in types:
        if kind not in known:
            raise config.unsupported("layer_types", kind, known)
    return types


def alternating_types(config: HfConfig, every: int) -> list[str]:
    """Return layer types in which the last of every `every` layers is `full_attention`; the others slide."""
    count = int(config.need("num_hidden_layers"))
    return ["sliding_attention" if (index + 1) % every else "full_attention" for index in range(count)]


def patterned_windows(config: HfConfig) -> list[Window]:
    """Return each layer's window, by `sliding_window_pattern` if the config lists no `layer_types`.

    Raises SourceError for a pattern of letters (`LLLG`) without `layer_types`.
    """
    pattern = config.get("sliding_window_pattern")
    if config.get("sliding_window") is None:
        return [None] * len(sliding_windows(config))
    if config.get("layer_types") is not None:
        return sliding_windows(config)
    if not isinstance(pattern, int) or pattern < 1:
        raise SourceError(f"`sliding_window_pattern` is `{pattern}` without `layer_types`", config.where, FIX)
    return sliding_windows(config, alternating_types(config, pattern))


def sliding_ropes(config: HfConfig, rope: RopeSpec, windows: Sequence[Window]) -> list[RopeSpec | None]:
    """Return each layer's rotary embedding: in a model with sliding layers, full ones have none (EXAONE)."""
    return [rope if window or config.get("sliding_window") is None else None for window in windows]


def layers_part(
    config: HfConfig,
    attention: AttentionSpec,
    feed_forward: MlpSpec | MoeSpec,
    rope: RopeSpec | Sequence[RopeSpec | None] | None,
    windows: Sequence[Window] | None = None,
) -> tuple[LayerSpec, ...]:
    """Return layers that differ only in their window, and in their `rope` if it is a sequence."""
    windows = windows or [None] * int(config.need("num_hidden_layers"))
    ropes = [rope] * len(windows) if rope is None or isinstance(rope, RopeSpec) else rope
    return tuple(
        LayerSpec(replace(attention, rope=turned, sliding_window=window), feed_forward)
        for turned, window in zip(ropes, windows, strict=True)
    )


def decoder_part(
    config: HfConfig, layers: tuple[LayerSpec, ...], norm: NormSpec, names: Mapping[str, str]
) -> DecoderSpec:
    """Return a sequential pre-norm decoder with a norm before the LM head."""
    return DecoderSpec(
        model_type=str(config.get("model_type", "")),
        vocab_size=int(config.need("vocab_size")),
        hidden_size=int(config.need("hidden_size")),
        max_position_embeddings=int(config.get("max_position_embeddings", 0)),
        layers=layers,
        block=BlockSpec(norm),
        head=HeadSpec(norm, bool(config.get("tie_word_embeddings", False))),
        names=names,
        prefix="model.",
    )
