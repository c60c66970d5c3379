"""TensorRT-LLM's architectures with the layers of GPT-2, GPT-NeoX and their like, by transformers' names.

Source: TensorRT-LLM's `models/*/convert.py` and its examples' `convert_checkpoint.py`, release 1.2.
"""

from __future__ import annotations

from dataclasses import replace

from trtkit.sources.trtllm import fields
from trtkit.sources.trtllm.family import APART, SAME, SIZES, Family

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
