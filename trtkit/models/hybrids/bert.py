"""BERT (Devlin et al., arXiv:1810.04805); RoBERTa, which numbers positions differently. HF: `BertModel`, its heads."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.hf_config import HfConfig
from trtkit.models.hybrids.registry import HybridOptions
from trtkit.models.hybrids.spec import HybridSpec
from trtkit.models.hybrids.text_encoder import (
    POOLED,
    TextEncoderSpec,
    TextHead,
    replaced_head,
    task_head,
    task_of,
    text_hybrid,
)
from trtkit.models.names import names
from trtkit.models.parts import attention_part, layer_norm_part, plain_mlp_part

IMMATERIAL = ("attention_probs_dropout_prob",)
DEFAULTS = {"layer_norm_eps": 1e-12, "type_vocab_size": 2, "pad_token_id": 0, "intermediate_size": 3072}
_TABLE = names(
    "encoder.layer.{i}.",
    {
        "embedding.words": "embeddings.word_embeddings",
        "embedding.positions": "embeddings.position_embeddings",
        "embedding.types": "embeddings.token_type_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
    },
    {
        "attention_norm": "attention.output.LayerNorm",
        "mlp_norm": "output.LayerNorm",
        "attention.q": "attention.self.query",
        "attention.k": "attention.self.key",
        "attention.v": "attention.self.value",
        "attention.o": "attention.output.dense",
        "mlp.up": "intermediate.dense",
        "mlp.down": "output.dense",
    },
)
# Full checkpoint names of the heads, by task.
_BERT_HEADS = {
    "body": {"head.dense": "pooler.dense"},
    "sequence": {"head.dense": "bert.pooler.dense", "head.labels": "classifier"},
    "token": {"head.labels": "classifier"},
    "answer": {"head.labels": "qa_outputs"},
    "masked": {
        "head.dense": "cls.predictions.transform.dense",
        "head.norm": "cls.predictions.transform.LayerNorm",
        "head.labels": "cls.predictions.decoder",
        "head.labels.bias": "cls.predictions.bias",
    },
}
_ROBERTA_HEADS = {
    "body": {"head.dense": "pooler.dense"},
    "sequence": {"head.dense": "classifier.dense", "head.labels": "classifier.out_proj"},
    "token": {"head.labels": "classifier"},
    "answer": {"head.labels": "qa_outputs"},
    "masked": {
        "head.dense": "lm_head.dense",
        "head.norm": "lm_head.layer_norm",
        "head.labels": "lm_head.decoder",
        "head.labels.bias": "lm_head.bias",
    },
}
_UNUSED = (
    r"^cls\.seq_relationship\.",
    r"^(cls\.predictions|lm_head)\.(decoder\.|bias$)",  # tied to other weights, or unused
)


def spec(config: HfConfig, options: HybridOptions) -> HybridSpec:
    """Return the encoder that a config describes, with the head of its task."""
    is_bert = config.need("model_type") == "bert"
    config.refuse("position_embedding_type", "absolute")
    task = task_of(config)
    positions = int(config.get("max_position_embeddings", 512))
    pad = None if is_bert else int(config.get("pad_token_id", 1))
    attention = attention_part(config, has_qkv_bias=True, has_output_bias=True)
    encoder = TextEncoderSpec(
        vocab_size=int(config.need("vocab_size")),
        hidden_size=int(config.need("hidden_size")),
        attention=(attention,) * int(config.need("num_hidden_layers")),
        mlp=plain_mlp_part(config),
        norm=layer_norm_part(config),
        max_tokens=positions if pad is None else positions - pad - 1,
        num_token_types=int(config.get("type_vocab_size", 1)),
        num_positions=positions,
        pad_token_id=pad,
    )
    if encoder.max_tokens < 1:
        what = f"`max_position_embeddings` is {positions}, and the first {positions - encoder.max_tokens} are unused"
        raise SourceError(what, config.where)
    head = replaced_head(_head(config, task, encoder), task, options, config.where)
    assert head is not None
    is_body, prefix = task == "body", "bert." if is_bert else "roberta."
    heads = (_BERT_HEADS if is_bert else _ROBERTA_HEADS)[task]
    pooler = () if head.outputs == (POOLED,) or (task == "sequence" and is_bert) else (r"^(\w+\.)?pooler\.",)
    table = {**_TABLE, **heads}
    if not head.is_tied:
        table.pop("head.labels.bias", None)  # then the projection has its own
    return text_hybrid(config, replace(encoder, head=head), table, "" if is_body else prefix, (*_UNUSED, *pooler))


def _head(config: HfConfig, task: str, encoder: TextEncoderSpec) -> TextHead:
    """Return a task's head; for a model without one, the pooler."""
    head = task_head(config, task)
    if head is None:
        return TextHead((POOLED,), "first", "tanh")
    if task == "sequence":
        return replace(head, tokens="first", activation="tanh")
    activation = str(config.get("hidden_act", "gelu")) if encoder.pad_token_id is None else "gelu"
    return replace(head, activation=activation, norm=encoder.norm) if task == "masked" else head
