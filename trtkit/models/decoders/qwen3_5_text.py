"""The language model of Qwen 3.5: gated delta nets, some of them replaced by gated attention."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import mlp_part
from trtkit.models.recurrent_parts import DELTA_NAMES, delta_net_decoder, delta_net_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen3_5ForCausalLM"
DEFAULTS = {
    "head_dim": 256,
    "intermediate_size": 12288,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 4,
}
SECTIONS = (11, 11, 10)


def spec(config: HfConfig) -> DecoderSpec:
    return delta_net_decoder(config, mlp_part(config), delta_net_part(config), llama_names({}, DELTA_NAMES), SECTIONS)
