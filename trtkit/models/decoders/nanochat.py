"""nanochat: norms without weights, including one on the embedding and on each rotated query and key head."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, plain_mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec, EmbeddingSpec

HF_CLASS = "NanoChatForCausalLM"
DEFAULTS = {"hidden_act": "relu2", "final_logit_softcapping": 15.0}
INSIDE = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2"}


def spec(config: HfConfig) -> DecoderSpec:
    norm = replace(rms_norm_part(config), has_weight=False)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head", is_rotated_first=True)
    rope = replace(rope_spec(config, attention.head_dim), is_reversed=True)
    layers = layers_part(config, attention, plain_mlp_part(config, has_bias=False), rope)
    model = decoder_part(config, layers, norm, llama_names({}, INSIDE))
    softcap = config.get("final_logit_softcapping")
    head = replace(model.head, softcap=None if softcap is None else float(softcap))
    return replace(model, embedding=EmbeddingSpec(norm=norm), head=head)
