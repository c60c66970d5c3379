"""Medusa heads as data: each guesses the token at its own distance from the model's last hidden state.

Sources: https://arxiv.org/abs/2401.10774; config.json of FasterDecoding's heads, of vLLM's (`MedusaModel`), and of
models that FasterDecoding or ModelOpt added heads to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trtkit.drafts.fit import SizePair, check_target
from trtkit.errors import SourceError
from trtkit.models.hf_config import HfConfig
from trtkit.models.spec import DecoderSpec
from trtkit.models.speculators import Fields
from trtkit.models.weights import Weight

MEDUSA, TITLE, SIGN = "medusa", "Medusa", "`medusa_num_heads`"
_ARCHITECTURE = "MedusaModel"
_JOINT = "medusa"  # ModelOpt's field in a model's own config that describes its heads
_OF_MODELS = "num_attention_heads"  # found only in a model's own config
_HEADS, _LAYERS = "medusa_num_heads", "medusa_num_layers"
_ALIASES = {
    "num_heads": _HEADS,
    "num_medusa_heads": _HEADS,
    "num_hidden_layers": _LAYERS,
    "num_medusa_layers": _LAYERS,
}
# Without effect here: names, and settings for checking several guesses.
_IDLE = ("base_model_name_or_path", "max_paths", "topk", "max_seq_len", "decoding_strategy")
_MOST_HEADS = 64


@dataclass(frozen=True)
class MedusaSpec:
    """Heads that guess the tokens after the next one, in order.

    layers: residual layers of each head. draft_vocab_size: tokens that they can guess, out of vocab_size. is_shared:
    whether all heads use one matrix for logits. logit_scale: of that matrix's output. stored_heads: heads in the files;
    the first ones are used.
    """

    heads: int
    layers: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    has_bias: bool = True
    is_shared: bool = False
    logit_scale: float = 1.0
    stored_heads: int = 0

    @property
    def kind(self) -> str:
        return MEDUSA

    @property
    def fusion(self) -> None:
        """None: the heads read the model's hidden state after the final norm."""
        return

    @property
    def cached_elements(self) -> int:
        """0: heads have no cache."""
        return 0

    @property
    def reads_target_caches(self) -> bool:
        return False

    @property
    def most_tokens(self) -> int:
        """One token per head."""
        return self.heads

    @property
    def description(self) -> str:
        """Return the kind, its guesses and its inputs, for people."""
        tokens = f"{self.draft_vocab_size} of {self.vocab_size} tokens"
        heads = f"{self.heads} of {self.stored_heads}" if self.stored_heads > self.heads else str(self.heads)
        return f"Medusa, heads: {heads}, layers in each: {self.layers}, {tokens}; reads the last hidden state"

    def fusion_weights(self) -> Iterator[Weight]:
        """Yield nothing: the model's network has no weights of the heads."""
        return iter(())

    def network_weights(self) -> Iterator[Weight]:
        """Yield the weights of all heads, by FasterDecoding's names."""
        D, logits = self.hidden_size, (self.draft_vocab_size, self.hidden_size)
        for head in range(self.heads):
            for layer in range(self.layers):
                path, name = f"heads.{head}.layers.{layer}", f"{head}.{layer}.linear"
                yield Weight(f"{path}.weight", f"{name}.weight", (D, D))
                if self.has_bias:
                    yield Weight(f"{path}.bias", f"{name}.bias", (D,))
            if not self.is_shared:
                yield Weight(f"heads.{head}.lm_head.weight", f"{head}.{self.layers}.weight", logits)
        if self.is_shared:
            yield Weight("lm_head.weight", "lm_head.weight", logits)


def describes(fields: Fields) -> bool:
    """Whether a `config.json` is that of Medusa heads, or of a model with such heads."""
    is_vllms = fields.get("model_type") == "medusa" or _ARCHITECTURE in (fields.get("architectures") or ())
    return is_vllms or is_models(fields) or _HEADS in fields


def is_models(fields: Fields) -> bool:
    """Whether a `config.json` is that of a model to which heads were added."""
    return isinstance(fields.get(_JOINT), Mapping) or (_HEADS in fields and _OF_MODELS in fields)


def obstacles(target: DecoderSpec) -> Iterator[str]:  # noqa: ARG001
    """Yield nothing: every model has a last hidden state."""
    return iter(())


def medusa_spec(fields: Fields, where: str, target: DecoderSpec, *, has_bias: bool) -> MedusaSpec:
    """Return the heads that a `config.json` describes. has_bias: whether layers have biases, if it does not say.

    Raises SourceError, ProblemsError for missing, unknown or unsupported fields, and for mismatches with the model
    `target`.
    """
    config = HfConfig(_renamed(fields, where), where)
    vocab_size = int(config.get("vocab_size", target.vocab_size))
    hidden_size = int(config.get("hidden_size", target.hidden_size))
    spec = MedusaSpec(
        config.need(_HEADS),
        int(config.get(_LAYERS, 1)),
        hidden_size,
        vocab_size,
        int(config.get("truncated_vocab_size", vocab_size)),
        has_bias=bool(config.get("medusa_fc_bias", has_bias)),
        is_shared=bool(config.get("original_lm_head", False)) or _version(config) == 2,
        logit_scale=float(config.get("logit_scale", 1.0)),
    )
    for name in _IDLE:
        config.get(name)
    config.check_all_read()
    if type(spec.heads) is not int or not 1 <= spec.heads <= _MOST_HEADS:
        raise SourceError(f"`{_HEADS}` is `{spec.heads}`; expected an integer from 1 to {_MOST_HEADS}", where)
    sizes = (
        SizePair("`vocab_size`", vocab_size, target.vocab_size),
        SizePair("`hidden_size`", hidden_size, target.hidden_size),
    )
    check_target(sizes, SizePair("truncated_vocab_size", spec.draft_vocab_size, vocab_size), where)
    return spec


def _version(config: HfConfig) -> int:
    """Return FasterDecoding's version: heads of version 2 have no own matrices for logits. Raises SourceError."""
    version = config.get("version")
    if str(version or 1) not in ("1", "2"):
        raise SourceError(f"`version` is `{version}`; only 1 and 2 are supported", config.where)
    return int(version or 1)


def _renamed(fields: Fields, where: str) -> dict[str, object]:
    """Return the heads' fields by FasterDecoding's names. Raises SourceError if a field has two values."""
    renamed: dict[str, object] = {}
    for name, value in _of_heads(fields).items():
        usual = _ALIASES.get(name, name)
        if renamed.setdefault(usual, value) != value:
            raise SourceError(f"`{name}` is `{value}`, and `{usual}` is `{renamed[usual]}`", where)
    return renamed


def _of_heads(fields: Fields) -> Fields:
    if not is_models(fields):
        return fields
    joint = fields.get(_JOINT)
    return joint if isinstance(joint, Mapping) else {name: fields[name] for name in fields if name.startswith("medusa")}
