"""An adapter merged at build time against PEFT's model with the unmerged adapter."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.support.adapters import peft_logits, save_adapter, save_base
from tests.support.decoder_cases import CASES
from tests.support.decoders import Runner, T, builds, model_of, relative_rms, rtx
from tests.support.tiny_llm import save_to_quantize
from trtkit.builder.build_inputs import gather_inputs
from trtkit.builder.decoders import open_decoder
from trtkit.config.load import load_config
from trtkit.config.schema import ModelConfig, Source
from trtkit.errors import ConfigError, ProblemsError, SourceError
from trtkit.jobs.job import JobContext
from trtkit.jobs.runner import InlineRunner
from trtkit.lora.adapter import open_adapter
from trtkit.lora.merge import merged, open_language_model
from trtkit.network.graph import Graph
from trtkit.quantization.jobs import QuantizeRequest
from trtkit.quantization.llm.job import quantize_llm
from trtkit.resolve import resolve
from trtkit.sources.checkpoint import Checkpoint
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.verification.decoder_reference import TransformersReference

if TYPE_CHECKING:
    from tests.support.decoder_case import Case
    from trtkit.builder.decoders import OpenedDecoder

IDS = torch.randint(3, 67, (2, 17), generator=torch.Generator().manual_seed(4))
BY_NAME = {case.name: case for case in CASES}
LINEAR = {"target_modules": "all-linear"}
PATTERNS = {
    "target_modules": ["q_proj", "o_proj", "down_proj"],
    "rank_pattern": {"q_proj": 7, "^model.layers.1.mlp.down_proj": 2},
    "alpha_pattern": {"layers.0.self_attn.o_proj": 11},
}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("llama", LINEAR),
    ("llama", PATTERNS),
    ("llama", {"target_modules": ["up_proj"], "layers_to_transform": [1]}),
    ("llama", {"target_modules": ["k_proj", "v_proj"], "layers_to_transform": 0, "layers_pattern": "layers"}),
    ("llama", {"target_modules": r".*\.1\.(self_attn\.[qk]|mlp\.gate)_proj", "use_rslora": True}),
    ("llama", {"target_modules": ["gate_proj", "v_proj"], "exclude_modules": ["model.layers.0.self_attn.v_proj"]}),
    ("llama", {"target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    ("llama-3", {"target_modules": ["embed_tokens"], "use_rslora": True}),
    ("llama-3", {"target_modules": ["lm_head"]}),
    ("llama-3", {"target_modules": ["lm_head", "embed_tokens", "v_proj"]}),
    ("llama-biases", LINEAR),
    ("qwen2", LINEAR),
    ("gemma", {"target_modules": ["embed_tokens", "q_proj"]}),
    ("phi3", LINEAR),
    ("gpt2", {**LINEAR, "fan_in_fan_out": True}),
    ("gpt_neox", LINEAR),
    ("falcon-40b", LINEAR),
    ("mixtral", {"target_modules": ["q_proj", "v_proj"]}),
]


def opened_with(folder: Path, case: Case, **options: Any) -> OpenedDecoder:
    """Return the case's model with a random adapter, which lies in the folder `adapter`."""
    base = save_base(folder / "base", case)
    adapter = save_adapter(folder / "adapter", model_of(case).hf, **options)
    llm = {"max_sequence_length": T, "max_prefill_length": T, "logits": "all", "batching": "separate"}
    return open_decoder(
        resolve(ModelConfig.model_validate({"source": {"hf": str(base), "lora": str(adapter)}, "llm": llm}))
    )


@pytest.mark.parametrize(("name", "options"), FORMS)
def test_merged_logits_are_those_of_peft(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    case = BY_NAME[name]
    opened = opened_with(tmp_path, case, **options)
    runner = Runner(opened.write(Graph(rtx()), opened.weights()))
    runner.reset(2)
    want = peft_logits(model_of(case).hf, tmp_path / "adapter", IDS)
    assert relative_rms(runner.step(IDS)["logits"], want) <= 1e-5
    assert relative_rms(model_of(case).logits(IDS), want) > 0.05


def test_the_reference_has_the_adapter_and_the_engine_builds(tmp_path: Path) -> None:
    case = BY_NAME["phi3"]
    opened = opened_with(tmp_path, case, **LINEAR)
    assert opened.source.note == "adapter adapter of rank 4 merged into 8 matrices"
    want = peft_logits(model_of(case).hf, tmp_path / "adapter", IDS)
    with torch.inference_mode():
        assert relative_rms(TransformersReference(opened.source).model(IDS.long()).logits, want) <= 1e-5
    assert builds(opened.write(Graph(rtx()), opened.weights()), has_decode=True)


@pytest.mark.slow
def test_a_build_quantizes_the_sum(tmp_path: Path) -> None:
    path = save_to_quantize(tmp_path)
    hf = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    save_adapter(tmp_path / "adapter", hf, target_modules=["q_proj", "down_proj"])
    config = load_config(str(path), [f"source.lora={tmp_path}/adapter"])
    quantize_llm(QuantizeRequest(config, tmp_path / "int8"), JobContext())
    name = "model.layers.1.mlp.down_proj.weight"
    got, want = open_hf_folder(tmp_path / "int8").checkpoint[name], open_language_model(config.source).checkpoint[name]
    plain = open_hf_folder(tmp_path / "model").checkpoint[name]
    assert np.abs(np.asarray(got, np.float32) - want).max() < np.abs(want).max() / 127
    assert np.abs(plain - want).max() > 0.1


def test_a_quantized_base_is_refused(tmp_path: Path) -> None:
    opened = opened_with(tmp_path, BY_NAME["llama"], target_modules=["q_proj", "down_proj"])
    base = open_hf_folder(tmp_path / "base")
    assert isinstance(base.checkpoint, Checkpoint)
    stored = {name: base.checkpoint.stored(name) for name in base.checkpoint}
    layers = {name: replace(each, is_quantized="_proj" in name) for name, each in stored.items()}
    with pytest.raises(ProblemsError) as caught:
        merged(
            replace(base, checkpoint=Checkpoint(layers)), opened.spec, open_adapter(tmp_path / "adapter", opened.spec)
        )
    assert str(caught.value) == (
        "the adapter changes 4 matrices that are quantized\n"
        "  `layers.0.attention.q` is quantized\n"
        "  `layers.0.mlp.down` is quantized\n"
        "  `layers.1.attention.q` is quantized\n"
        "  `layers.1.mlp.down` is quantized\n"
        "fix: merge into the original, unquantized model, and let `quantize` quantize the sum"
    )


def test_an_adapter_of_another_base_is_refused(tmp_path: Path) -> None:
    """It comes with a copy of its table, which has the right shape and other numbers."""
    case = BY_NAME["llama"]
    adapter = save_adapter(tmp_path / "adapter", model_of(case).hf, target_modules=["embed_tokens"])
    other = deepcopy(model_of(case).hf)
    torch.nn.init.normal_(other.model.embed_tokens.weight)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(SourceError, match="includes a `embedding` that differs from the model's"):
        open_language_model(Source(hf=str(tmp_path / "other"), lora=str(adapter)))


def test_a_build_follows_from_the_files_of_the_adapter(tmp_path: Path) -> None:
    opened_with(tmp_path, BY_NAME["llama"], **LINEAR)
    source = {"hf": str(tmp_path / "base")}
    adapted = {**source, "lora": str(tmp_path / "adapter")}
    inputs = [gather_inputs(ModelConfig(source=Source(**each)), InlineRunner()) for each in (source, adapted)]
    names = [[Path(file.path).name for file in each.sources] for each in inputs]
    assert names[1] == [*names[0], "adapter_config.json", "adapter_model.safetensors"]
    save_adapter(tmp_path / "adapter", model_of(BY_NAME["llama"]).hf, seed=1, **LINEAR)
    again = gather_inputs(ModelConfig(source=Source(**adapted)), InlineRunner())
    assert len({each.key for each in (*inputs, again)}) == 3


def test_models_other_than_decoders_take_no_adapter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5", "n_positions": 64}')
    with pytest.raises(ConfigError, match=r"source\.lora: does not apply to an encoder-decoder model"):
        resolve(ModelConfig(source=Source(hf=str(tmp_path), lora=str(tmp_path))))
