"""The decoder of T5 (Raffel et al., arXiv:1910.10683), mT5 and UMT5."""

from dataclasses import replace

from trtkit.models.attention import AttentionSpec, CrossSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import t5_names
from trtkit.models.parts import decoder_part, relative_part
from trtkit.models.spec import BlockSpec, DecoderSpec, HeadSpec, LayerSpec

HF_CLASS = {
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
}
ALIASES = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
           "head_dim": "d_kv", "intermediate_size": "d_ff"}  # fmt: skip
_OTHERS = ("k.", "v.", "relative_attention_bias.")  # k and v belong to the encoder's stage; the bias is in old files
_SOURCE_LENGTH = 512  # replaced by `llm.max_source_length`


def spec(config: HfConfig) -> DecoderSpec:
    for name in ("dropout_rate", "n_positions", "num_hidden_layers"):  # for training and for the encoder
        config.get(name)
    heads, size = int(config.need("num_attention_heads")), int(config.get("head_dim", 64))
    count = int(config.get("num_decoder_layers") or config.need("num_hidden_layers"))
    norm, is_umt5 = NormSpec("rms", float(config.get("layer_norm_epsilon", 1e-6))), config.get("model_type") == "umt5"
    plain, cross = AttentionSpec(heads, heads, size, 1.0), CrossSpec(heads, size, _SOURCE_LENGTH, 1.0, False, True)
    relative, mlp = (relative_part(config, index if is_umt5 else 0) for index in range(count)), _mlp(config)
    layers = tuple(LayerSpec(replace(plain, relative=bias), mlp, cross) for bias in relative)
    model = decoder_part(config, layers, norm, t5_names(is_gated=mlp.is_gated))
    block, head = BlockSpec(norm, ("attention_norm", "cross_norm", "mlp_norm")), HeadSpec(norm, is_tied=True)
    scale = model.hidden_size**-0.5 if _is_scaled(config) else 1.0
    others = (f"decoder.block.{index}.layer.1.EncDecAttention." for index in range(count))
    unused = ("encoder.block.", "encoder.final_layer_norm.", *(cross + name for cross in others for name in _OTHERS))
    model = replace(model, block=block, head=replace(head, logit_scale=scale), prefix="", unused=unused)
    return replace(model, table_copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"))


def _mlp(config: HfConfig) -> MlpSpec:
    kind = str(config.get("feed_forward_proj", "relu" if config.get("model_type") == "t5" else "gated-gelu"))
    usual = "gelu_new" if kind == "gated-gelu" else kind.rsplit("-", maxsplit=1)[-1]
    is_gated = bool(config.get("is_gated_act", kind.startswith("gated-")))
    return MlpSpec(int(config.need("intermediate_size")), str(config.get("dense_act_fn", usual)), is_gated)


def _is_scaled(config: HfConfig) -> bool:
    """Whether logits are scaled: always in UMT5, never in mT5, and in T5 unless its config unties the LM head."""
    is_tied, kind = bool(config.get("tie_word_embeddings", True)), config.get("model_type")
    return kind == "umt5" or (kind == "t5" and bool(config.get("scale_decoder_outputs", is_tied)))
