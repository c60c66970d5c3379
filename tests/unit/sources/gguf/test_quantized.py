"""GGUF's types that are kept: to the bit what the gguf package dequantizes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from tests.support.decoder_case import GPT2_SIZES, NO_GROUPS, Case, case
from tests.support.decoders import Model, Runner, T, builds, model_of, relative_rms, rtx
from tests.unit.sources.gguf.dense_cases import falcon_keys
from tests.unit.sources.gguf.recurrent_cases import qwen35_keys
from tests.unit.sources.gguf.sparse_cases import granite_shared_keys
from tests.unit.sources.gguf.stored_cases import GPT_OSS, changed, gpt_oss_keys
from tests.unit.sources.gguf.write_gguf import write_model, write_tensor
from trtkit.builder.decoders import open_config_source
from trtkit.config.schema import ModelConfig
from trtkit.dtypes import FP16, FP32
from trtkit.errors import SourceError, TrtkitError
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_gguf
from trtkit.sources.gguf.file import read_gguf
from trtkit.sources.huggingface.model import causal_lm

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.sources.decoder_source import DecoderSource

IDS = torch.randint(3, 67, (2, 21), generator=torch.Generator().manual_seed(1))
KEPT = {"Q8_0": "int8", "Q4_0": "int4", "Q4_1": "int4", "TQ1_0": "int4", "TQ2_0": "int4"}


@pytest.mark.parametrize("kind", KEPT)
def test_matrices_are_what_the_gguf_package_dequantizes(kind: str, tmp_path: Path) -> None:
    is_ternary = kind.startswith("TQ")
    size, block = (512, 128) if is_ternary else (96, 32)
    array = np.random.default_rng(0).standard_normal((24, size)).astype(np.float32)
    array[2, :256] = 0  # a block whose scale is 0
    raw = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
    stored = read_gguf(write_tensor(tmp_path / "m.gguf", raw, kind)).stored_matrix("x")
    matrix = stored.read()
    assert isinstance(matrix, QuantizedMatrix)
    assert (stored.shape, matrix.shape, matrix.format, matrix.block) == ((24, size), (24, size), KEPT[kind], block)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    if kind == "Q4_1":  # 8 scales are added and taken away again
        np.testing.assert_allclose(matrix.weights(), want, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(matrix.weights(), want)


def test_other_types_are_dequantized(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    raw = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q5_0)
    stored = read_gguf(write_tensor(tmp_path / "m.gguf", raw, "Q5_0")).stored_matrix("x")
    assert not stored.is_quantized
    np.testing.assert_array_equal(stored.read(), gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q5_0))


SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}


def nothing(writer: gguf.GGUFWriter) -> None:
    """Add no keys."""


FAMILIES = [
    ("LLAMA", case("llama-32", "llama", **SIZES), lambda writer: writer.add_rope_dimension_count(16)),
    ("GPT2", Case("gpt2-32", "gpt2", {**GPT2_SIZES, "n_embd": 64, "n_inner": 96, "n_head": 4}), nothing),
    (
        "GPTNEOX",
        case("neox-32", "gpt_neox", *NO_GROUPS, hidden_size=64, intermediate_size=96, num_attention_heads=4),
        lambda writer: (writer.add_rope_dimension_count(4), writer.add_parallel_residual(True)),
    ),
]
MIXED = {"attn_v.weight": "Q5_0", "ffn_down.weight": "Q8_0", "ffn_up.weight": "Q4_1", "output.weight": "Q8_0"}


def kind_of(name: str) -> str:
    """Return the type that a matrix is stored in: all that are kept, and others."""
    table = {"token_embd.weight": "Q8_0", "position_embd.weight": "F32"}
    return table.get(name) or next((kind for end, kind in MIXED.items() if name.endswith(end)), "Q4_0")


def written(folder: Path, arch: str, model: Model, more: Any, kind: Any = kind_of) -> Path:
    arrays = {name: value.numpy() for name, value in model.checkpoint.items()}
    return write_model(folder / "m.gguf", arch, model.config, arrays, more, kind)


def logits(opened: DecoderSource, config: dict[str, Any], folder: Path) -> torch.Tensor:
    """Return the logits of transformers on a source's weights, dequantized, as it loads them from a folder."""
    folder.mkdir()
    arrays = {name: np.array(opened.checkpoint[name], np.float32, order="C") for name in opened.checkpoint}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return model.eval()(IDS).logits


@pytest.mark.parametrize(("arch", "family", "more"), FAMILIES, ids=[item[0] for item in FAMILIES])
def test_a_model_that_stays_as_stored_computes_what_the_dequantized_one_does(
    arch: str, family: Case, more: Any, tmp_path: Path
) -> None:
    """Rows that the converter moved are put back, GPT-2's matrices are turned."""
    model = model_of(family)
    path = written(tmp_path, arch, model, more)
    opened = open_gguf(path, keep_quantized=True)
    kept = [name for name in opened.checkpoint if isinstance(opened.checkpoint[name], QuantizedMatrix)]
    assert len(kept) >= 7
    assert not {"model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight"} & set(kept)
    want = logits(open_gguf(path), model.config, tmp_path / "hf")
    if arch != "GPTNEOX":
        with torch.inference_mode():
            torch.testing.assert_close(causal_lm(opened)(IDS).logits, want, rtol=1e-5, atol=1e-5)
    for dtype, limit in ((FP32, 1e-4), (FP16, 2e-2)):
        graph = Graph(rtx())
        weights = find_weights(model.spec, opened.checkpoint)
        build_decoder(graph, model.spec, weights, DecoderOptions(dtype, T, has_all_logits=True))
        runner = Runner(graph)
        runner.reset(2)
        assert relative_rms(runner.step(IDS)["logits"], want) < limit
    assert builds(graph)


GPT_OSS_TYPES = {"gate_exps": "MXFP4", "up_exps": "MXFP4", "down_exps": "MXFP4"}
MIXTRAL = case("mixtral-32", "mixtral", **SIZES, num_local_experts=5, num_experts_per_tok=2, sliding_window=None)
MIXTRAL_TYPES = {"gate_exps": "Q4_0", "up_exps": "Q4_1", "down_exps": "Q8_0"}


@pytest.mark.parametrize("experts", ["auto", "chosen", "all"])
@pytest.mark.parametrize(
    ("arch", "family", "more", "types"),
    [("GPT_OSS", GPT_OSS, gpt_oss_keys, GPT_OSS_TYPES), ("LLAMA", MIXTRAL, FAMILIES[0][2], MIXTRAL_TYPES)],
    ids=["gpt_oss", "mixtral"],
)
def test_experts_that_stay_as_stored_compute_what_dequantized_ones_do(
    arch: str, family: Case, more: Any, types: dict[str, str], experts: Any, tmp_path: Path
) -> None:
    """A prompt chooses all experts, steps of one token fewer; each type is read in its own form."""

    def kind(name: str) -> str:
        return next((type_ for part, type_ in types.items() if part in name and name.endswith("weight")), "F32")

    model = model_of(family)
    path = written(tmp_path, arch, model, more, kind)
    opened, plain = open_gguf(path, keep_quantized=True), open_gguf(path)
    kept = {name for name in opened.checkpoint if isinstance(opened.checkpoint[name], QuantizedMatrix)}
    assert len(kept) == 2 * 5 * 3
    assert opened.note.startswith("30 matrices kept as stored; ")
    for name in kept:
        np.testing.assert_array_equal(opened.checkpoint[name].weights(), plain.checkpoint[name])
    with torch.inference_mode():
        want = causal_lm(plain)(IDS).logits
    options = DecoderOptions(FP32, T, has_all_logits=True, experts=experts)
    graph = Graph(rtx())
    build_decoder(graph, model.spec, find_weights(model.spec, opened.checkpoint), options)
    runner = Runner(graph)
    runner.reset(2)
    parts = [runner.step(part)["logits"] for part in (IDS[:, :17], *IDS[:, 17:].split(1, 1))]
    assert relative_rms(torch.cat(parts, 1), want) < 1e-4
    assert builds(graph)


WIDE = {"hidden_size": 96, "intermediate_size": 64, "shared_intermediate_size": 64}
MOVED = [
    ("FALCON", changed("falcon-40b", hidden_size=96), falcon_keys(6, 2)),
    ("GRANITE_MOE", changed("granitemoeshared", **WIDE), granite_shared_keys),
    ("QWEN35", changed("qwen3_5", hidden_size=64, intermediate_size=96, head_dim=16), qwen35_keys),
]


def plain_experts(name: str) -> str:
    """Return the type of a matrix: experts and convolutions stay as they are."""
    return "F32" if "exps" in name or "conv1d" in name else "Q8_0"


@pytest.mark.parametrize(("arch", "family", "more"), MOVED, ids=[item[0] for item in MOVED])
def test_matrices_that_are_kept_are_those_that_are_dequantized(
    arch: str, family: Case, more: Any, tmp_path: Path
) -> None:
    """Rows that the converter moved are put back, and matrices that it took apart joined."""
    path = written(tmp_path, arch, model_of(family), more, plain_experts)
    kept, plain = open_gguf(path, keep_quantized=True).checkpoint, open_gguf(path).checkpoint
    quantized = {name: kept[name] for name in kept if isinstance(kept[name], QuantizedMatrix)}
    assert len(quantized) >= 8
    for name, matrix in quantized.items():
        np.testing.assert_array_equal(matrix.weights(), plain[name])


def config_of(path: Path, **quantize: Any) -> ModelConfig:
    fields = {"name": "m", "source": {"gguf": str(path)}, "quantize": quantize or None}
    return ModelConfig.model_validate(fields)


def test_a_config_asks_for_it(tmp_path: Path) -> None:
    path = written(tmp_path, *(FAMILIES[0][0], model_of(FAMILIES[0][1]), FAMILIES[0][2]))
    opened = open_config_source(config_of(path, method="as_stored"))
    assert opened.quantized_by == "llama.cpp"
    assert opened.note == "13 matrices kept as stored; Q5_0 and tables dequantized"
    assert (open_config_source(config_of(path)).quantized_by, open_config_source(config_of(path)).note) == ("", "")


def test_a_file_without_such_types_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "LLAMA", model_of(FAMILIES[0][1]), FAMILIES[0][2], lambda _: "Q5_0")
    with pytest.raises(SourceError) as caught:
        open_gguf(path, keep_quantized=True)
    assert str(caught.value) == (
        f"{path}: no linear layer is of a type that TensorRT has a form for: Q8_0, Q4_0, Q4_1, TQ1_0, TQ2_0"
        "\nfix: remove `quantize`: Q5_0 are dequantized then"
    )


def test_other_sources_have_nothing_to_keep(tmp_path: Path) -> None:
    fields = {"name": "m", "source": {"hf": str(tmp_path)}, "quantize": {"method": "as_stored"}}
    with pytest.raises(TrtkitError) as caught:
        open_config_source(ModelConfig.model_validate(fields))
    assert "quantize.method: `as_stored` applies to GGUF files; other quantized checkpoints" in str(caught.value)
