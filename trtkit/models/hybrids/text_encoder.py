"""Text encoders as data: BERT, RoBERTa, DistilBERT, ModernBERT. Each family's file states how it differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.errors import SourceError
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, PartPort
from trtkit.models.hybrids.vision_encoder import num_labels
from trtkit.models.hybrids.weights import checkpoint_name, linear_weights, norm_weights
from trtkit.models.weights import Weight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trtkit.arrays import MatrixShape
    from trtkit.models.attention import AttentionSpec, NormSpec
    from trtkit.models.feed_forward import MlpSpec
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.hybrids.registry import HybridOptions

WRITER = "trtkit.network.blocks.text_encoder:write_text_encoder"
REFERENCE = "trtkit.sources.huggingface.text:from_folder"
USUAL_TOKENS = 128
"""The optimization profile's opt size in tokens, if the config has no range."""


@dataclass(frozen=True)
class TextHead:
    """What follows the last hidden states, in the order of these fields.

    outputs: the outputs' names; if there are several, each is an equal part of the last axis.
    tokens: the hidden states to read: all, the first, or the mean of those that the mask selects.
    activation: of a dense layer; empty without one. norm: after the dense layer.
    labels: outputs of a last projection; 0: there is none. is_tied: its matrix is the word embedding.
    is_normalized: the result is scaled to unit length.
    """

    outputs: tuple[str, ...]
    tokens: Literal["all", "first", "mean"] = "all"
    activation: str = ""
    has_dense_bias: bool = True
    norm: NormSpec | None = None
    labels: int = 0
    has_label_bias: bool = True
    is_tied: bool = False
    is_normalized: bool = False


@dataclass(frozen=True)
class TextEncoderSpec:
    """A text encoder.

    attention: of each layer; a sliding window is the number of tokens on each side.
    max_tokens: per text. num_token_types: rows of the token type table; 0: there is none.
    num_positions: rows of the position table; 0: there is a rotary embedding instead.
    pad_token_id: positions skip tokens with this id and start at the id after it (RoBERTa); None: positions start at 0.
    is_post_norm: norms follow the residual sums (BERT); otherwise they precede each part, except the first layer's
        attention, and a final norm follows the last layer.
    head: None to output hidden states only.
    """

    vocab_size: int
    hidden_size: int
    attention: tuple[AttentionSpec, ...]
    mlp: MlpSpec
    norm: NormSpec
    max_tokens: int
    num_token_types: int = 0
    num_positions: int = 0
    pad_token_id: int | None = None
    is_post_norm: bool = True
    head: TextHead | None = None

    @property
    def outputs(self) -> tuple[PartPort, ...]:
        """The encoder's outputs: hidden states, unless the head replaces them, and the head's outputs."""
        hidden = PartPort("last_hidden_state", ("batch", "tokens", self.hidden_size), "fp32")
        if self.head is None:
            return (hidden,)
        outputs = tuple(PartPort(name, self._head_shape(self.head), "fp32") for name in self.head.outputs)
        return (hidden, *outputs) if self.head.outputs == (POOLED,) else outputs

    def _head_shape(self, head: TextHead) -> tuple[int | str, ...]:
        sizes = () if len(head.outputs) > 1 else (head.labels or self.hidden_size,)
        return ("batch", "tokens", *sizes) if head.tokens == "all" else ("batch", *sizes)


POOLED, EMBEDDING = "pooler_output", "sentence_embedding"
_TASKS = {
    "SequenceClassification": "sequence",
    "TokenClassification": "token",
    "QuestionAnswering": "answer",
    "MaskedLM": "masked",
}


def task_of(config: HfConfig) -> str:
    """Return `body`, `sequence`, `token`, `answer` or `masked`, by the class in `architectures`.

    Raises SourceError for classes with other heads, and for decoders.
    """
    config.refuse("is_decoder", False)
    config.refuse("add_cross_attention", False)
    names = [str(name) for name in config.get("architectures", [])]
    head = names[0].partition("For")[2] if names else ""
    if head and head not in _TASKS:
        raise config.unsupported("architectures", names[0], [f"...For{name}" for name in _TASKS] + ["...Model"])
    return _TASKS.get(head, "body")


def task_head(config: HfConfig, task: str) -> TextHead | None:
    """Return a task's final projection; None for the body. Families add what precedes it."""
    is_tied = bool(config.get("tie_word_embeddings", True))  # read for every task, though only `masked` uses it
    match task:
        case "answer":
            return TextHead(("start_logits", "end_logits"), labels=2)
        case "masked":
            return TextHead(("logits",), labels=int(config.need("vocab_size")), is_tied=is_tied)
        case "body":
            return None
        case _:
            return TextHead(("logits",), labels=num_labels(config))


def replaced_head(head: TextHead | None, task: str, options: HybridOptions, where: str) -> TextHead | None:
    """Return the pooling of a sentence-transformers folder as a head; for other folders, return `head`.

    Raises SourceError for a folder that has both.
    """
    if options.pooling is None:
        return head
    if task != "body":
        what = "`modules.json` pools hidden states, but `architectures` has a head"
        raise SourceError(what, where, "remove `modules.json`, or give the model without its head")
    return TextHead((EMBEDDING,), options.pooling.tokens, is_normalized=options.pooling.is_normalized)


def text_hybrid(
    config: HfConfig, encoder: TextEncoderSpec, table: Mapping[str, str], prefix: str, unused: tuple[str, ...]
) -> HybridSpec:
    """Return the hybrid: a single part, written with the network API.

    table: checkpoint names by path. prefix: of all names but the head's, which are complete.
    """
    text = ("batch", "tokens")
    inputs = [
        PartPort("input_ids", text, "int64", values=encoder.vocab_size),
        PartPort("attention_mask", text, "int64"),
    ]
    if encoder.num_token_types > 1:
        inputs.append(PartPort("token_type_ids", text, "int64", values=encoder.num_token_types))
    weights = tuple(
        Weight(path, checkpoint_name(path, table, prefix, ("head.",)), shape, is_table="embedding" in path)
        for path, shape in _shapes(encoder)
    )
    part = NetworkPart("encoder", tuple(inputs), encoder.outputs, WRITER, encoder, weights)
    usual = min(USUAL_TOKENS, encoder.max_tokens)
    return HybridSpec(
        str(config.get("model_type")),
        (part,),
        (),
        tuple(f"encoder.{port.name}" for port in encoder.outputs),
        reference=REFERENCE,
        unused=(r"position_ids$", *unused),
        ranges={"tokens": (1, usual, encoder.max_tokens)},
    )


def _shapes(spec: TextEncoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    D = spec.hidden_size
    yield "embedding.words.weight", (spec.vocab_size, D)
    if spec.num_positions:
        yield "embedding.positions.weight", (spec.num_positions, D)
    if spec.num_token_types:
        yield "embedding.types.weight", (spec.num_token_types, D)
    yield from _norm("embedding_norm", spec.norm, D)
    for index, attention in enumerate(spec.attention):
        yield from _layer(f"layers.{index}", spec, attention, has_norm=spec.is_post_norm or index > 0)
    if not spec.is_post_norm:
        yield from _norm("final_norm", spec.norm, D)
    if spec.head is not None:
        yield from _head(spec.head, spec)


def _layer(
    path: str, spec: TextEncoderSpec, attention: AttentionSpec, *, has_norm: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    D, F = spec.hidden_size, spec.mlp.intermediate_size
    if has_norm:
        yield from _norm(f"{path}.attention_norm", spec.norm, D)
    fused = [("qkv", 3 * D)] if attention.qkv == "concatenated" else [(name, D) for name in "qkv"]
    for name, rows in fused:
        yield from _linear(f"{path}.attention.{name}", (rows, D), has_bias=attention.has_qkv_bias)
    yield from _linear(f"{path}.attention.o", (D, D), has_bias=attention.has_output_bias)
    yield from _norm(f"{path}.mlp_norm", spec.norm, D)
    wide = ("gate_up", 2 * F) if spec.mlp.is_fused else ("up", F)
    yield from _linear(f"{path}.mlp.{wide[0]}", (wide[1], D), has_bias=spec.mlp.has_bias)
    yield from _linear(f"{path}.mlp.down", (D, F), has_bias=spec.mlp.has_bias)


def _head(head: TextHead, spec: TextEncoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    D = spec.hidden_size
    if head.activation:
        yield from _linear("head.dense", (D, D), has_bias=head.has_dense_bias)
    if head.norm is not None:
        yield from _norm("head.norm", head.norm, D)
    if head.labels:
        shapes = dict(_linear("head.labels", (head.labels, D), has_bias=head.has_label_bias))
        yield from ((path, shape) for path, shape in shapes.items() if not (head.is_tied and path.endswith("weight")))


def _linear(path: str, shape: MatrixShape, *, has_bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from ((weight.path, weight.shape) for weight in linear_weights(path, path, shape, has_bias=has_bias))


def _norm(path: str, norm: NormSpec, size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for weight in norm_weights(path, path, size):
        if norm.has_bias or not weight.path.endswith("bias"):
            yield weight.path, weight.shape
