"""A pruned Llama with heads, head size and window per layer: network, sizes, plan and caches."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.decoders import relative_rms
from tests.unit.planning.planned import counted
from trtkit.bundle.bundle import open_bundle
from trtkit.dtypes import FP16
from trtkit.llm.execution import Call, open_execution
from trtkit.models.decoders import llama
from trtkit.models.registry import decoder_spec
from trtkit.models.rope import rope_spec
from trtkit.models.spec import LayerSpec
from trtkit.models.weights import model_weights
from trtkit.planning.decoder_model import decoder_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Ran
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

HEADS, KV_HEADS, HEAD_DIMS, WINDOWS = [4, 2, 3], [2, 1, 3], [8, 16, 4], [None, 5, None]
FIELDS = {
    "model_type": "pruned_llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 67,
    "num_attention_heads": 4, "heads": HEADS, "kv_heads": KV_HEADS, "head_dims": HEAD_DIMS, "windows": WINDOWS,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
}  # fmt: skip
ELEMENTS = 2 * (2 * 8 + 1 * 16 + 3 * 4)
"""Of one token's keys and values in all layers."""


def pruned_spec(config: HfConfig) -> DecoderSpec:
    lists = (config.need(name) for name in ("heads", "kv_heads", "head_dims", "windows"))
    model, layers = llama.spec(config), []
    for layer, heads, kv_heads, head_dim, window in zip(model.layers, *lists, strict=True):
        attention = replace(
            layer.attention,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=rope_spec(config, head_dim),
            sliding_window=window,
        )
        layers.append(LayerSpec(attention, layer.feed_forward))
    return replace(model, layers=tuple(layers))


@pytest.fixture
def pruned(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> DecoderSpec:
    """Return the spec of a family that trtkit knows while the test runs."""
    folder = tmp_path_factory.mktemp("families")
    text = f'HF_CLASS = "LlamaForCausalLM"\nfrom {__name__} import pruned_spec as spec\n'
    (folder / "pruned_llama.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("TRTKIT_FAMILIES", str(folder))
    return decoder_spec(FIELDS)


def torch_logits(weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Return logits [S, V] of one sequence, by the formulas."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weights[f"{name}.weight"]

    def turned(x: torch.Tensor) -> torch.Tensor:  # [heads, S, H]
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    x, size = weights["model.embed_tokens.weight"][ids], len(ids)
    for index, (heads, kv_heads, head_dim, window) in enumerate(zip(HEADS, KV_HEADS, HEAD_DIMS, WINDOWS, strict=True)):
        at = f"model.layers.{index}."
        read = norm(x, at + "input_layernorm")
        q, k, v = (
            (read @ weights[f"{at}self_attn.{name}_proj.weight"].T).view(size, count, head_dim).transpose(0, 1)
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        k, v = (each.repeat_interleave(heads // kv_heads, 0) for each in (turned(k), v))
        distance = torch.arange(size)[:, None] - torch.arange(size)
        is_hidden = (distance < 0) | (distance >= (window or size))
        scores = (turned(q) @ k.transpose(1, 2) * head_dim**-0.5).masked_fill(is_hidden, -torch.inf)
        attended = (scores.softmax(-1) @ v).transpose(0, 1).reshape(size, heads * head_dim)
        x = x + attended @ weights[at + "self_attn.o_proj.weight"].T
        read = norm(x, at + "post_attention_layernorm")
        gate, up = (read @ weights[f"{at}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (torch.nn.functional.silu(gate) * up) @ weights[at + "mlp.down_proj.weight"].T
    return norm(x, "model.norm") @ weights["lm_head.weight"].T


def random_weights(spec: DecoderSpec) -> dict[str, torch.Tensor]:
    seeded = torch.Generator().manual_seed(0)
    return {
        weight.name: torch.randn(weight.shape, generator=seeded) * weight.shape[-1] ** -0.5
        for weight in model_weights(spec)
    }


def test_a_bundle_of_layers_that_differ_computes_what_torch_does(
    pruned: DecoderSpec, workspace: Path, trtkit: Callable[..., Ran]
) -> None:
    weights, folder = random_weights(pruned), workspace / "model"
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(FIELDS))
    (workspace / "m.yaml").write_text(
        "source: {hf: model}\nprecision: fp32\n"
        "llm: {max_batch_size: 2, max_sequence_length: 32, max_prefill_length: 16, logits: all}\n"
    )
    ran = trtkit("build", "m.yaml", "-o", "out", "--json")
    assert ran.code == 0, ran.err
    manifest: dict[str, Any] = ran.json()["manifest"]
    shapes = {each["name"]: each["shape"] for each in manifest["inputs"]}
    caches = [shapes[f"past_{name}_{index}"] for index in range(3) for name in ("key", "value")]
    assert caches == [[-1, kv, 32, dim] for kv, dim in zip(KV_HEADS, HEAD_DIMS, strict=True) for _ in "kv"]
    assert manifest["decoder"]["kv_bytes_per_token"] == 4 * ELEMENTS
    assert manifest["decoder"]["kv_bytes_per_slot"] == 4 * ELEMENTS * 32

    execution = open_execution(open_bundle(workspace / "out"), "reference")
    ids = torch.randint(0, 67, (2, 14), generator=torch.Generator().manual_seed(1))
    starts, counts = np.zeros(2, np.int64), np.full(2, 11)
    first = execution.forward(Call(0, ids[:, :11].numpy(), starts, counts)).clone()
    rest = execution.forward(Call(0, ids[:, 11:].numpy(), starts + 11, counts - 8))
    want = torch.stack([torch_logits(weights, row) for row in ids])
    assert relative_rms(torch.cat([first, rest], 1), want) <= 1e-4


def test_a_plan_counts_each_layers_cache(pruned: DecoderSpec) -> None:
    model = decoder_model("pruned", pruned, FP16)
    assert model.kv_bytes_per_token == 2 * ELEMENTS
    assert counted(FIELDS).cache_bytes.at((3, 1, 40)) == 3 * 40 * 2 * ELEMENTS
    assert model.windowed_kv_bytes(40) == 2 * (40 * (ELEMENTS - 32) + 5 * 32)
    shown = model.to_json()
    assert (shown["heads"], shown["kv_heads"], shown["head_dim"]) == (HEADS, KV_HEADS, HEAD_DIMS)
    assert shown["windows"] == [0, 5, 0]
