"""Which position turns which pair of M-RoPE."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from trtkit.models.attention import RopeSpec
from trtkit.network.rope_tables import section_axes


@pytest.mark.parametrize("sections", [(3, 2, 2), (2, 1, 3), (1, 1, 1), (11, 11, 10)], ids=str)
def test_interleaved_sections_are_those_of_transformers(sections: tuple[int, ...]) -> None:
    rope = {"rope_type": "default", "rope_theta": 100.0, "mrope_section": list(sections)}
    config = Qwen3VLTextConfig(head_dim=14, hidden_size=28, num_attention_heads=2, rope_parameters=rope)
    axes = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 1, 7).clone()
    want = Qwen3VLTextRotaryEmbedding(config).recomposition_frequencies(axes)[0, 0, :7]
    got = section_axes(RopeSpec(100.0, 14, sections=sections, are_sections_interleaved=True))
    assert got.tolist() == want.tolist()


def test_sections_in_turn() -> None:
    assert section_axes(RopeSpec(100.0, 12, sections=(2, 1, 3))).tolist() == [0, 0, 1, 2, 2, 2]
    assert section_axes(RopeSpec(100.0, 12, sections=(1, 1, 1, 3))).tolist() == [0, 1, 2, 0, 0, 0]
