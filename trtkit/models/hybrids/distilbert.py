"""DistilBERT (Sanh et al., arXiv:1910.01108). HF: `DistilBertModel` and its heads."""

from dataclasses import replace

from trtkit.models.attention import NormSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec
from trtkit.models.hybrids.text_encoder import TextEncoderSpec, TextHead, replaced_head, task_head, task_of, text_hybrid
from trtkit.models.names import names
from trtkit.models.parts import attention_part, plain_mlp_part

ALIASES = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}
DEFAULTS = {"intermediate_size": 3072, "tie_word_embeddings": True}
# `sinusoidal_pos_embds` does not matter: checkpoints store sinusoidal positions like learned ones.
IMMATERIAL = ("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_")
_TABLE = names(
    "transformer.layer.{i}.",
    {
        "embedding.words": "embeddings.word_embeddings",
        "embedding.positions": "embeddings.position_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
    },
    {
        "attention_norm": "sa_layer_norm",
        "mlp_norm": "output_layer_norm",
        "attention.q": "attention.q_lin",
        "attention.k": "attention.k_lin",
        "attention.v": "attention.v_lin",
        "attention.o": "attention.out_lin",
        "mlp.up": "ffn.lin1",
        "mlp.down": "ffn.lin2",
    },
)
_HEADS: dict[str, dict[str, str]] = {
    "body": {},
    "sequence": {"head.dense": "pre_classifier", "head.labels": "classifier"},
    "token": {"head.labels": "classifier"},
    "answer": {"head.labels": "qa_outputs"},
    "masked": {
        "head.dense": "vocab_transform",
        "head.norm": "vocab_layer_norm",
        "head.labels": "vocab_projector",
    },
}


_NORM = NormSpec("layer", 1e-12, has_bias=True)


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the encoder that a config describes, with the head of its task."""
    task, positions = task_of(config), int(config.get("max_position_embeddings", 512))
    encoder = TextEncoderSpec(
        vocab_size=int(config.need("vocab_size")),
        hidden_size=int(config.need("hidden_size")),
        attention=(attention_part(config, has_qkv_bias=True, has_output_bias=True),)
        * int(config.need("num_hidden_layers")),
        mlp=plain_mlp_part(config),
        norm=_NORM,
        max_tokens=positions,
        num_positions=positions,
        head=replaced_head(_head(config, task), task, options, config.where),
    )
    unused = (r"^vocab_projector\.weight$",) if task == "masked" else ()
    return text_hybrid(config, encoder, {**_TABLE, **_HEADS[task]}, "" if task == "body" else "distilbert.", unused)


def _head(config: HfConfig, task: str) -> TextHead | None:
    head = task_head(config, task)
    if head is None or task not in ("sequence", "masked"):
        return head
    if task == "sequence":
        return replace(head, tokens="first", activation="relu")
    return replace(head, activation=str(config.get("hidden_act", "gelu")), norm=_NORM)
