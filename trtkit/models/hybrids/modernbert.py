"""ModernBERT (Warner et al., arXiv:2412.13663). HF: `ModernBertModel` and its heads."""

from dataclasses import replace
from typing import Literal

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, NormSpec, RopeSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec
from trtkit.models.hybrids.text_encoder import TextEncoderSpec, TextHead, replaced_head, task_head, task_of, text_hybrid
from trtkit.models.names import names
from trtkit.models.parts import attention_part, mlp_part
from trtkit.models.rope import LAYER_TYPES, rope_spec

ALIASES = {"hidden_act": "hidden_activation"}
DEFAULTS = {"intermediate_size": 1152, "max_position_embeddings": 8192, "hidden_act": "gelu"}
IMMATERIAL = (
    "initializer_cutoff_factor", "mlp_dropout", "deterministic_flash_attn", "sparse_prediction",
    "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "cls_token_id", "sep_token_id",
    "gradient_checkpointing",
)  # fmt: skip
_THETAS = {"full_attention": ("global_rope_theta", 160_000.0), "sliding_attention": ("local_rope_theta", 10_000.0)}
_TABLE = names(
    "layers.{i}.",
    {"embedding.words": "embeddings.tok_embeddings", "embedding_norm": "embeddings.norm", "final_norm": "final_norm"},
    {
        "attention_norm": "attn_norm",
        "mlp_norm": "mlp_norm",
        "attention.qkv": "attn.Wqkv",
        "attention.o": "attn.Wo",
        "mlp.gate_up": "mlp.Wi",
        "mlp.down": "mlp.Wo",
    },
)
_HEAD = {"head.dense": "head.dense", "head.norm": "head.norm", "head.labels": "classifier"}
_MASKED = {**_HEAD, "head.labels": "decoder"}


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the encoder that a config describes, with the head of its task."""
    task = task_of(config)
    norm = NormSpec("layer", float(config.get("norm_eps", 1e-5)), has_bias=bool(config.get("norm_bias", False)))
    encoder = TextEncoderSpec(
        vocab_size=int(config.need("vocab_size")),
        hidden_size=int(config.need("hidden_size")),
        attention=tuple(_layers(config)),
        mlp=replace(mlp_part(config, has_bias=bool(config.get("mlp_bias", False))), is_fused=True),
        norm=norm,
        max_tokens=int(config.get("max_position_embeddings", 8192)),
        is_post_norm=False,
        head=replaced_head(_head(config, task, norm), task, options, config.where),
    )
    table = {**_TABLE, **(_MASKED if task == "masked" else _HEAD)}
    unused = (r"^decoder\.weight$",) if task == "masked" else ()
    return text_hybrid(config, encoder, table, "" if task == "body" else "model.", unused)


def _layers(config: HfConfig) -> list[AttentionSpec]:
    """Return each layer's attention: full, or limited to a window around the token."""
    has_bias, count = bool(config.get("attention_bias", False)), int(config.need("num_hidden_layers"))
    attention = replace(attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias), qkv="concatenated")
    every, local = int(config.get("global_attn_every_n_layers", 3)), int(config.get("local_attention", 128)) // 2
    usual = ["sliding_attention" if index % every else "full_attention" for index in range(count)]
    types = [str(kind) for kind in config.get("layer_types", usual)]
    if len(types) != count:
        raise SourceError(f"`layer_types` has {len(types)} entries for {count} layers", config.where)
    ropes = {kind: _rope(config, kind, attention.head_dim) for kind in LAYER_TYPES}
    for kind in types:
        if kind not in ropes:
            raise config.unsupported("layer_types", kind, LAYER_TYPES)
    windows = {"full_attention": None, "sliding_attention": local}
    return [replace(attention, rope=ropes[kind], sliding_window=windows[kind]) for kind in types]


def _rope(config: HfConfig, kind: str, head_dim: int) -> RopeSpec:
    name, usual = _THETAS[kind]
    theta = float(config.get(name, usual))
    config.refuse("rope_scaling")
    rope = rope_spec(config, head_dim, layer_type=kind, theta=theta)
    if rope.scaling != "default":
        what = f"`rope_parameters.{kind}.rope_type` is `{rope.scaling}`, only `default` is supported"
        raise SourceError(what, config.where)
    return rope


def _head(config: HfConfig, task: str, norm: NormSpec) -> TextHead | None:
    tokens, head = _tokens(config), task_head(config, task)
    activation, has_bias = str(config.get("classifier_activation", "gelu")), bool(config.get("classifier_bias", False))
    has_label_bias = bool(config.get("decoder_bias", True)) or task != "masked"
    if head is None:
        return None
    head = replace(head, activation=activation, has_dense_bias=has_bias, norm=norm, has_label_bias=has_label_bias)
    return replace(head, tokens=tokens) if task == "sequence" else head


def _tokens(config: HfConfig) -> Literal["first", "mean"]:
    """Return which hidden states the classifier reads, from `classifier_pooling`. Raises SourceError."""
    pooling = str(config.get("classifier_pooling", "cls"))
    if pooling not in ("cls", "mean"):
        raise config.unsupported("classifier_pooling", pooling, ("cls", "mean"))
    return "first" if pooling == "cls" else "mean"
