"""TensorRT-LLM's architectures with the layers of Llama, by transformers' names.

Source: TensorRT-LLM's `models/*/convert.py` and its examples' `convert_checkpoint.py`, release 1.2.
"""

from __future__ import annotations

from dataclasses import replace

from trtkit.sources.trtllm import fields
from trtkit.sources.trtllm.family import APART, GROUPED, Experts, Family

_ROOT = {"transformer.vocab_embedding": "model.embed_tokens", "transformer.ln_f": "model.norm", "lm_head": "lm_head"}
_NORMS = {"input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm"}
_OUTPUT = {"attention.dense": "self_attn.o_proj"}
_GATED = {"mlp.fc": "mlp.gate_proj", "mlp.gate": "mlp.up_proj", "mlp.proj": "mlp.down_proj"}
_QK_NORMS = {"attention.q_layernorm": "self_attn.q_norm", "attention.k_layernorm": "self_attn.k_norm"}

_LLAMA = Family("llama", _ROOT, {**_NORMS, **_OUTPUT, **_GATED}, APART, fields.llama)
_GRANITE_FACTORS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "output_multiplier_scale")
_MIXTRAL = replace(
    _LLAMA,
    model_type="mixtral",
    inside={**_NORMS, **_OUTPUT, "mlp.router": "block_sparse_moe.gate"},
    more=fields.mixtral,
    experts=Experts("block_sparse_moe.experts", "w1", "w3", "w2"),
    activations=("swiglu", "silu"),
)
_QWEN3 = replace(
    _LLAMA, model_type="qwen3", inside={**_LLAMA.inside, **_QK_NORMS}, more=fields.qwen3, read=("qk_layernorm",)
)
_QWEN2_MOE = replace(
    _LLAMA,
    model_type="qwen2_moe",
    inside={**_NORMS, **_OUTPUT, "mlp.router": "mlp.gate", "mlp.shared_expert_gate": "mlp.shared_expert_gate"},
    more=fields.qwen2_moe,
    experts=Experts("mlp.experts", shared="mlp.shared_expert", modes=(0, 1)),
    activations=("swiglu", "silu"),
    needs=("moe_intermediate_size", "moe_shared_expert_intermediate_size"),
)
_QWEN3_MOE = replace(
    _QWEN3,
    model_type="qwen3_moe",
    inside={**_NORMS, **_OUTPUT, **_QK_NORMS, "mlp.router": "mlp.gate"},
    more=fields.qwen3_moe,
    experts=Experts("mlp.experts"),
    activations=("swiglu", "silu"),
    needs=("moe_intermediate_size",),
)
_GEMMA = replace(
    _LLAMA, model_type="gemma", more=fields.gemma, plus_one=("input_layernorm", "post_layernorm", "transformer.ln_f")
)
_GEMMA2_NORMS = {f"{place}_feedforward_layernorm": f"{place}_feedforward_layernorm" for place in ("pre", "post")}
_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")
_GEMMA2 = replace(
    _GEMMA,
    model_type="gemma2",
    inside={**_GEMMA.inside, **_GEMMA2_NORMS},
    more=fields.gemma2,
    read=(*_CAPS, "inter_layernorms"),
    needs=("query_pre_attn_scalar",),
    plus_one=(*_GEMMA.plus_one, *_GEMMA2_NORMS),
)
_GEMMA3 = replace(
    _GEMMA2,
    model_type="gemma3_text",
    inside={**_GEMMA2.inside, **_QK_NORMS},
    more=fields.gemma3,
    read=("query_pre_attn_scalar", "final_logit_softcapping", "inter_layernorms", "qk_layernorm"),
    needs=("query_pre_attn_scalar", "sliding_window", "_sliding_window_pattern", "rope_local_base_freq"),
    plus_one=(*_GEMMA2.plus_one, *_QK_NORMS),
)
_STARCODER2 = replace(
    _LLAMA,
    model_type="starcoder2",
    inside={**_NORMS, **_OUTPUT, "mlp.fc": "mlp.c_fc", "mlp.proj": "mlp.c_proj"},
    more=fields.starcoder2,
    sizes=GROUPED,
)
_NEMOTRON = replace(
    _LLAMA,
    model_type="nemotron",
    inside={**_NORMS, **_OUTPUT, "mlp.fc": "mlp.up_proj", "mlp.proj": "mlp.down_proj"},
    more=fields.nemotron,
    read=("rotary_pct",),
    plus_one=_GEMMA.plus_one,
)
_PHI = Family(
    "phi",
    {**_ROOT, "transformer.ln_f": "model.final_layernorm"},
    {
        "input_layernorm": "input_layernorm",
        "attention.dense": "self_attn.dense",
        "mlp.fc": "mlp.fc1",
        "mlp.proj": "mlp.fc2",
    },
    APART,
    fields.phi,
    sizes=GROUPED,
    read=("rotary_pct", "partial_rotary_factor"),
)
_PHI3 = replace(
    _LLAMA,
    model_type="phi3",
    inside={**_NORMS, **_OUTPUT, "mlp.fc": "mlp.gate_up_proj", "mlp.proj": "mlp.down_proj"},
    qkv=("self_attn.qkv_proj",),
    more=fields.phi3,
    rows="joined",
    sizes=GROUPED,
    positions=("rope_gpt_neox", "long_rope"),
    read=("rotary_pct",),
    swapped="mlp.fc",
)
_COHERE = replace(
    _LLAMA,
    model_type="cohere",
    inside={"input_layernorm": "input_layernorm", **_OUTPUT, **_GATED, **_QK_NORMS},
    more=fields.cohere,
    sizes=GROUPED,
    positions=("rope_gptj",),
    read=("output_multiplier_scale", "qk_layernorm"),
)
LLAMA_FAMILIES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": replace(_LLAMA, model_type="mistral", more=fields.mistral),
    "MixtralForCausalLM": _MIXTRAL,
    "GraniteForCausalLM": replace(
        _LLAMA, model_type="granite", more=fields.granite, read=_GRANITE_FACTORS, needs=_GRANITE_FACTORS
    ),
    "Qwen2ForCausalLM": replace(_LLAMA, model_type="qwen2", more=fields.qwen2),
    "Qwen2MoeForCausalLM": _QWEN2_MOE,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Starcoder2ForCausalLM": _STARCODER2,
    "NemotronForCausalLM": _NEMOTRON,
    "PhiForCausalLM": _PHI,
    "Phi3ForCausalLM": _PHI3,
    "CohereForCausalLM": _COHERE,
}
