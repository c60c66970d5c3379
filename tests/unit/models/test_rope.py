from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from trtkit.errors import SourceError
from trtkit.models.hf_config import HfConfig
from trtkit.models.rope import LAYER_TYPES, original_length, rope_spec
from trtkit.network.rope_tables import rope_tables

LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.5, 1.6, 1.7, 1.8, 2.0],
    "long_factor": [1.0, 1.3, 1.9, 3.0, 4.5, 6.0, 7.0, 9.0],
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
CASES: list[tuple[dict[str, Any], int]] = [
    ({"rope_type": "linear", "factor": 4.0}, 64),
    ({"rope_type": "dynamic", "factor": 4.0}, 1024),
    ({"rope_type": "dynamic", "factor": 4.0}, 3000),
    (YARN, 64),
    ({**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3}, 64),
    ({**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False}, 64),
    (LLAMA3, 64),
    (LONG, 128),
    (LONG, 129),
    ({**LONG, "attention_factor": 1.25}, 129),
    ({**LONG, "partial_rotary_factor": 0.5, "short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [4.0] * 4}, 64),
]


def config_of(**fields: Any) -> HfConfig:
    return HfConfig({"max_position_embeddings": 1024, **fields})


@pytest.mark.parametrize(("parameters", "length"), CASES, ids=lambda item: str(item)[:40])
def test_tables_are_those_of_transformers(parameters: dict[str, Any], length: int) -> None:
    stated = {"rope_theta": 5000.0, **parameters}
    hf = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=1024, rope_parameters=stated)
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](hf, "cpu", seq_len=length)
    angles = torch.arange(length).float()[:, None] * frequencies
    cos, sin = rope_tables(rope_spec(config_of(rope_parameters=stated), 16, partial=1.0), length)
    torch.testing.assert_close(torch.from_numpy(cos), angles.cos() * factor, rtol=0, atol=3e-4)
    torch.testing.assert_close(torch.from_numpy(sin), angles.sin() * factor, rtol=0, atol=3e-4)


def test_old_fields_say_the_same_as_new_ones() -> None:
    new = config_of(rope_parameters={"rope_theta": 777.0, "rope_type": "linear", "factor": 2.0})
    old = config_of(rope_theta=777.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert rope_spec(old, 16) == rope_spec(new, 16)


def test_sliding_layers_of_old_gemma3_files_have_their_own_base_and_no_scaling() -> None:
    config = config_of(rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    far, near = (rope_spec(config, 16, layer_type=kind) for kind in ("full_attention", "sliding_attention"))
    assert (far.theta, far.scaling, far.parameters) == (1e6, "linear", {"factor": 8.0})
    assert (near.theta, near.scaling) == (1e4, "default")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "spiral"}, "config.json: `rope_type` is `spiral`, which is not known\nfix: known: default, "),
        ({"rope_type": "yarn"}, "config.json: rope type `yarn` needs `factor`"),
        (
            {"rope_type": "linear", "factor": 2.0, "phase": 1.0},
            "config.json: rope type `linear` has no parameter `ph",
        ),
        ({**LONG, "long_factor": [1.0]}, "config.json: `long_factor` needs 8 numbers, half of the rotated size 16"),
    ],
    ids=["unknown type", "missing", "unknown parameter", "wrong length"],
)
def test_what_is_not_understood_is_named(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError) as caught:
        rope_spec(config_of(rope_parameters=parameters), 16)
    assert str(caught.value).startswith(message)


def llama_and_ours(**rope: Any) -> tuple[LlamaConfig, HfConfig]:
    stated = {"rope_theta": 5000.0, **rope}
    hf = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=1024, rope_parameters=stated)
    return hf, config_of(rope_parameters=stated, model_type="llama")


def test_an_original_length_beside_the_parameters_counts_as_in_transformers() -> None:
    fields = {"max_position_embeddings": 1024, "original_max_position_embeddings": 64, "rope_theta": 5000.0}
    fields["rope_parameters"] = {**YARN, "rope_theta": 5000.0}
    hf = LlamaConfig(hidden_size=64, num_attention_heads=4, **fields)
    hf.standardize_rope_params()  # as its rotary embedding does
    assert original_length(rope_spec(HfConfig(fields), 16)) == 64
    assert hf.rope_parameters["original_max_position_embeddings"] == 64


def test_a_part_of_each_head_is_rotated_only_in_families_that_do_so() -> None:
    hf, config = llama_and_ours(rope_type="default", partial_rotary_factor=0.5)
    assert rope_spec(config, 16).dim == 2 * len(LlamaRotaryEmbedding(hf).inv_freq) == 16
    assert rope_spec(config, 16, partial=1.0).dim == 8


def test_a_part_of_each_head_beside_scaling_is_refused_where_transformers_fails() -> None:
    hf, config = llama_and_ours(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)
    assert len(LlamaRotaryEmbedding(hf).inv_freq) == 4  # of heads of 16: the sizes do not fit
    with pytest.raises(SourceError) as caught:
        rope_spec(config, 16)
    assert str(caught.value) == (
        "config.json: `partial_rotary_factor` is 0.5, but `llama` rotates whole heads\nfix: remove it"
    )


@pytest.mark.parametrize("model_type", ["gemma4_text", "mellum"])
def test_of_two_wrong_types_of_layers_the_first_is_named_in_every_process(model_type: str) -> None:
    fields = AutoConfig.for_model(model_type, num_hidden_layers=2).to_dict()
    fields["layer_types"] = ["sliding_attention", "full_attention"]
    fields["rope_parameters"] = {kind: {"rope_type": f"of {kind}", "rope_theta": 1e4} for kind in LAYER_TYPES}
    code = "import json, sys; from trtkit.models.registry import decoder_spec; decoder_spec(json.load(sys.stdin))"
    for seed in range(4):
        ran = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": str(seed)}, check=False,
            input=json.dumps(fields, default=str), capture_output=True, text=True,
        )  # fmt: skip
        assert "of sliding_attention" in ran.stderr, ran.stderr
