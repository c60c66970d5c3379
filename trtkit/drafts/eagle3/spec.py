"""An EAGLE-3 head as data: one layer that guesses tokens from hidden states of the model that it was trained for.

Sources: https://arxiv.org/abs/2503.01840; config.json of SafeAILab's heads (`LlamaForCausalLMEagle3`) and of vLLM's
`speculators`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtkit.drafts.fit import SizePair, check_target
from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.models.hf_config import HfConfig
from trtkit.models.registry import decoder_spec
from trtkit.models.spec import DecoderSpec, HeadSpec
from trtkit.models.speculators import Fields, FusionSpec
from trtkit.models.weights import Weight, model_weights

EAGLE3, TITLE = "eagle3", "EAGLE-3"
ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel")
SIGN = f"`architectures` of {', '.join(ARCHITECTURES)}"
LAYERS = ("llama", "qwen3")
"""Families that a head's layer may belong to."""
_NESTED = "transformer_layer_config"
_LAYER_IDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")
_OWN = ("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# Fields of one of the formats whose only supported value is given, and fields without effect here.
_FIXED = {
    "num_hidden_layers": 1,
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
    "has_no_defaults_at_init": False,
}
_IDLE = (
    "speculators_config",
    "speculators_version",
    "speculators_model_type",
    "embed_requires_grad",
    "target_model_type",
    "modelopt_version",
    "eagle_decoder_type",
    "enable_sp_ulysses",
    "architectures",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "_name_or_path",
    "auto_map",
    "tie_word_embeddings",  # heads have their own matrix for logits
)


@dataclass(frozen=True)
class Eagle3Spec:
    """A head. decoder: its layer, numbered after the model's, and sizes. draft_vocab_size: tokens that it can guess.

    target_hidden_size: of the model. has_normed_residual: whether the layer adds to normed hidden states.
    has_normed_output: whether the next guess uses the hidden state after the final norm.
    """

    decoder: DecoderSpec
    fusion: FusionSpec
    draft_vocab_size: int
    target_hidden_size: int
    has_normed_residual: bool = False
    has_normed_output: bool = False

    @property
    def kind(self) -> str:
        return EAGLE3

    @property
    def layer_index(self) -> int:
        """The number of the head's layer; its caches follow those of the model's layers."""
        return self.decoder.first_layer

    @property
    def cached_elements(self) -> int:
        """Elements per token in the layer's cache."""
        return self.decoder.cached_elements

    @property
    def reads_target_caches(self) -> bool:
        return False

    @property
    def most_tokens(self) -> int | None:
        """None, for no limit: each guess is made from the one before."""
        return None

    @property
    def description(self) -> str:
        """Return the kind, its guesses and its inputs, for people."""
        tokens = f"{self.draft_vocab_size} of {self.decoder.vocab_size} tokens"
        layers = ", ".join(map(str, self.fusion.layers))
        return f"EAGLE-3, {tokens}; reads the hidden states that layers {layers} of the model begin with"

    def fusion_weights(self) -> Iterator[Weight]:
        """Yield the weights in the model's network that belong to the head."""
        fusion, size = self.fusion, self.target_hidden_size
        count = len(fusion.layers)
        yield Weight("speculator.fc.weight", "fc.weight", (fusion.hidden_size, count * size))
        if fusion.has_bias:
            yield Weight("speculator.fc.bias", "fc.bias", (fusion.hidden_size,))
        if fusion.is_normed_apart:
            names = [f"fc_norm.{index}.weight" for index in range(count)]
            yield from (Weight(f"speculator.{name}", name, (size,)) for name in names)
        elif fusion.norm is not None:
            yield Weight("speculator.input_norm.weight", "input_norm.weight", (count * size,))

    def network_weights(self) -> Iterator[Weight]:
        """Yield the weights of the head's own network. Names lack the prefixes of checkpoints."""
        layer, size = f"layers.{self.layer_index}", self.decoder.hidden_size
        shapes = {"lm_head.weight": (self.draft_vocab_size, size)}
        joined = {f"{layer}.attention.{name}.weight" for name in "qkv"}  # read embeddings and hidden states, joined
        for weight in model_weights(self.decoder):
            shape = (weight.shape[0], 2 * size) if weight.path in joined else weight.shape
            name = weight.name.removeprefix("model.").removeprefix(f"{layer}.")
            yield replace(weight, name=name, shape=shapes.get(weight.path, shape))
        yield Weight(f"{layer}.hidden_norm.weight", "hidden_norm.weight", (size,))


def eagle3_spec(fields: Fields, where: str, target: DecoderSpec) -> Eagle3Spec:
    """Return the head that a `config.json` describes.

    Raises SourceError, ProblemsError for unsupported or unknown fields, and for mismatches with the model `target`.
    """
    decoder = decoder_spec(layer_fields(fields, where), where)
    config = HfConfig(_unnested(fields, where), where)
    norm, count = decoder.block.norm, len(target.layers)
    spec = Eagle3Spec(
        replace(decoder, first_layer=count, head=HeadSpec(norm, is_tied=False)),
        _fusion(config, count, decoder),
        int(config.get("draft_vocab_size", decoder.vocab_size)),
        int(config.get("target_hidden_size", decoder.hidden_size)),
        has_normed_residual=bool(config.get("norm_before_residual", False)),
        has_normed_output=bool(config.get("norm_output", False)),
    )
    sizes = (
        SizePair("`vocab_size`", spec.decoder.vocab_size, target.vocab_size),
        SizePair("`target_hidden_size`, or `hidden_size`", spec.target_hidden_size, target.hidden_size),
    )
    check_target(sizes, SizePair("draft_vocab_size", spec.draft_vocab_size, spec.decoder.vocab_size), where)
    if any(attention.sliding_window for attention in decoder.attentions):
        raise SourceError("a head whose layer slides is not supported", where)
    return spec


def layer_fields(fields: Fields, where: str) -> dict[str, object]:
    """Return the config of a head's layer in the form of a one-layer model's. Raises what `eagle3_spec` raises."""
    fields = _unnested(fields, where)
    _check_fixed(fields, where)
    left_out = {*_OWN, *_LAYER_IDS, *_FIXED, *_IDLE}
    if fields["model_type"] == "llama" and not fields.get("use_sliding_window"):
        left_out.add("max_window_layers")  # of a Qwen model from whose config the head's was made
    return {**{name: value for name, value in fields.items() if name not in left_out}, "num_hidden_layers": 1}


def obstacles(target: DecoderSpec) -> Iterator[str]:
    """Yield why a model cannot have an EAGLE-3 head."""
    embedding, block = target.embedding, target.block
    if target.states:
        yield "the model has recurrent states, which a head's guesses would have to be rewound in"
    if block.streams is not None or block.is_post_norm:
        yield "the model's layers do not pass on one hidden state before its norm"
    if embedding.scale != 1 or embedding.positions is not None or embedding.norm is not None:
        yield "the model scales, norms or adds positions to its embedding, which heads were not trained on"


def describes(fields: Fields) -> bool:
    """Whether a `config.json` is an EAGLE-3 head's."""
    named, kind = list(fields.get("architectures") or ()), fields.get("speculators_model_type")
    if kind is not None:
        return bool(kind == EAGLE3)
    # SafeAILab's own files name the Llama class of the head's layer.
    return bool(set(named) & set(ARCHITECTURES)) or (named == ["LlamaForCausalLM"] and "draft_vocab_size" in fields)


def _unnested(fields: Fields, where: str) -> dict[str, object]:
    """Return the fields of either format, flattened. Raises SourceError for a layer of another family."""
    layer, eagle = fields.get(_NESTED), fields.get("eagle_config") or {}
    if not isinstance(layer, dict | None) or not isinstance(eagle, dict):
        raise SourceError(f"`{_NESTED}` and `eagle_config` must be mappings", where)
    if layer is not None:
        _check_nested(fields, layer, where)
    outer = {key: value for key, value in fields.items() if key not in (_NESTED, "eagle_config")}
    # Here, unlike in vLLM's fields, a layer's number refers to its output.
    nested = {key: [int(i) + 1 for i in value] if key in _LAYER_IDS else value for key, value in eagle.items()}
    flat = {"model_type": "llama", **nested, **(layer or {}), **outer}
    if flat["model_type"] not in LAYERS:
        what = f"a head whose layer is of the family `{flat['model_type']}` is not supported"
        raise SourceError(what, where, f"use a layer of {' or '.join(LAYERS)}")
    return flat


def _check_nested(fields: Fields, layer: Fields, where: str) -> None:
    """Raise ProblemsError for fields whose defaults differ between vLLM and `speculators`."""
    missing = [f"{_NESTED}.model_type"] if "model_type" not in layer else []
    missing += ["norm_before_residual"] if "norm_before_residual" not in fields else []
    if missing:
        problems = [Problem(f"`{name}` is missing", where) for name in missing]
        raise ProblemsError("fields without which a head cannot be read", problems, "add them, as it was trained")


def _check_fixed(fields: Fields, where: str) -> None:
    """Raise ProblemsError for fields with unsupported values."""
    problems = [
        Problem(f"`{name}` is `{fields[name]}`; only `{value}` is supported", where)
        for name, value in _FIXED.items()
        if name in fields and fields[name] not in (value, None)
    ]
    if problems:
        raise ProblemsError("the head is of a form that is not supported", problems)


def _fusion(config: HfConfig, count: int, decoder: DecoderSpec) -> FusionSpec:
    """Return the fusion of hidden states that a model of `count` layers provides for its head."""
    of_all, of_each = (bool(config.get(name, False)) for name in ("norm_before_fc", "fc_norm"))
    if of_all and of_each:
        raise SourceError("`norm_before_fc` and `fc_norm` exclude each other", config.where)
    norm = decoder.block.norm if of_all or of_each else None
    return FusionSpec(_layers(config, count), decoder.hidden_size, norm, is_normed_apart=of_each)


def _layers(config: HfConfig, count: int) -> tuple[int, ...]:
    """Return the layers whose inputs the head reads; the usual three if the config names none.

    Runtimes join hidden states in layer order, whatever the order of the numbers.
    """
    named = next((ids for name in _LAYER_IDS if (ids := config.get(name))), None)
    layers = (2, count // 2, count - 3) if named is None else tuple(sorted(int(index) for index in named))
    if not all(0 <= index < count for index in layers) or len(set(layers)) != len(layers):
        what = f"hidden states of layers {list(layers)} cannot be read from a model of {count} layers"
        raise SourceError(what, config.where, f"name different layers from 0 to {count - 1} in `{_LAYER_IDS[0]}`")
    return layers
