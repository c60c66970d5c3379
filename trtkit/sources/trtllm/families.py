"""Supported architectures of TensorRT-LLM checkpoints: layers of Llama and of GPT."""

from dataclasses import replace

from trtkit.sources.trtllm import fields
from trtkit.sources.trtllm.fields import APART, GROUPED, SAME, SIZES, Experts, Family, Fields

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
_GEMMA2_NORMS = {f"{side}_feedforward_layernorm": f"{side}_feedforward_layernorm" for side in ("pre", "post")}
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


_WIDENED = {
    "input_layernorm": "input_layernorm",
    "post_layernorm": "post_attention_layernorm",
    "mlp.fc": "mlp.dense_h_to_4h",
    "mlp.proj": "mlp.dense_4h_to_h",
}
_NEOX = Family(
    "gpt_neox",
    {
        "transformer.vocab_embedding": "gpt_neox.embed_in",
        "transformer.ln_f": "gpt_neox.final_layer_norm",
        "lm_head": "embed_out",
    },
    {**_WIDENED, "post_attention_layernorm": "post_attention_layernorm", "attention.dense": "attention.dense"},
    ("attention.query_key_value",),
    fields.gpt_neox,
    "gpt_neox.layers",
    "by key head",
    sizes=SIZES,
    read=("rotary_pct",),
)
_BLOOM = Family(
    "bloom",
    {
        "transformer.vocab_embedding": "transformer.word_embeddings",
        "transformer.ln_embed": "transformer.word_embeddings_layernorm",
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    {**_WIDENED, "attention.dense": "self_attention.dense"},
    ("self_attention.query_key_value",),
    fields.bloom,
    "transformer.h",
    "by key head",
    sizes={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "seq_length",
    },
    positions=("alibi",),
    activations=fields.GELU,
)
_FALCON = replace(
    _BLOOM,
    model_type="falcon",
    outside={name: module for name, module in _BLOOM.outside.items() if name != "transformer.ln_embed"},
    more=fields.falcon,
    sizes={name: name for name in SAME},
    positions=("rope_gpt_neox", "alibi_with_scale"),
)
FALCON_NEW = replace(_FALCON, inside={**_FALCON.inside, "input_layernorm": "ln_attn", "mlp_layernorm": "ln_mlp"})
_GPT2_SIZES = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_GPT2 = Family(
    "gpt2",
    {
        "transformer.vocab_embedding": "transformer.wte",
        "transformer.position_embedding": "transformer.wpe",
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    {
        "input_layernorm": "ln_1",
        "post_layernorm": "ln_2",
        "attention.dense": "attn.c_proj",
        "mlp.fc": "mlp.c_fc",
        "mlp.proj": "mlp.c_proj",
    },
    ("attn.c_attn",),
    fields.gpt2,
    "transformer.h",
    "joined",
    _GPT2_SIZES,
    ("learned_absolute", "rope_gpt_neox"),  # ModelOpt says the latter of any model
    is_in_out=True,
)
_GPTJ = replace(
    _GPT2,
    needs=("rotary_dim",),
    model_type="gptj",
    inside={
        "input_layernorm": "ln_1",
        "attention.dense": "attn.out_proj",
        "mlp.fc": "mlp.fc_in",
        "mlp.proj": "mlp.fc_out",
    },
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    more=fields.gptj,
    rows="apart",
    positions=("rope_gptj",),
    activations=fields.GELU,
    is_in_out=False,
)
_OPT = Family(
    "opt",
    {
        "transformer.vocab_embedding": "model.decoder.embed_tokens",
        "transformer.position_embedding": "model.decoder.embed_positions",
        "transformer.ln_f": "model.decoder.final_layer_norm",
        "lm_head": "lm_head",
    },
    {
        "input_layernorm": "self_attn_layer_norm",
        "post_layernorm": "final_layer_norm",
        "attention.dense": "self_attn.out_proj",
        "mlp.fc": "fc1",
        "mlp.proj": "fc2",
    },
    APART,
    fields.opt,
    "model.decoder.layers",
    sizes={**SIZES, "intermediate_size": "ffn_dim"},
    positions=("learned_absolute",),
    read=("do_layer_norm_before",),
)
_MPT = replace(
    _GPT2,
    model_type="mpt",
    outside={**_GPT2.outside, "transformer.ln_f": "transformer.norm_f"},
    inside={
        "input_layernorm": "norm_1",
        "post_layernorm": "norm_2",
        "attention.dense": "attn.out_proj",
        "mlp.fc": "ffn.up_proj",
        "mlp.proj": "ffn.down_proj",
    },
    qkv=("attn.Wqkv",),
    layers="transformer.blocks",
    more=fields.mpt,
    sizes={
        "vocab_size": "vocab_size",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_size": "d_model",
        "max_position_embeddings": "max_seq_len",
    },
    positions=("alibi",),
    activations=fields.GELU,
    read=("clip_qkv",),
    is_in_out=False,
)

GPT_FAMILIES = {
    "FalconForCausalLM": _FALCON,
    "GPTNeoXForCausalLM": _NEOX,
    "GPTJForCausalLM": _GPTJ,
    "BloomForCausalLM": _BLOOM,
    "OPTForCausalLM": _OPT,
    "MPTForCausalLM": _MPT,
    "MptForCausalLM": _MPT,
    "GPTBigCodeForCausalLM": replace(_GPT2, model_type="gpt_bigcode", more=fields.gpt_bigcode, is_in_out=False),
    "GPT2LMHeadModel": _GPT2,
    "GPTForCausalLM": _GPT2,
}


FAMILIES = {**LLAMA_FAMILIES, **GPT_FAMILIES}
"""By TensorRT-LLM's architecture."""


def family_of(config: Fields) -> Family:
    """Return a known architecture's family."""
    is_new_falcon = config["architecture"] == "FalconForCausalLM" and config.get("new_decoder_architecture")
    return FALCON_NEW if is_new_falcon else FAMILIES[config["architecture"]]
