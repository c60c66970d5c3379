"""GGUF models: what files say beyond their weights, and what is not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from tests.unit.sources.gguf.sparse_cases import latent_keys
from tests.unit.sources.gguf.stored_cases import Writer, rotated
from tests.unit.sources.gguf.write_gguf import add_sizes, finish, tiny
from trtkit.errors import TrtkitError
from trtkit.sources.decoder_source import open_gguf
from trtkit.sources.gguf.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_other_scores_of_experts_are_refused(tmp_path: Path) -> None:
    def keys(writer: Writer) -> None:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)

    path = tiny(tmp_path / "m.gguf", keys, architecture="glm4moe")
    assert "m.gguf: `expert_gating_func` is `1`, only `2` is supported" in refused(path)


@pytest.mark.parametrize("pattern", [None, [True, False], 2])
def test_sliding_layers_must_be_listed(pattern: Any, tmp_path: Path) -> None:
    def keys(writer: Writer) -> None:
        writer.add_sliding_window(7)
        if pattern is not None:
            writer.add_sliding_window_pattern(pattern)

    path = tiny(tmp_path / "m.gguf", keys, architecture="exaone4")
    assert "m.gguf: `exaone4.attention.sliding_window_pattern` does not list all layers" in refused(path)


@pytest.mark.parametrize(("family", "blocks"), [("GEMMA2", 46), ("GEMMA3", 62)])
def test_27b_gemmas_scale_scores_by_their_heads(family: str, blocks: int, tmp_path: Path) -> None:
    def config_of(count: int) -> Any:
        writer = Writer(tmp_path / "m.gguf", family.lower())
        sizes = {"hidden_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
        add_sizes(writer, {**sizes, "num_hidden_layers": count})
        writer.add_tensor("token_embd.weight", np.ones((5, 96), np.float32))
        return open_gguf(finish(writer, tmp_path / "m.gguf")).config

    assert config_of(blocks)["query_pre_attn_scalar"] == 96 // 4
    assert config_of(blocks - 1)["query_pre_attn_scalar"] == 16


def refused(path: Path) -> str:
    with pytest.raises(TrtkitError) as caught:
        open_gguf(path)
    assert str(path) in str(caught.value)
    return str(caught.value).replace(str(path), "m.gguf")


def gemma4_sizes(writer: Writer) -> None:
    """Add sizes of heads, and frequencies of which all are divided."""
    for add in (writer.add_key_length, writer.add_key_length_swa):
        add(4)
    writer.add_sliding_window_pattern([False])
    writer.add_tensor("rope_freqs.weight", np.array([2, 3], np.float32))


def sigmoid_keys(writer: Writer) -> None:
    """Add experts that sigmoids choose, without what corrects the choice."""
    latent_keys(writer)
    writer.add_expert_count(4)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def test_a_model_of_which_all_is_known_opens(tmp_path: Path) -> None:
    opened = open_gguf(tiny(tmp_path / "m.gguf"))
    assert opened.config == {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": 5,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }
    assert (opened.files, opened.where) == ((tmp_path / "m.gguf",), str(tmp_path / "m.gguf"))
    assert opened.tokenizer.write(tmp_path / "tokenizer") == []


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (lambda w: w.add_clamp_kqv(8.0), "this architecture\n  m.gguf: `llama.attention.clamp_kqv` is `8.0`"),
        (lambda w: w.add_sliding_window(7), "`llama.attention.sliding_window` is `7`"),
        (lambda w: w.add_array("llama.rope.dimension_sections", [1, 2]), "`llama.rope.dimension_sections` is `[1, 2]`"),
        (lambda w: w.add_causal_attention(False), "m.gguf: this is an encoder: its tokens see later ones"),
        (rotated(2), "m.gguf: only 2 of 4 elements of each head are rotated"),
        (lambda w: w.add_value_length(8), "m.gguf: value heads of size 8 with key heads of size 4 are not supported"),
        (
            lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
            "m.gguf: rope scaling `longrope` is not supported; linear, yarn, longrope and llama3 are",
        ),
        (
            lambda w: w.add_tensor("rope_freqs.weight", np.array([1, 3], np.float32)),
            "m.gguf: `rope_freqs.weight` holds frequencies that are not Llama 3's\nfix: build from",
        ),
        (
            lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.ones(4, np.float32)),
            "tensors that `llama` does not have\n  m.gguf: `blk.0.attn_sinks.weight` of shape [4]",
        ),
        (
            lambda w: w.add_tensor("mm.weight", np.ones((1, 4), np.float32)),
            "tensors that `llama` does not have\n  m.gguf: `mm.weight` of shape [1, 4]",
        ),
        (
            lambda w: w.add_uint16("split.count", 3),
            "m.gguf: this is one of 3 parts\nfix: join them: llama-gguf-split --merge FIRST_PART OUT.gguf",
        ),
        (lambda w: w.add_tokenizer_model("t5"), "m.gguf: tokenizer `t5` is not supported; "),
        (
            lambda w: (w.add_tokenizer_model("gpt2"), w.add_tokenizer_pre("superbpe")),
            "m.gguf: pre-tokenizer `superbpe` is not supported; gpt-2, ",
        ),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(keys: Callable[[Writer], Any], message: str, tmp_path: Path) -> None:
    assert message in refused(tiny(tmp_path / "m.gguf", keys))


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        (
            "llama4",
            lambda w: (w.add_expert_count(5), w.add_sliding_window(0)),
            "`attention.sliding_window` is `0`, only `8192`",
        ),
        (
            "hunyuan-moe",
            lambda w: (w.add_expert_used_count(2), w.add_expert_feed_forward_length(8)),
            "`expert_feed_forward_length` is `8`, only `24` is",
        ),
        (
            "falcon-h1",
            None,
            "m.gguf: the head is the embedding, times a factor that the file does not keep\nfix: build from",
        ),
        ("gemma4", gemma4_sizes, "m.gguf: `rope_freqs.weight` holds frequencies that are not Gemma 4's"),
        ("deepseek2", sigmoid_keys, "`expert_gating_func` is `2`, only `1` is supported"),
        ("granitehybrid", lambda w: w.add_head_count_kv([2]), "key `granitehybrid.ssm.inner_size` is missing"),
        (
            "mistral3",
            lambda w: w.add_rope_scaling_yarn_log_mul(0.5),
            "`mistral3.rope.scaling.yarn_log_multiplier` is `0.5`",
        ),
    ],
)
def test_what_an_architecture_does_not_have_is_named(
    architecture: str, keys: Callable[[Writer], Any] | None, message: str, tmp_path: Path
) -> None:
    assert message in refused(tiny(tmp_path / "m.gguf", keys, architecture=architecture))


def test_latent_heads_must_be_stored_by_head(tmp_path: Path) -> None:
    def keys(writer: Writer) -> None:
        latent_keys(writer)
        for name in ("attn_k_b", "attn_v_b"):
            writer.add_tensor(f"blk.0.{name}.weight", np.ones((4, 4), np.float32))

    assert "m.gguf: `blk.0.attn_k_b.weight` is not stored by head\nfix: convert the model again" in refused(
        tiny(tmp_path / "m.gguf", keys, architecture="deepseek2")
    )


def test_an_unknown_architecture_names_the_known(tmp_path: Path) -> None:
    assert refused(tiny(tmp_path / "m.gguf", architecture="rwkv7")) == (
        f"m.gguf: architecture `rwkv7` is not supported\nfix: known: {', '.join(FAMILIES)}"
    )


def test_grouped_heads_are_refused_where_the_family_has_none(tmp_path: Path) -> None:
    assert "m.gguf: 2 key heads for 4 query heads are not supported for `gpt2`" in refused(
        tiny(tmp_path / "m.gguf", lambda w: w.add_layer_norm_eps(1e-5), architecture="gpt2")
    )


def test_missing_metadata_are_named(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.ones((5, 16), np.float32))
    assert refused(finish(writer, tmp_path / "m.gguf")) == (
        "m.gguf: metadata key `llama.embedding_length` is missing"
        "\nfix: convert the model again with a current llama.cpp"
    )


def test_a_file_without_embeddings_is_refused(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    writer.add_tensor("output_norm.weight", np.ones(16, np.float32))
    assert "m.gguf: tensor `token_embd.weight` is missing\nfix: " in refused(finish(writer, tmp_path / "m.gguf"))


def test_sizes_that_differ_between_layers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = Writer(path, "llama")
    writer.add_head_count([4, 2])
    writer.add_tensor("token_embd.weight", np.ones((5, 16), np.float32))
    assert "m.gguf: `llama.attention.head_count` differs between layers" in refused(finish(writer, path))
