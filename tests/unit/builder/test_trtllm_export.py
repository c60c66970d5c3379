"""TensorRT-LLM checkpoints that trtkit writes: to the bit what ModelOpt and TensorRT-LLM's scripts write."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.decoders import model_of as case_model
from tests.support.modelopt import trtllm_checkpoint
from tests.unit.sources.trtllm.layouts import write_trtllm
from tests.unit.sources.trtllm.test_layouts import STORED
from tests.unit.sources.trtllm.test_trtllm import EXPORT_NAMES, MORE_NAMES, exported, model_of
from tests.unit.sources.trtllm.test_trtllm import config_of as config_of_model
from trtkit.builder.export import export_model
from trtkit.config.schema import ModelConfig
from trtkit.errors import TrtkitError
from trtkit.jobs.runner import InlineRunner
from trtkit.models.registry import decoder_spec
from trtkit.sources.decoder_source import open_trtllm

if TYPE_CHECKING:
    from tests.support.decoder_case import Case
    from tests.unit.sources.trtllm.layouts import Layout

Arrays = dict[str, torch.Tensor]
Json = dict[str, Any]
LENGTHS = {"max_sequence_length": 32, "max_prefill_length": 16}
# ModelOpt's own fields, and those that TensorRT-LLM's config classes would replace in it, were they installed.
MODELOPTS = {"producer", "rank", "decoder", "rmsnorm", "lm_head_bias", "rotary_pct", "hidden_act"}


def written(source: Json, folder: Path, *, requantize: bool = False, **keys: Any) -> Path:
    """Export a model into a new folder."""
    fields = {"name": "model", "source": source, "precision": "fp16", "llm": LENGTHS, **keys}
    out = folder / f"checkpoint{len(list(folder.glob('checkpoint*')))}"
    config = ModelConfig.model_validate(fields)
    return export_model(config, "tensorrt-llm", out, InlineRunner(), requantize=requantize).path


def ranks_of(folder: Path) -> list[Arrays]:
    return [load_file(folder / f"rank{rank}.safetensors") for rank in range(len(list(folder.glob("rank*"))))]


def config_of(folder: Path) -> Json:
    fields: Json = json.loads((folder / "config.json").read_text())
    return fields


def assert_same_bits(ours: Path, theirs: Path, extra: tuple[str, ...] = ()) -> None:
    """Check that two checkpoints hold the same tensors. extra: ends of names of those that ours alone may hold."""
    pairs = list(zip(ranks_of(ours), ranks_of(theirs), strict=True))
    for one, other in pairs:
        assert {name for name in one if name in other or not name.endswith(extra)} == set(other)
        for name, want in other.items():
            got = one[name]
            assert (got.dtype, got.shape) == (want.dtype, want.shape), name
            assert torch.equal(got.reshape(-1).view(torch.uint8), want.reshape(-1).view(torch.uint8)), name


@cache
def saved(model_type: str) -> Path:
    """Return a folder that transformers saved. Mistral's has no window, which the checkpoints do not know."""
    folder = Path(mkdtemp())
    model_of(model_type).save_pretrained(folder)
    path = folder / "config.json"
    fields = {name: value for name, value in json.loads(path.read_text()).items() if not name.startswith("training_")}
    path.write_text(json.dumps(fields | ({"sliding_window": None} if model_type == "mistral" else {})))
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("model_type", [*EXPORT_NAMES, *MORE_NAMES])
def test_ranks_are_those_that_modelopt_writes(model_type: str, ranks: int, tmp_path: Path) -> None:
    ours, theirs = (
        written({"hf": str(saved(model_type))}, tmp_path, parallel={"tensor": ranks}),
        exported(model_type, ranks),
    )
    assert_same_bits(ours, theirs)
    mine, fields = config_of(ours), config_of(theirs)
    # ModelOpt says of any model that it has rotary embeddings.
    own = MODELOPTS | ({"position_embedding_type"} if model_type == "gpt2" else set())
    assert {name: mine.get(name) for name in fields if name not in own} == {
        name: value for name, value in fields.items() if name not in own
    }


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma"])
def test_pipeline_stages_are_those_that_modelopt_writes(model_type: str, tmp_path: Path) -> None:
    """Tied embeddings of several stages are the exception: ModelOpt leaves the last without a head."""
    name = {**EXPORT_NAMES, **MORE_NAMES}[model_type]
    theirs = trtllm_checkpoint(model_of(model_type), name, torch.float16, ranks=2, stages=2)
    source = {"hf": str(saved(model_type))}
    ours = written(source, tmp_path, parallel={"tensor": 2, "pipeline": 2})
    assert_same_bits(ours, theirs, ("lm_head.weight",) if model_type == "gemma" else ())
    assert config_of(ours)["mapping"] == config_of(theirs)["mapping"]
    opened, want = open_trtllm(ours).checkpoint, open_trtllm(written(source, tmp_path)).checkpoint
    assert set(opened) - set(want) <= {"lm_head.weight"}
    for tensor in want:
        np.testing.assert_array_equal(opened[tensor], want[tensor], err_msg=tensor)


def layout_files(folder: Path, layout: Layout) -> list[Arrays]:
    """Return the ranks of a checkpoint as the scripts write them, their tables cut by rows as `embedding_sharding_dim`
    0 has it."""
    ranks = ranks_of(folder)
    for rank, arrays in enumerate(ranks):
        for name in ("transformer.vocab_embedding.weight", "transformer.position_embedding.weight"):
            if name in arrays:
                table = arrays[name]
                rows = -(-len(table) // layout.ranks)
                padded = torch.nn.functional.pad(table, (0, 0, 0, rows * layout.ranks - len(table)))
                arrays[name] = padded[rank * rows : (rank + 1) * rows]
    return ranks


@pytest.mark.parametrize(("model_case", "layout"), STORED, ids=lambda item: getattr(item, "architecture", str(item)))
def test_every_architecture_is_laid_out_as_by_tensorrt_llms_scripts(
    model_case: Case, layout: Layout, tmp_path: Path
) -> None:
    """What is tied differs: scripts keep a head or not, the export leaves it to Gemma alone."""
    model = case_model(model_case)
    (tmp_path / "model").mkdir()
    model.hf.save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text(json.dumps(model.config))
    (tmp_path / "scripts").mkdir()
    theirs = layout_files(write_trtllm(tmp_path / "scripts", model, layout), layout)
    source = {"hf": str(tmp_path / "model")}
    ours = written(source, tmp_path, precision="fp32", parallel={"tensor": layout.ranks})
    for one, other in zip(ranks_of(ours), theirs, strict=True):
        assert set(one) ^ set(other) <= {"lm_head.weight"}
        for name in set(one) & set(other):
            assert torch.equal(one[name], other[name]), name
    opened = open_trtllm(ours)
    assert decoder_spec(opened.config).layers == model.spec.layers


def test_weights_in_bf16_are_the_models_own(tmp_path: Path) -> None:
    (arrays,) = ranks_of(written({"hf": str(saved("llama"))}, tmp_path, precision="bf16"))
    state = model_of("llama").state_dict()
    assert torch.equal(
        arrays["transformer.layers.1.mlp.fc.weight"], state["model.layers.1.mlp.gate_proj.weight"].bfloat16()
    )
    config = config_of(tmp_path / "checkpoint0")
    assert (config["dtype"], config["logits_dtype"]) == ("bfloat16", "float16")


def refused(source: Json, folder: Path, **keys: Any) -> str:
    with pytest.raises(TrtkitError) as caught:
        written(source, folder, **keys)
    assert not list(folder.glob("checkpoint*"))
    assert not list(folder.glob(".checkpoint*"))
    return str(caught.value)


def changed(folder: Path, name: str = "llama", **fields: Any) -> Json:
    """Return the source of a model with other fields in its config."""
    for path in saved(name).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    return {"hf": str(folder)}


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        ("mistral", {"sliding_window": 16}, "`layers.0.mixer.sliding_window` is 16, the checkpoint would say None"),
        (
            "llama",
            {"rope_parameters": YARN},
            "`rope_type` is `yarn`, which is not exported\nfix: known: default, linear",
        ),
        (
            "llama",
            {"model_type": "olmo2"},
            "have no family for `model_type` `olmo2`\nfix: known: bloom, cohere, falcon",
        ),
    ],
)
def test_models_that_the_format_does_not_express_are_refused(
    model_type: str, fields: Json, message: str, tmp_path: Path
) -> None:
    assert message in refused(changed(tmp_path, model_type, **fields), tmp_path)


def test_a_bias_that_tensorrt_llms_qwen_ignores_is_refused(tmp_path: Path) -> None:
    """It warns of tensors that it does not need, and computes without them."""
    fields = config_of_model("qwen3").to_dict() | {"attention_bias": True}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields)).save_pretrained(tmp_path)
    assert "TensorRT-LLM's Qwen has no bias after attention" in refused({"hf": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"quantize": {"method": "int8_wo"}}, "fix: run `trtkit quantize`, then export what it writes"),
        ({"parallel": {"tensor": 2, "context": 2}}, "parallel.context: 2 ranks have no form there"),
        ({"parallel": {"tensor": 5}}, "parallel.tensor: 5: does not divide 12 query and 4 key/value heads"),
        ({"parallel": {"pipeline": 3}}, "parallel.pipeline: 3: "),
    ],
)
def test_configs_that_have_no_form_are_refused(keys: Json, message: str, tmp_path: Path) -> None:
    assert message in refused({"hf": str(saved("llama"))}, tmp_path, **keys)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (1e6, "numbers exceed the range of fp16\nfix: export in bf16: `--precision bf16`"),
        (float("nan"), "numbers are NaN or infinite\nfix: take the weights from their origin again"),
    ],
)
def test_numbers_that_the_type_does_not_hold_are_refused(number: float, message: str, tmp_path: Path) -> None:
    source = changed(tmp_path)
    state = {name: tensor.float() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    state["model.norm.weight"][3] = number
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert refused(source, tmp_path) == f"transformer.ln_f.weight: {message}"


def test_an_earlier_checkpoint_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    config = ModelConfig.model_validate(
        {"name": "model", "source": {"hf": str(saved("llama"))}, "precision": "fp16", "llm": LENGTHS}
    )
    out = tmp_path / "out"
    export_model(config.model_copy(update={"precision": "bf16"}), "tensorrt-llm", out, InlineRunner())
    result = export_model(config, "tensorrt-llm", out, InlineRunner())
    assert config_of(out)["dtype"] == "float16"
    assert (result.exported.architecture, result.exported.ranks, result.exported.kind) == (
        "LlamaForCausalLM",
        1,
        "float16",
    )
    assert result.size_bytes == sum(path.stat().st_size for path in out.iterdir())
    (out / "rank0.safetensors").rename(out / "notes.txt")
    with pytest.raises(TrtkitError, match="already exists"):
        export_model(config, "tensorrt-llm", out, InlineRunner())
    assert (out / "notes.txt").is_file()
