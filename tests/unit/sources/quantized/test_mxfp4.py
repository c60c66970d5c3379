"""gpt-oss as it is stored, against transformers' own dequantization."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

from tests.support.decoders import Runner, T, builds, relative_rms, rtx
from trtkit.dtypes import BF16, FP32
from trtkit.errors import ProblemsError, SourceError
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.sources.checkpoint import StoredArray
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm
from trtkit.sources.quantized.mxfp4 import mxfp4_experts

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.quantized_model import ExpertsRead

IDS = torch.randint(3, 67, (2, 21), generator=torch.Generator().manual_seed(1))
NAME = "model.layers.3.mlp.experts.gate_up_proj"
SIZES = {"vocab_size": 67, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2}
SIZES |= {"sliding_window": 7, "max_position_embeddings": 64}


def stored(blocks: np.ndarray, scales: np.ndarray | None, name: str = NAME) -> dict[str, StoredArray]:
    arrays = {"blocks": blocks} | ({} if scales is None else {"scales": scales})
    return {
        f"{name}_{kind}": StoredArray(array.shape, lambda array=array: array)  # type: ignore[misc]
        for kind, array in arrays.items()
    }


def random_codes(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (*shape, 16), np.uint8)
    return blocks, generator.integers(1, 252, shape, np.uint8)


def test_experts_are_dequantized_as_transformers_does() -> None:
    """All codes, and all scales up to which 6 is finite in bf16."""
    blocks, scales = random_codes(4, 10, 3)
    arrays = mxfp4_experts(stored(blocks, scales))
    want = _convert_moe_packed_tensors(torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.bfloat16)
    assert len(arrays) == 8
    for expert in range(4):
        for offset, part in enumerate(("gate", "up")):
            array = arrays[f"model.layers.3.mlp.experts.{expert}.{part}_proj.weight"]
            assert array.shape == (5, 96)
            assert np.array_equal(np.asarray(array.read()), want[expert].T[offset::2].float().numpy())


def test_what_does_not_fit_is_refused_by_name() -> None:
    blocks, scales = random_codes(4, 10, 3)
    cases = {
        "[4, 10, 3, 16] and None": stored(blocks, None),
        "[4, 10, 3, 16] and [4, 10, 2]": stored(blocks, scales[..., :2]),
        "[4, 9, 3, 16] and [4, 9, 3]": stored(blocks[:, :9], scales[:, :9]),
        "[4, 10, 3, 8] and [4, 10, 3]": stored(blocks[..., :8], scales),
    }
    for shapes, arrays in cases.items():
        with pytest.raises(ProblemsError) as caught:
            mxfp4_experts(arrays)
        assert str(caught.value) == (
            f"MXFP4 weights that cannot be read\n  {NAME}: blocks and scales have shapes {shapes}\n"
            "fix: copy the checkpoint's files again"
        )
    with pytest.raises(ProblemsError):
        mxfp4_experts(stored(blocks, scales, "model.layers.3.mlp.gate_proj"))


def test_a_scale_that_is_not_a_number_is_refused() -> None:
    blocks, scales = random_codes(2, 4, 1)
    scales[1, 2, 0] = 255
    arrays = mxfp4_experts(stored(blocks, scales))
    with pytest.raises(SourceError, match="a scale is not a number"):
        arrays["model.layers.3.mlp.experts.1.gate_proj.weight"].read()


def saved(folder: Path) -> Path:
    """Write a gpt-oss whose experts are in MXFP4, as on the hub."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **SIZES))
    for name, weight in model.named_parameters():
        torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, size, rows = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (experts, rows, size // 32, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(121, 126, (experts, rows, size // 32), dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("experts", ["auto", "all"])
def test_a_folder_gives_the_logits_of_transformers(experts: ExpertsRead, tmp_path: Path) -> None:
    """transformers reads the folder by itself. A prefill reads all experts, a step of one token two of three."""
    opened = open_hf_folder(saved(tmp_path))
    spec, graph = decoder_spec(opened.config), Graph(rtx())
    options = DecoderOptions(FP32, T, has_all_logits=True, experts=experts)
    build_decoder(graph, spec, find_weights(spec, opened.checkpoint), options)
    assert {form.is_packed for form in graph.quantized.values()} == ({True} if experts == "auto" else set())
    runner = Runner(graph)
    with torch.inference_mode():
        want = causal_lm(opened)(IDS.long()).logits
    for rows, sizes in ((slice(2), (21,)), (slice(1), (7, *[1] * 14))):
        runner.reset(len(IDS[rows]))
        found = [runner.step(part)["logits"] for part in IDS[rows].split(sizes, 1)]
        assert relative_rms(torch.cat(found, 1), want[rows]) <= 1e-5


def test_a_network_builds_for_a_gpu_without_4_bit_floats(tmp_path: Path) -> None:
    opened = open_hf_folder(saved(tmp_path))
    spec, graph = decoder_spec(opened.config), Graph(rtx())
    build_decoder(graph, spec, find_weights(spec, opened.checkpoint), DecoderOptions(BF16, T, experts="auto"))
    assert builds(graph, [80])
