"""Plans of models with recurrent states: states are counted for each sequence, and shared by ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.planning.planned import counted
from trtkit.dtypes import FP16
from trtkit.models.parallel import Grid
from trtkit.models.registry import decoder_spec
from trtkit.planning.decoder_model import decoder_model, formulas, workload
from trtkit.planning.formats import FORMATS
from trtkit.planning.memory import Footprint, PackedRoom
from trtkit.planning.shares import grid_shares

LFM2: dict[str, Any] = {
    "model_type": "lfm2", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "vocab_size": 101,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "conv_L_cache": 4,
    "full_attn_idxs": [1, 4], "block_auto_adjust_ff_dim": False,
}  # fmt: skip
DELTA: dict[str, Any] = {
    "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 101,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 8,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "model_type": "bamba", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 101,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "attn_layer_indices": [1],
    "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16,
}  # fmt: skip
SINGLE: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 101, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "mamba_head_dim": 12,
    "mamba_num_heads": 8, "n_groups": 2, "ssm_state_size": 16, "hybrid_override_pattern": "M-M*-",
}  # fmt: skip
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 101,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256, "kv_lora_rank": 24,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "linear_num_heads": 4, "linear_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "moe_intermediate_size": 32,
    "num_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
ALONE: dict[str, Any] = {
    "model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 101, "num_heads": 8,
    "head_dim": 16, "n_groups": 2, "state_size": 16,
}  # fmt: skip
BESIDE: dict[str, Any] = {**MAMBA, "model_type": "falcon_h1", "num_hidden_layers": 2, "mamba_d_ssm": 96}
del BESIDE["attn_layer_indices"]
# The model, elements of a token's cache, and bytes of a sequence's states in fp16.
MODELS = [
    (LFM2, 2 * 2 * 2 * 16, 3 * 3 * 64 * 2),
    (DELTA, 2 * 2 * 16, 3 * (3 * (2 * 2 * 16 + 4 * 8) * 2 + 4 * 16 * 8 * 4)),
    (KIMI, 32, 2 * (3 * 3 * 4 * 16 * 2 + 4 * 16 * 16 * 4)),
    (MAMBA, 2 * 2 * 16, 2 * (3 * (128 + 2 * 2 * 16) * 2 + 128 * 16 * 4)),
    (SINGLE, 2 * 2 * 16, 2 * (3 * (96 + 2 * 2 * 16) * 2 + 96 * 16 * 4)),
    (BESIDE, 2 * 2 * 2 * 16, 2 * (3 * (96 + 2 * 2 * 16) * 2 + 96 * 16 * 4)),
    (ALONE, 0, 3 * (3 * (128 + 2 * 2 * 16) * 2 + 128 * 16 * 4)),
]
models = pytest.mark.parametrize(("fields", "cached", "states"), MODELS, ids=lambda value: str(value)[:24])


@models
def test_states_are_counted_for_each_sequence(fields: dict[str, Any], cached: int, states: int) -> None:
    spec = decoder_spec(fields)
    model, counts = decoder_model("tiny", spec, FP16), counted(fields)
    assert (model.kv_bytes_per_token, model.state_bytes) == (2 * cached, states)
    work = workload(model, 100, 28, concurrency=1, chunk=64)
    assert formulas(model, counts, work).kv_bytes_per_token.counted == 2 * cached
    for groups, packed in enumerate((None, PackedRoom(64, 1)), 1):  # of rows, each of which writes new states apart
        sizes = {"state_bytes": model.state_bytes, "packed": packed}
        footprint = Footprint(counts, 0, model.kv_bytes_per_token, 64, 101, **sizes)
        for batch, length in ((1, 10), (3, 100)):
            assert footprint.need(batch, length).kv_cache == batch * (2 * cached * length + (1 + groups) * states)


@models
def test_a_step_reads_and_writes_each_row_s_states(fields: dict[str, Any], cached: int, states: int) -> None:
    """A row more moves its states twice, its cache once, and the rows of its token."""
    counts = counted(fields)
    row = counts.fused_bytes.at((2, 1, 64)) - counts.fused_bytes.at((1, 1, 64))
    small = 4 * 101 + 2 * fields["hidden_size"] + 2 * cached + 64  # logits, embedding, new keys and values, indices
    assert 0 <= row - 2 * states - 2 * cached * 64 <= small


@models
def test_ranks_share_states(fields: dict[str, Any], cached: int, states: int) -> None:
    spec = decoder_spec(fields)
    model, counts = decoder_model("tiny", spec, FP16), counted(fields)
    one, two = (
        next(share for share in grid_shares(model, counts, spec, Grid(2)) if share.grid == grid)
        for grid in (Grid(), Grid(2))
    )
    assert (one.state_bytes, two.state_bytes) == (states, states // 2)
    shared = 0 if "kv_lora_rank" in fields else cached  # each rank has the whole cache of latent attention
    halves = 2 * states // 2 + 2 * shared * 64 // 2
    rows = [share.counts.fused_bytes.at((2, 1, 64)) - share.counts.fused_bytes.at((1, 1, 64)) for share in (one, two)]
    assert rows[0] - rows[1] == halves


@models
def test_formats_with_quantized_caches_are_for_models_with_caches(
    fields: dict[str, Any], cached: int, states: int
) -> None:
    model = decoder_model("tiny", decoder_spec(fields), FP16)
    assert any(form.kv_bits for form in FORMATS if model.takes(form)) == bool(cached)
