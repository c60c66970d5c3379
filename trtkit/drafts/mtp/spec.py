"""An MTP module, as data: a decoder layer after a model's own that guesses the token after the next one.

In all families below, position i of the module reads two vectors, each normed: the embedding of token i + 1, and the
model's hidden state after token i, which is the one after the model's final norm. A projection joins them, a decoder
layer and a last norm follow, and the model's LM head gives the logits of token i + 2. For one more guess, the hidden
state is the module's own after its last norm. Positions are counted as the model's, and no input is masked.

Sources, read for the order, the norms, the side of the final norm and the chain:

- DeepSeek-V3: https://arxiv.org/abs/2412.19437, section 2.2 (which writes the hidden state first), and
  https://github.com/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md for the weights: the columns of `eh_proj` are
  the embedding's, then the hidden state's, in both `deepseek_mtp.py` of vLLM and `deepseek_nextn.py` of SGLang.
  The chain: SGLang, and https://github.com/vllm-project/vllm/pull/47448; the paper's chain has a module for each guess.
- GLM-4.5: https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/models/glm4_moe_mtp.py, by its authors.
  GLM-4.7-Flash: `glm4_moe_lite_mtp.py` next to it, by the same.
- Qwen3-Next: `qwen3_next_mtp.py` of vLLM and of SGLang, which agree; Qwen3.5: `qwen3_5_mtp.py` of both.
- MiMo: `modeling_mimo.py` of its authors, in https://huggingface.co/XiaomiMiMo/MiMo-7B-RL, which joins the hidden state
  first, and has attention and MLP of Qwen 2's layer 0; `mimo_mtp.py` of vLLM, by its authors, and of SGLang.
- MiMo-V2-Flash: `mimo_v2_mtp.py` of vLLM and `mimo_v2_nextn.py` of SGLang, which agree: attention slides, as the
  model's does in its sliding layers, and an MLP follows. Files have three modules, the first guesses, as in vLLM.
- K-EXAONE: `exaone_moe_mtp.py` of vLLM and of SGLang, by its authors, and TensorRT-LLM's `modeling_exaone_moe.py`: an
  MLP, and attention by `mtp_layer_types`, which turns neither queries nor keys if it does not slide.
- Mellum 2: transformers, `MtpModel` in `modeling_layers.py`, and the names in its `conversion_mapping.py`.

vLLM sets the embedding at position 0 to zero in DeepSeek-V3, GLM and MiMo, SGLang in MiMo, transformers and the papers
in none; here it is read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from trtkit.drafts.fit import SizePair, check_target
from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec
from trtkit.models.registry import decoder_spec
from trtkit.models.spec import DecoderSpec, HeadSpec
from trtkit.models.speculators import Fields
from trtkit.models.weights import Weight, model_weights

MTP, TITLE = "mtp", "MTP modules"
EMBEDDING_NORM, HIDDEN_NORM, PROJECTION = "embedding_norm", "hidden_norm", "joined"
TABLE, LM_HEAD = "embedding.weight", "lm_head.weight"
SHARED = (TABLE, LM_HEAD)
"""Weights taken from the model if a checkpoint does not repeat them."""


@dataclass(frozen=True)
class Layout:
    """How checkpoints of some families hold a module. start: name prefix; `{i}` is the number after the layers'.

    layer: name prefix of its decoder layer.
    inside: names after `start`, by path, outside that layer.
    counts: fields with the number of modules, and their defaults.
    one_layer: derives the config of a model whose only layer is the module's from the model's config.
    in_layer: names in that layer that differ from the model's, by path.
    joins_hidden_first: whether the projection reads the hidden state before the embedding.
    """

    start: str
    layer: str
    inside: Mapping[str, str]
    counts: Mapping[str, int]
    one_layer: Callable[[Fields], dict[str, object]]
    in_layer: Mapping[str, str] = field(default_factory=dict)
    joins_hidden_first: bool = False


def _next_layer(fields: Fields) -> dict[str, object]:
    """Return a config whose layer is the one after the model's last, with experts if the model has any there."""
    dense = int(fields["num_hidden_layers"]) < int(fields.get("first_k_dense_replace", 0))
    return {**fields, "num_hidden_layers": 1, "first_k_dense_replace": int(dense)}


def _sparse_layer(fields: Fields) -> dict[str, object]:
    """Return a config whose layer has experts, whatever the model's layer types are."""
    return {**fields, "num_hidden_layers": 1, "mlp_layer_types": ["sparse"]}


def _attending_layer(fields: Fields) -> dict[str, object]:
    """Return a config whose layer has attention, whatever the model's layer types are."""
    return {**fields, "num_hidden_layers": 1, "layer_types": ["full_attention"]}


def _first_layer(fields: Fields) -> dict[str, object]:
    """Return a config whose layer is the model's first."""
    types = fields.get("layer_types")
    return {**fields, "num_hidden_layers": 1, **({"layer_types": list(types)[:1]} if types else {})}


def _sliding_dense_layer(fields: Fields) -> dict[str, object]:
    """Return a config whose layer slides and has an MLP; published files state the types as numbers."""
    stated = {"hybrid_layer_pattern": [1], "moe_layer_freq": [0]}
    numbers = {name: value for name, value in stated.items() if fields.get(name) is not None}
    types = {"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]}
    return {**fields, "num_hidden_layers": 1, **types, **numbers}


def _exaone_layer(fields: Fields) -> dict[str, object]:
    """Return a config whose layer attends as stated for the module and has an MLP."""
    kinds = list(fields.get("mtp_layer_types") or ["full_attention"])[:1]
    types = {"layer_types": kinds, "mlp_layer_types": ["dense"], "is_moe_layer": None}
    return {**fields, "num_hidden_layers": 1, **types, "sliding_windows": fields.get("mtp_sliding_windows")}


def _mellum_layer(fields: Fields) -> dict[str, object]:
    """Return a config whose layer is of the types stated for the module."""
    kinds = list(fields.get("mtp_layer_types") or ["sliding_attention"])[:1]
    mlps = list(fields.get("mtp_mlp_layer_types") or ["sparse"])[:1]
    return {**fields, "num_hidden_layers": 1, "layer_types": kinds, "mlp_layer_types": mlps}


_NEXT_LAYER = Layout(
    "model.layers.{i}.",
    "model.layers.{i}.",
    {
        "embedding": "embed_tokens",
        EMBEDDING_NORM: "enorm",
        HIDDEN_NORM: "hnorm",
        PROJECTION: "eh_proj",
        "final_norm": "shared_head.norm",
        "lm_head": "shared_head.head",
    },
    {"num_nextn_predict_layers": 1},
    _next_layer,
)
_QWENS = Layout(
    "mtp.",
    "mtp.layers.0.",
    {
        "embedding": "embed_tokens",
        EMBEDDING_NORM: "pre_fc_norm_embedding",
        HIDDEN_NORM: "pre_fc_norm_hidden",
        PROJECTION: "fc",
        "final_norm": "norm",
        "lm_head": "lm_head",
    },
    {"mtp_num_hidden_layers": 1},
    _attending_layer,
)
_MIMO = "model.mtp_layers.0."
_MIMO_V2 = "model.mtp.layers.0."
LAYOUTS = {
    "deepseek_v3": _NEXT_LAYER,
    "exaone_moe": replace(_QWENS, counts={"num_nextn_predict_layers": 1}, one_layer=_exaone_layer),
    "glm4_moe": _NEXT_LAYER,
    "glm4_moe_lite": replace(_NEXT_LAYER, one_layer=_sparse_layer),
    "mellum": replace(_QWENS, counts={"num_nextn_predict_layers": 0}, one_layer=_mellum_layer),
    "mimo": Layout(
        _MIMO,
        _MIMO,
        {
            "embedding": "embed_tokens",
            EMBEDDING_NORM: "token_layernorm",
            HIDDEN_NORM: "hidden_layernorm",
            PROJECTION: "input_proj",
            "final_norm": "final_layernorm",
            "lm_head": "lm_head",
        },
        {"num_nextn_predict_layers": 0},
        _first_layer,
        joins_hidden_first=True,
    ),
    "mimo_v2_flash": replace(
        _NEXT_LAYER,
        start=_MIMO_V2,
        layer=_MIMO_V2,
        inside={**_NEXT_LAYER.inside, "final_norm": "final_layernorm"},
        counts={},
        one_layer=_sliding_dense_layer,
        in_layer={"mlp_norm": "pre_mlp_layernorm"},
    ),
    "qwen3_5_moe_text": _QWENS,
    "qwen3_5_text": _QWENS,
    "qwen3_next": _QWENS,
}
"""By `model_type`."""
SIGN = f"in the model's own weights, `model_type` of {', '.join(LAYOUTS)}"


@dataclass(frozen=True)
class MtpSpec:
    """A module. decoder: its layer, numbered after the model's, the model's sizes, and names in checkpoints.

    start, joins_hidden_first: as in `Layout`.
    """

    decoder: DecoderSpec
    start: str
    joins_hidden_first: bool = False
    fusion: None = field(default=None, init=False)

    @property
    def kind(self) -> str:
        return MTP

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
        names = f"`{self.start}*`"
        return (
            f"MTP module {names}, {self.decoder.vocab_size} tokens; reads the model's hidden state after its last norm"
        )

    def fusion_weights(self) -> Iterator[Weight]:
        """Yield nothing: the model's network has no weights of the module."""
        yield from ()

    def network_weights(self) -> Iterator[Weight]:
        """Yield the weights of its own network, including embedding and LM head, by their names in checkpoints."""
        names, layer, size = self.decoder.names, f"layers.{self.decoder.first_layer}", self.decoder.hidden_size
        yield from model_weights(self.decoder)
        for norm in (EMBEDDING_NORM, HIDDEN_NORM):
            yield Weight(f"{layer}.{norm}.weight", f"{names[norm]}.weight", (size,))
        yield Weight(f"{layer}.{PROJECTION}.weight", f"{names[PROJECTION]}.weight", (size, 2 * size))


def describes(fields: Fields) -> bool:
    """Whether a `config.json` is that of a model whose weights include modules, or of one with a tower around it."""
    if fields.get("speculators_model_type") is not None:
        return False
    text = fields.get("text_config") or {}
    is_known = not LAYOUTS.keys().isdisjoint((fields.get("model_type"), text.get("model_type")))
    return is_known or bool(fields.get("num_nextn_predict_layers"))


def obstacles(target: DecoderSpec) -> Iterator[str]:
    """Yield why a model cannot have a module."""
    if target.model_type not in LAYOUTS:
        unread = " or ".join(f"`{name}*`" for name in target.unused if "visual" not in name)
        what = f"MTP modules of a `{target.model_type}` are not supported, only those of {', '.join(LAYOUTS)}"
        yield what + (f": its weights {unread} are not read" if unread else "")


def mtp_spec(fields: Fields, where: str, target: DecoderSpec) -> MtpSpec:
    """Return the module of a model that a `config.json` describes.

    Raises SourceError for several modules or none, ProblemsError for mismatches with the model `target`.
    """
    model, layout = decoder_spec(fields, where), LAYOUTS[target.model_type]
    if model.model_type != target.model_type:
        raise SourceError(f"the modules are of a `{model.model_type}`, the model is a `{target.model_type}`", where)
    count = len(target.layers)
    sizes = (
        SizePair("`hidden_size`", model.hidden_size, target.hidden_size),
        SizePair("`num_hidden_layers`", len(model.layers), count),
        SizePair("`vocab_size`", model.vocab_size, target.vocab_size),
    )
    check_target(sizes, SizePair("vocab_size", model.vocab_size, target.vocab_size), where)
    _check_count(fields, layout, where)
    layer_spec = decoder_spec(layout.one_layer(fields), where)
    if not isinstance(layer_spec.layers[0].mixer, AttentionSpec):
        raise SourceError("a module whose layer has no attention is not supported", where)
    start, layer = layout.start.format(i=count), layout.layer.format(i=count)
    names = {path: name.replace("model.layers.{i}.", layer) for path, name in layer_spec.names.items()}
    names |= {path: start + name for path, name in layout.inside.items()}
    names |= {f"layers.{{i}}.{path}": layer + name for path, name in layout.in_layer.items()}
    head = HeadSpec(layer_spec.block.norm, is_tied=False)
    decoder = replace(layer_spec, first_layer=count, head=head, names=names, prefix="", unused=())
    return MtpSpec(decoder, start, layout.joins_hidden_first)


def _check_count(fields: Fields, layout: Layout, where: str) -> None:
    """Raise SourceError for a config with several modules or none."""
    for name, usual in layout.counts.items():
        count = fields.get(name, usual)
        if count == 0:
            fix = "use a checkpoint with an MTP module, or leave `llm.speculator` out"
            raise SourceError(f"`{name}` is 0: the model has no MTP module", where, fix)
        if count != 1:
            what = f"`{name}` is {count}; only one MTP module is supported, which makes all guesses of a chain"
            raise SourceError(what, where, f"set `{name}` to 1 in a copy of the folder to guess with the first one")


def one_layer_fields(fields: Fields) -> dict[str, object]:
    """Return the config of a module's layer in the form of a one-layer model's."""
    return LAYOUTS[str(fields["model_type"])].one_layer(fields)
