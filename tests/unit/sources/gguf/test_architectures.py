"""Every architecture as llama.cpp stores it: config, weights and logits are those of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.decoders import Runner, T, model_of, relative_rms, rtx
from tests.unit.sources.gguf.dense_cases import DENSE_STORED
from tests.unit.sources.gguf.recurrent_cases import FOLDED, OLDER_DELTA, RECURRENT_STORED, lfm2_keys
from tests.unit.sources.gguf.sparse_cases import ALIKE, OLDER_LATENT, SPARSE_STORED
from tests.unit.sources.gguf.stored_cases import BY_NAME, GPT_OSS, STORED, Writer, changed, glm4_moe_keys, gpt_oss_keys
from tests.unit.sources.gguf.write_gguf import write_model
from trtkit.dtypes import FP32
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.sources.decoder_source import open_gguf
from trtkit.sources.gguf.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.decoder_case import Case
    from trtkit.sources.decoder_source import DecoderSource

Stored = tuple[str, "Case", "Callable[[Writer], None]"]
ALL: list[Stored] = [*STORED, *DENSE_STORED, *SPARSE_STORED, *RECURRENT_STORED]
READ_AS_OTHERS: list[Stored] = [*ALIKE, FOLDED]
OLDER: list[Stored] = [OLDER_LATENT, OLDER_DELTA]
# Weights that the converter computed with are restored up to rounding.
COMPUTED = ("GEMMA", "NEMOTRON", "QWEN3NEXT", "QWEN35", "MAMBA2", "GRANITE_HYBRID")
IDS = torch.randint(3, 67, (1, 19), generator=torch.Generator().manual_seed(1))


def label(item: Stored) -> str:
    return f"{item[0]}-{item[1]}"


def stored(
    folder: Path, arch: str, model_case: Case, more: Callable[[Writer], None], *, is_older: bool = False
) -> DecoderSource:
    """Write a case as GGUF and open it."""
    model = model_of(model_case)
    arrays = {name: value.numpy() for name, value in model.checkpoint.items()}
    return open_gguf(write_model(folder / "m.gguf", arch, model.config, arrays, more, is_older=is_older))


def check_logits(opened: DecoderSource, want: torch.Tensor) -> None:
    """Compare the network of a file with logits of transformers."""
    graph, spec = Graph(rtx()), decoder_spec(opened.config)
    options = DecoderOptions(FP32, T, has_all_logits=True)
    build_decoder(graph, spec, find_weights(spec, opened.checkpoint), options)
    assert relative_rms(Runner(graph).step(IDS)["logits"], want) < 1e-5


@pytest.mark.parametrize(("arch", "model_case", "more"), ALL, ids=map(label, ALL))
def test_weights_and_config_are_those_of_transformers(
    arch: str, model_case: Case, more: Callable[[Writer], None], tmp_path: Path
) -> None:
    opened, model = stored(tmp_path, arch, model_case, more), model_of(model_case)
    assert set(opened.checkpoint) == set(model.checkpoint)
    for name, value in model.checkpoint.items():
        want = value.numpy()
        np.testing.assert_allclose(opened.checkpoint[name], want, rtol=0, atol=2e-6 * arch.startswith(COMPUTED))
        assert opened.checkpoint.shape_of(name) == want.shape
    assert decoder_spec(opened.config) == model.spec
    assert len(find_weights(model.spec, opened.checkpoint)) > 10


@pytest.mark.parametrize(("arch", "model_case", "more"), READ_AS_OTHERS, ids=map(label, READ_AS_OTHERS))
def test_models_that_are_read_as_others_give_the_logits_of_transformers(
    arch: str, model_case: Case, more: Callable[[Writer], None], tmp_path: Path
) -> None:
    check_logits(stored(tmp_path, arch, model_case, more), model_of(model_case).logits(IDS))


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "model_case", "more"), ALL, ids=map(label, ALL))
def test_logits_are_those_of_transformers(
    arch: str, model_case: Case, more: Callable[[Writer], None], tmp_path: Path
) -> None:
    check_logits(stored(tmp_path, arch, model_case, more), model_of(model_case).logits(IDS))


@pytest.mark.parametrize(("arch", "model_case", "more"), OLDER, ids=map(label, OLDER))
def test_weights_that_older_converters_kept_whole_are_read(
    arch: str, model_case: Case, more: Callable[[Writer], None], tmp_path: Path
) -> None:
    opened, model = stored(tmp_path, arch, model_case, more, is_older=True), model_of(model_case)
    for name, value in model.checkpoint.items():
        np.testing.assert_allclose(opened.checkpoint[name], value.numpy(), rtol=0, atol=2e-6)
    assert decoder_spec(opened.config) == model.spec
    assert len(opened.checkpoint) == len(model.checkpoint)


def test_queries_keys_and_values_of_one_tensor_are_cut_apart(tmp_path: Path) -> None:
    """So do files made of ChatGLM's own checkpoints have them."""
    model_case = changed("glm", head_dim=8, hidden_size=48, rms_norm_eps=1e-5)
    model, parts = model_of(model_case), [f"self_attn.{name}_proj" for name in "qkv"]
    arrays = {name: value.numpy() for name, value in model.checkpoint.items()}

    def keys(writer: Writer) -> None:
        writer.add_rope_dimension_count(4)
        for index in range(2):
            for end in ("weight", "bias"):
                own = [arrays[f"model.layers.{index}.{part}.{end}"] for part in parts]
                writer.add_tensor(f"blk.{index}.attn_qkv.{end}", np.concatenate(own))

    rest = {name: array for name, array in arrays.items() if not any(part in name for part in parts)}
    opened = open_gguf(write_model(tmp_path / "m.gguf", "CHATGLM", model.config, rest, keys))
    assert set(opened.checkpoint) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(opened.checkpoint[name], array)
    assert decoder_spec(opened.config) == model.spec


READ_BY_TRANSFORMERS = [
    ("LFM2", changed("lfm2", conv_bias=False), lfm2_keys),
    *(item for item in RECURRENT_STORED if item[0] in ("QWEN35", "QWEN35MOE")),
]


@pytest.mark.parametrize(("arch", "model_case", "more"), READ_BY_TRANSFORMERS, ids=map(label, READ_BY_TRANSFORMERS))
def test_transformers_reads_these_files_itself(
    arch: str, model_case: Case, more: Callable[[Writer], None], tmp_path: Path
) -> None:
    """Its own reader of llama.cpp's files agrees with how the tests write them."""

    def keys(writer: Writer) -> None:
        more(writer)
        writer.add_tokenizer_model("none")
        writer.add_token_list([f"t{index}" for index in range(67)])

    opened = stored(tmp_path, arch, model_case, keys)
    read = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32, experts_implementation="eager"
    )
    want = model_of(model_case).logits(IDS)
    with torch.inference_mode():
        assert relative_rms(read(IDS).logits, want) < 1e-5
    check_logits(opened, want)


def test_every_architecture_is_tested() -> None:
    tested = {gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[arch]] for arch, _, _ in (*ALL, *READ_AS_OTHERS)}
    assert tested == set(FAMILIES)


def test_mxfp4_experts_are_read_exactly(tmp_path: Path) -> None:
    """gpt-oss is published with its experts in MXFP4, each expert's rows in blocks of 32 columns."""
    model, kind = model_of(GPT_OSS), gguf.GGMLQuantizationType.MXFP4
    arrays = {name: value.numpy() for name, value in model.checkpoint.items()}
    path = write_model(
        tmp_path / "m.gguf",
        "GPT_OSS",
        model.config,
        arrays,
        gpt_oss_keys,
        lambda name: "MXFP4" if "exps" in name else "F32",
    )
    opened = open_gguf(path)
    experts = [name for name in arrays if ".experts." in name and name.endswith("weight")]
    assert len(experts) == 2 * 5 * 3
    for name in experts:
        want = gguf.quants.dequantize(gguf.quants.quantize(arrays[name], kind), kind)
        np.testing.assert_array_equal(opened.checkpoint[name], want)
        assert np.unique(np.abs(want[0, :32])).size <= 8


def test_blocks_that_predict_later_tokens_are_left_out(tmp_path: Path) -> None:
    """Files count them with the model's own, after which they come."""

    def keys(writer: Writer) -> None:
        glm4_moe_keys(writer)
        writer.add_nextn_predict_layers(1)
        for name in ("attn_q", "nextn.eh_proj"):
            writer.add_tensor(f"blk.3.{name}.weight", np.ones((4, 4), np.float32))

    model = model_of(BY_NAME["glm4_moe"])
    arrays = {name: value.numpy() for name, value in model.checkpoint.items()}
    config = {**model.config, "num_hidden_layers": 4}
    opened = open_gguf(write_model(tmp_path / "m.gguf", "GLM4_MOE", config, arrays, keys))
    assert set(opened.checkpoint) == set(arrays)
    assert decoder_spec(opened.config).layers == model.spec.layers
