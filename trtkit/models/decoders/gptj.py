"""GPT-J and CodeGen: parallel attention and MLP with a single norm."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, RopeSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import GPT2_ALIASES, gpt2_names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = {"gptj": "GPTJForCausalLM", "codegen": "CodeGenForCausalLM"}
ALIASES = GPT2_ALIASES
DEFAULTS = {"hidden_act": "gelu_new", "rotary_dim": 64, "max_position_embeddings": 2048}
NAMES = gpt2_names(
    {
        "attention.q": "attn.q_proj",
        "attention.k": "attn.k_proj",
        "attention.v": "attn.v_proj",
        "attention.qkv": "attn.qkv_proj",
        "attention.o": "attn.out_proj",
        "mlp.up": "mlp.fc_in",
        "mlp.down": "mlp.fc_out",
    }
)


def spec(config: HfConfig) -> DecoderSpec:
    norm, attention = layer_norm_part(config), attention_part(config)
    if config.get("model_type") == "codegen":
        attention = _in_fourths(config, attention)
    rope = RopeSpec(10000.0, _rotary_dim(config, attention.head_dim), is_interleaved=True)
    layers = layers_part(config, attention, plain_mlp_part(config), rope)
    model = decoder_part(config, layers, norm, NAMES)
    block = BlockSpec(norm, ("attention_norm",), is_parallel=True)
    return replace(model, block=block, head=replace(model.head, has_bias=True), prefix="transformer.")


def _rotary_dim(config: HfConfig, head_dim: int) -> int:
    """Return how many elements of a head are rotated. Raises SourceError for sizes that transformers cannot run."""
    rotary_dim = int(config.need("rotary_dim"))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise SourceError(f"`rotary_dim` is {rotary_dim}; expected an even number up to {head_dim}", config.where)
    return rotary_dim


def _in_fourths(config: HfConfig, attention: AttentionSpec) -> AttentionSpec:
    """Return attention in CodeGen's storage order. Raises SourceError if four blocks cannot share the heads equally."""
    heads = attention.num_attention_heads
    if heads % 4:
        raise SourceError(f"`n_head` is {heads}; CodeGen needs a multiple of 4", config.where)
    return replace(attention, qkv="fourths")
