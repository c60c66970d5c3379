"""Unusual but legal settings of recurrent families against transformers; refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.decoder_case import LLAMA3_ROPE, YARN_ROPE
from tests.support.decoder_variants import TIED, UNTIED, variant
from tests.support.decoders import executor_of, model_of, relative_rms
from trtkit.dtypes import FP32
from trtkit.errors import SourceError

IDS = torch.randint(3, 67, (3, 21), generator=torch.Generator().manual_seed(1))
ODD_DELTA = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 3,
    "linear_key_head_dim": 7,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 2,
}
ODD_MAMBA = {"mamba_n_heads": 3, "mamba_n_groups": 1, "mamba_d_state": 5, "mamba_d_conv": 2, "mamba_chunk_size": 4}
BAMBA_ROPE = {"rope_theta": 50.0, "partial_rotary_factor": 0.5}
MLP_FIRST = ["mlp", "mlp", "linear_attention", "full_attention"]
OLD_TYPES = ["attention", "mamba"]
HEAD_OF_10 = {"head_dim": 10, "num_key_value_heads": 3}
THREE_LAYERS = {"num_hidden_layers": 3}
TURNED = ["full_attention", "linear_attention"]
PUBLISHED_KIMI = {
    "layer_types": None,
    "linear_attn_config": {
        "full_attn_layers": [1, 3],
        "kda_layers": [2],
        "num_heads": 3,
        "head_dim": 7,
        "short_conv_kernel_size": 2,
    },
}
SECTIONS = {"rope_theta": 50.0, "partial_rotary_factor": 0.75, "mrope_section": [1, 1, 1], "mrope_interleaved": True}
VARIANTS = [
    ("lfm2", {**UNTIED, "conv_bias": False, "conv_L_cache": 5, "num_attention_heads": 2, "num_key_value_heads": 1}),
    ("lfm2", {"block_auto_adjust_ff_dim": True, "block_multiple_of": 7, "block_ffn_dim_multiplier": 1.3}),
    ("lfm2", {"full_attn_idxs": [0, 2, 3], "conv_L_cache": 2, "rope_parameters": YARN_ROPE, "norm_eps": 0.1}),
    ("lfm2", {**TIED, "hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 3, "full_attn_idxs": [3]}),
    ("qwen3_next", {**TIED, **ODD_DELTA, "norm_topk_prob": False, "attention_bias": True, "num_experts_per_tok": 5}),
    ("qwen3_next", {"mlp_only_layers": [0], "rope_parameters": {**YARN_ROPE, "partial_rotary_factor": 0.5}}),
    ("qwen3_next", {"decoder_sparse_step": 2, "hidden_act": "gelu", "layer_types": TURNED, "rms_norm_eps": 0.1}),
    ("qwen3_5", {**TIED, **ODD_DELTA, "attention_bias": True, "rope_parameters": SECTIONS}),
    ("qwen3_5", {"linear_num_value_heads": 4, "rope_parameters": {**LLAMA3_ROPE, "partial_rotary_factor": 1.0}}),
    ("qwen3_5", {"layer_types": [*TURNED, *TURNED], "hidden_act": "relu", "num_key_value_heads": 6}),
    ("qwen3_5_moe", {**TIED, **ODD_DELTA, "num_experts": 1, "num_experts_per_tok": 1, "rope_parameters": SECTIONS}),
    ("qwen3_5_moe", {"shared_expert_intermediate_size": 31, "layer_types": TURNED, "attention_bias": True}),
    ("nemotron_h", {"time_step_min": 0.7, "use_bias": True, "mlp_bias": True, "mamba_hidden_act": "gelu"}),
    ("nemotron_h", {"layers_block_type": MLP_FIRST, "use_conv_bias": False, "n_groups": 1, "ssm_state_size": 5}),
    ("nemotron_h", {"mlp_hidden_act": "silu", "mamba_num_heads": 3, "n_groups": 3, "conv_kernel": 2, "expand": 7}),
    ("nemotron_h", {"moe_latent_size": None, "n_group": 3, "topk_group": 2, "num_experts_per_tok": 3}),
    (
        "nemotron_h",
        {"layers_block_type": ["moe", "full_attention"], "mlp_bias": True, "norm_topk_prob": False},
    ),
    (
        "mamba2",
        {**TIED, "hidden_size": 21, "num_heads": 3, "head_dim": 14, "n_groups": 1, "state_size": 5, "conv_kernel": 2},
    ),
    ("mamba2", {"use_bias": True, "use_conv_bias": False, "hidden_act": "gelu", "chunk_size": 3, "expand": 2}),
    ("mamba2", {"expand": 1, "num_heads": 4, "num_hidden_layers": 3, "layer_norm_epsilon": 0.1}),
    ("bamba", {**TIED, **ODD_MAMBA, "attention_bias": True, "mlp_bias": True, "rope_parameters": BAMBA_ROPE}),
    ("bamba", {"mamba_conv_bias": False, "mamba_proj_bias": False, "mamba_n_groups": 8, "attn_layer_indices": [0]}),
    ("bamba", {"hidden_act": "gelu", "mamba_expand": 1, "num_key_value_heads": None, "rms_norm_eps": 0.1}),
    ("falcon_h1", {**TIED, **ODD_MAMBA, "mamba_d_ssm": 21, "attention_bias": True, "mlp_bias": True, **HEAD_OF_10}),
    ("falcon_h1", {"mamba_norm_before_gate": False, "projectors_bias": True, "rope_parameters": YARN_ROPE}),
    ("falcon_h1", {"mamba_rms_norm": False, "mamba_d_ssm": None, "ssm_multipliers": None, "mamba_conv_bias": False}),
    ("falcon_h1", {"mamba_proj_bias": False, "projectors_bias": True, "mamba_n_groups": 1, "hidden_act": "gelu"}),
    ("granitemoehybrid", {**TIED, **ODD_MAMBA, "attention_bias": True, "position_embedding_type": None}),
    ("granitemoehybrid", {"num_local_experts": 0, "layer_types": [*TURNED, "linear_attention"], **THREE_LAYERS}),
    (
        "granitemoehybrid",
        {"layer_types": ["attention", "mamba"], "num_experts_per_tok": 3, "rope_parameters": YARN_ROPE},
    ),
    ("kimi_linear", {**THREE_LAYERS, **PUBLISHED_KIMI, "q_lora_rank": 28, "attention_bias": True}),
    ("kimi_linear", {"layer_types": TURNED, "mlp_layer_types": ["sparse", "dense"], "linear_head_dim": 1}),
    ("kimi_linear", {"num_hidden_layers": 6, "layer_types": None, "n_group": 1, "topk_group": 1, "hidden_act": "gelu"}),
    ("kimi_linear", {"qk_rope_head_dim": 5, "v_head_dim": 1, "norm_topk_prob": False, "num_shared_experts": 2}),
    ("qwen3_5_moe", {"linear_num_key_heads": 8, "head_dim": 16, "hidden_act": "gelu", "num_key_value_heads": 3}),
]
REFUSED = [
    ("lfm2", {"conv_L_cache": 1}, "`conv_L_cache` is 1; expected 2 or more"),
    ("qwen3_next", {"linear_conv_kernel_dim": 1}, "`linear_conv_kernel_dim` is 1; expected 2 or more"),
    ("nemotron_h", {"tie_word_embeddings": True}, "`tie_word_embeddings` is `True`, only `False` is supported"),
    ("nemotron_h", {"topk_group": 2}, "2 of 1 groups cannot be chosen of 6 experts"),
    ("falcon_h1", {"ssm_multipliers": [1.0] * 6}, "`ssm_multipliers` has 6 entries; expected 5"),
    ("kimi_linear", {"linear_conv_kernel_dim": 1}, "`linear_conv_kernel_dim` is 1; expected 2 or more"),
    ("kimi_linear", {"mla_use_nope": False}, "`mla_use_nope` is `False`, only `True` is supported"),
    ("kimi_linear", TIED, "`tie_word_embeddings` is `True`, only `False` is supported"),
    ("bamba", {"mamba_n_groups": 3}, "`mamba_n_heads` is 8, not a multiple of `mamba_n_groups`, 3"),
    ("granitemoehybrid", {"time_step_limit": [0.1, 1.0]}, "`time_step_limit` is `[0.1, 1.0]`, only `[0.0, inf]`"),
    (
        "qwen3_5",
        {"linear_num_value_heads": 6},
        "`linear_num_value_heads` is 6, not a multiple of `linear_num_key_heads`, 4",
    ),
]
variants = pytest.mark.parametrize(("name", "changes"), VARIANTS, ids=str)


@variants
def test_unusual_settings_give_the_logits_of_transformers(name: str, changes: dict[str, Any]) -> None:
    """In uneven chunks, of which the first rows' are padded, then token by token."""
    model = variant(name, changes)
    runner, want = executor_of(model, FP32), model_of(model).logits(IDS)
    runner.reset(3)
    whole = runner.step(IDS)["logits"]
    assert relative_rms(whole, want) <= 1e-5
    runner.reset(3)
    read, got = torch.zeros(3, dtype=torch.long), torch.zeros_like(want)
    for counts in ([5, 1, 8], [1, 9, 0], [7, 2, 1], [1, 1, 1], [1, 0, 1], [3, 4, 6]):
        size = max(counts)
        ids = torch.stack(
            [torch.cat([row[start : start + size], row[:size]])[:size] for row, start in zip(IDS, read, strict=True)]
        )
        logits = runner.step(ids, counts)["logits"]
        for row, count in enumerate(counts):
            got[row, read[row] : read[row] + count] = logits[row, :count]
        read += torch.tensor(counts)
    for row, count in enumerate(read.tolist()):
        assert relative_rms(got[row, :count], want[row, :count]) <= 1e-5


@pytest.mark.parametrize(("name", "changes", "error"), REFUSED, ids=str)
def test_settings_that_are_not_supported_are_refused_by_name(name: str, changes: dict[str, Any], error: str) -> None:
    with pytest.raises(SourceError) as caught:
        _ = model_of(variant(name, changes)).spec
    assert error in str(caught.value)
