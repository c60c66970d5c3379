"""Gemma 4's assistant as data: a few layers that read the model's own caches and guess tokens.

Source: transformers, `Gemma4AssistantForCausalLM` and `SinglePositionMultiTokenCandidateGenerator`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trtkit.drafts.fit import SizePair, check_target
from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec
from trtkit.models.gemma_parts import unused_weights
from trtkit.models.hf_config import HfConfig
from trtkit.models.registry import decoder_spec
from trtkit.models.spec import DecoderSpec, HeadSpec
from trtkit.models.speculators import Fields
from trtkit.models.weights import Weight, model_weights

GEMMA4_ASSISTANT, TITLE = "gemma4_assistant", "Gemma 4's assistant"
SIGN = f"`model_type` of {GEMMA4_ASSISTANT}"
FAMILY = "gemma4_text"
"""The `model_type` of models that have assistants, and of an assistant's layers."""
TABLE, LM_HEAD = "embedding.weight", "lm_head.weight"
CENTROIDS, ORDER = "clusters.centroids.weight", "clusters.order"
_OFF = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144}  # Gemma 4's defaults
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class ClusterSpec:
    """Clusters of tokens, `count` of equal size. Only tokens of the `top_k` best clusters are guessed."""

    count: int
    top_k: int


@dataclass(frozen=True)
class AssistantSpec:
    """An assistant. decoder: its layers, which read the caches of the model's layers, and its sizes.

    target_hidden_size, embedding_scale: of the model, whose hidden states and scaled embedding it reads.
    """

    decoder: DecoderSpec
    target_hidden_size: int
    embedding_scale: float
    clusters: ClusterSpec | None = None

    @property
    def kind(self) -> str:
        return GEMMA4_ASSISTANT

    @property
    def fusion(self) -> None:
        """None: it reads the model's hidden state after the final norm."""

    @property
    def cached_elements(self) -> int:
        """0: it has no cache of its own."""
        return 0

    @property
    def reads_target_caches(self) -> bool:
        return True

    @property
    def most_tokens(self) -> int | None:
        """None, for no limit: each guess is made from the one before."""
        return None

    @property
    def description(self) -> str:
        """Return the kind, its guesses and its inputs, for people."""
        sources = ", ".join(map(str, sorted(self.sources)))
        clusters, tokens = self.clusters, f"{self.decoder.vocab_size} tokens"
        if clusters is not None:
            tokens += f" in {clusters.count} clusters, of which it reads {clusters.top_k}"
        return f"Gemma 4's assistant of {len(self.decoder.layers)} layers, {tokens}; reads caches of layers {sources}"

    @property
    def sources(self) -> Mapping[int, AttentionSpec]:
        """The model layers whose caches it reads, each with the attention of a layer that reads it."""
        return {
            attention.cache_of: attention for attention in self.decoder.attentions if attention.cache_of is not None
        }

    def fusion_weights(self) -> Iterator[Weight]:
        """Yield nothing: the model's network has no weights of the assistant."""
        yield from ()

    def network_weights(self) -> Iterator[Weight]:
        """Yield the weights of its own network, including the model's embedding, by their names in checkpoints."""
        width, size, vocab = self.decoder.hidden_size, self.target_hidden_size, self.decoder.vocab_size
        yield Weight(TABLE, "", (vocab, size), is_table=True)
        yield from (weight for weight in model_weights(self.decoder) if weight.path != TABLE)
        yield Weight("pre_projection.weight", "pre_projection.weight", (width, 2 * size))
        yield Weight("post_projection.weight", "post_projection.weight", (size, width))
        if self.clusters is not None:
            yield Weight(CENTROIDS, "masked_embedding.centroids.weight", (self.clusters.count, width))
            yield Weight(ORDER, "masked_embedding.token_ordering", (vocab,), is_table=True)

    @property
    def unused(self) -> tuple[str, ...]:
        """Name prefixes of weights that checkpoints may hold and transformers ignores."""
        return unused_weights(range(len(self.decoder.layers)))


def describes(fields: Fields) -> bool:
    """Whether a `config.json` is an assistant's."""
    return bool(fields.get("model_type") == GEMMA4_ASSISTANT)


def obstacles(target: DecoderSpec) -> Iterator[str]:
    """Yield why a model cannot have an assistant."""
    if target.model_type != FAMILY:
        yield f"Gemma 4's assistant reads the caches of a `{FAMILY}`, and the model is a `{target.model_type}`"
    elif lacking := {_SLIDING, _FULL} - set(_sources(target)):
        yield f"the model has no layer of type `{min(lacking)}` whose cache an assistant could read"


def assistant_spec(fields: Fields, where: str, target: DecoderSpec) -> AssistantSpec:
    """Return the assistant that a `config.json` describes.

    Raises SourceError, ProblemsError for unsupported or unknown fields, and for mismatches with the model `target`.
    """
    config = HfConfig(fields, where)
    layers, count = _layer_fields(config), int(config.get("num_centroids", 2048))
    top_k, size = int(config.get("centroid_intermediate_top_k", 32)), int(config.get("backbone_hidden_size", 1536))
    clusters = ClusterSpec(count, top_k) if config.get("use_ordered_embeddings", False) else None
    config.get("tie_word_embeddings", True)  # the files show it: a tied matrix is stored as the embedding
    config.check_all_read()
    own_decoder = decoder_spec(layers, f"{where}: text_config")
    decoder = replace(
        own_decoder,
        layers=tuple(replace(layer, mixer=_reading(layer.attention, target)) for layer in own_decoder.layers),
        head=HeadSpec(own_decoder.head.norm, is_tied=False),
    )
    spec = AssistantSpec(decoder, size, target.embedding.scale, clusters)
    tokens = SizePair("vocab_size", decoder.vocab_size, target.vocab_size)
    check_target(_sizes(spec, target), tokens, where)
    if clusters is not None:
        _check_clusters(clusters, decoder.vocab_size, where)
    return spec


def _layer_fields(config: HfConfig) -> dict[str, object]:
    """Return the config of an assistant's layers in the form of a model with its own caches."""
    fields = config.need("text_config")
    if not isinstance(fields, dict) or fields.get("model_type") != FAMILY:
        raise SourceError(f"`text_config` must be that of a `{FAMILY}`", config.where)
    layers = HfConfig(fields, f"{config.where}: text_config")
    for name, default in _OFF.items():
        if (value := layers.get(name, default)) != 0:
            raise SourceError(f"`{name}` is `{value}`; an assistant has 0", layers.where)
    for name in ("enable_moe_block", "use_double_wide_mlp"):
        layers.refuse(name, False)
    count, shared = int(layers.need("num_hidden_layers")), layers.get("num_kv_shared_layers", 0)
    if shared not in (0, count):
        what = f"`num_kv_shared_layers` is `{shared}`; all {count} layers of an assistant read the model's caches"
        raise SourceError(what, layers.where)
    # An assistant's logits are not capped, whatever its config says.
    return {**fields, "num_kv_shared_layers": 0, "final_logit_softcapping": None}


def _reading(attention: AttentionSpec, target: DecoderSpec) -> AttentionSpec:
    """Return the attention of a layer that reads the model's cache.

    Its queries have the position of the embedded token, whose own key is not cached yet. A window of W shows the W + 1
    keys before it, which are W + 2 tokens including itself, as windows are counted here.
    """
    window, source = attention.sliding_window, _sources(target)[_type(attention)]
    return replace(attention, cache_of=source, sliding_window=None if window is None else window + 2)


def _sources(target: DecoderSpec) -> dict[str, int]:
    """Return, by type, the model's last layer that has its own cache."""
    owners = ((index, layer.attention) for index, layer in target.numbered_layers)
    return {_type(attention): index for index, attention in owners if attention.cache_of is None}


def _type(attention: AttentionSpec) -> str:
    return _FULL if attention.sliding_window is None else _SLIDING


def _sizes(spec: AssistantSpec, target: DecoderSpec) -> Iterator[SizePair]:
    """Yield the sizes in which an assistant and its model must agree."""
    yield SizePair("`vocab_size`", spec.decoder.vocab_size, target.vocab_size)
    yield SizePair("`backbone_hidden_size`", spec.target_hidden_size, target.hidden_size)
    for source, reader in spec.sources.items():
        kind, owner = _type(reader), target.layers[source].attention
        yield SizePair(f"`{kind}`: the head size", reader.head_dim, owner.head_dim)
        heads = reader.num_key_value_heads, owner.num_key_value_heads
        yield SizePair(f"`{kind}`: the number of key/value heads", *heads)


def _check_clusters(clusters: ClusterSpec, vocab_size: int, where: str) -> None:
    """Raise SourceError for clusters of unequal size, or fewer clusters than `top_k`."""
    if clusters.count < 1 or vocab_size % clusters.count:
        raise SourceError(f"`num_centroids` is {clusters.count}, which does not divide {vocab_size} tokens", where)
    if not 0 < clusters.top_k <= clusters.count:
        what = f"`centroid_intermediate_top_k` is {clusters.top_k}, of {clusters.count} clusters"
        raise SourceError(what, where)
