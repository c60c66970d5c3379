"""Damaged model files of every format end in one of our errors: never in another exception, a hang or much memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.decoder_cases import CASES
from tests.support.fuzz import byte_changes, json_changes, must_end, text_of
from tests.support.hybrids import CASES as HYBRIDS
from tests.unit.sources.gguf.write_gguf import tiny
from trtkit.errors import TrtkitError
from trtkit.models.hybrids.registry import HybridOptions, hybrid_spec
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights, model_weights
from trtkit.sources.decoder_source import open_gguf, open_hf_folder, open_trtllm
from trtkit.sources.gguf.file import read_gguf
from trtkit.sources.safetensors_file import read_safetensors

if TYPE_CHECKING:
    from pathlib import Path

    import gguf

    from trtkit.sources.decoder_source import DecoderSource

LLAMA = {
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
}


def read_whole(opened: DecoderSource) -> None:
    """Read all that a build reads of a source."""
    weights = find_weights(decoder_spec(opened.config, opened.where), opened.checkpoint, opened.where)
    for path in weights:
        weights[path]


def fields_of(case: Any) -> dict[str, Any]:
    from transformers import AutoConfig

    return json.loads(AutoConfig.for_model(case.model_type, **case.config).to_json_string(use_diff=False))


@pytest.mark.parametrize("case", {case.model_type: case for case in CASES}.values(), ids=str)
def test_changed_fields_of_a_decoder(case: Any) -> None:
    fields = fields_of(case)
    decoder_spec(fields)
    for changed in json_changes(fields, 200):
        must_end(lambda changed=changed: len(list(model_weights(decoder_spec(changed)))), changed)


def test_every_field_with_every_wrong_value() -> None:
    from tests.support.fuzz import WRONG

    for name in LLAMA:
        for value in WRONG:
            changed = {**LLAMA, name: value}
            must_end(lambda changed=changed: len(list(model_weights(decoder_spec(changed)))), changed)


@pytest.mark.parametrize("case", {case.model_type: case for case in HYBRIDS}.values(), ids=str)
def test_changed_fields_of_a_hybrid(case: Any) -> None:
    fields = fields_of(case)
    options = HybridOptions(image_size=None if "image_size" in fields else (96, 96))
    hybrid_spec(fields, options=options)
    for changed in json_changes(fields, 150):
        must_end(lambda changed=changed: hybrid_spec(changed, options=options), changed)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A model as transformers saves it, quantized by nobody."""
    folder = tmp_path / "llama"
    folder.mkdir()
    draw = np.random.default_rng(0)
    weights = {weight.name: draw.random(weight.shape, np.float32) for weight in model_weights(decoder_spec(LLAMA))}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    read_whole(open_hf_folder(folder))
    return folder


QUANTIZED: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    "modelopt": {"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True}}},
        "ignore": ["lm_head"],
    },
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_changed_quantization_of_a_checkpoint(method: str, llama: Path) -> None:
    base = {**LLAMA, "quantization_config": QUANTIZED[method]}
    for changed in json_changes({"quantization_config": QUANTIZED[method]}, 150):
        (llama / "config.json").write_text(text_of({**base, **changed}))
        must_end(lambda: read_whole(open_hf_folder(llama)), changed)


def test_changed_safetensors(llama: Path, tmp_path: Path) -> None:
    file = llama / "model.safetensors"
    data = file.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for changed in byte_changes(data, 400, reach=header):
        file.write_bytes(changed)
        must_end(lambda: [stored.read() for stored in read_safetensors(file).values()], changed[:header])
    fields = json.loads(data[8:header])
    for changed in json_changes(fields, 400, seed=1):
        text = text_of(changed).encode(errors="surrogatepass")
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[header:])
        must_end(lambda: read_whole(open_hf_folder(llama)), text)


def test_changed_index_of_shards(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "a.safetensors")
    names = read_safetensors(llama / "a.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "a.safetensors")}
    for changed in json_changes(index, 200):
        (llama / "model.safetensors.index.json").write_text(text_of(changed))
        must_end(lambda: read_whole(open_hf_folder(llama)), changed)


def with_words(writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", "a", "b"])
    writer.add_token_scores([0.0] * 5)
    writer.add_token_types([2, 3, 3, 1, 1])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)


def test_changed_gguf(tmp_path: Path) -> None:
    file = tiny(tmp_path / "m.gguf", with_words)
    data = file.read_bytes()
    reach = len(data) - sum(tensor.size_bytes for tensor in read_gguf(file).tensors.values())

    def read() -> None:
        opened = open_gguf(file)
        decoder_spec(opened.config, opened.where)
        for name in opened.checkpoint:
            opened.checkpoint[name]
        opened.tokenizer.write(tmp_path / "tokenizer")

    read()
    for changed in byte_changes(data, 600, reach=reach):
        file.write_bytes(changed)
        must_end(read, changed[:reach])


TRTLLM = {
    "architecture": "LlamaForCausalLM",
    "dtype": "float32",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 8,
    "head_size": 4,
    "intermediate_size": 12,
    "vocab_size": 16,
    "max_position_embeddings": 32,
    "norm_epsilon": 1e-5,
    "hidden_act": "silu",
    "rotary_base": 10000.0,
    "rotary_scaling": {"rope_type": "linear", "factor": 2.0},
    "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    "quantization": {"quant_algo": None, "kv_cache_quant_algo": None, "group_size": 128},
}
RANK = {
    "transformer.vocab_embedding.weight": (16, 8),
    "transformer.ln_f.weight": (8,),
    "transformer.layers.0.input_layernorm.weight": (8,),
    "transformer.layers.0.post_layernorm.weight": (8,),
    "transformer.layers.0.attention.qkv.weight": (16, 8),
    "transformer.layers.0.attention.dense.weight": (8, 8),
    "transformer.layers.0.mlp.fc.weight": (12, 8),
    "transformer.layers.0.mlp.gate.weight": (12, 8),
    "transformer.layers.0.mlp.proj.weight": (8, 12),
}


def test_changed_config_of_tensorrt_llm(tmp_path: Path) -> None:
    save_file({name: np.ones(shape, np.float32) for name, shape in RANK.items()}, tmp_path / "rank0.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TRTLLM))
    read_whole(open_trtllm(tmp_path))
    for changed in json_changes(TRTLLM, 600):
        (tmp_path / "config.json").write_text(text_of(changed))
        must_end(lambda: read_whole(open_trtllm(tmp_path)), changed)


@pytest.mark.parametrize("count", [10**7, 10**9])
def test_counts_that_no_model_has_are_refused_by_name(count: int, tmp_path: Path) -> None:
    with pytest.raises(TrtkitError) as caught:
        decoder_spec({**LLAMA, "num_hidden_layers": count})
    assert str(caught.value) == (
        f"config.json: `num_hidden_layers` is `{count}`; expected an integer from 1 to 10000\n"
        "fix: take config.json from the model's own folder"
    )
    (tmp_path / "config.json").write_text(json.dumps({**TRTLLM, "mapping": {"tp_size": count}}))
    with pytest.raises(TrtkitError) as caught:
        open_trtllm(tmp_path)
    assert str(caught.value) == (
        f"config.json: `mapping.tp_size` is `{count}`; expected an integer from 1 to 4096\n"
        "fix: copy or download the file again"
    )
