from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtkit.errors import ProblemsError, SourceError
from trtkit.models import decoders
from trtkit.models.registry import (
    ENCODER_DECODERS,
    decoder_spec,
    hf_class,
    is_language_model,
    known_families,
    outside_digest,
    unsupported_family,
)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 76,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 500000.0,
    "transformers_version": "4.40.0",
    "torch_dtype": "bfloat16",
}


def error_of(**changes: Any) -> str:
    with pytest.raises((SourceError, ProblemsError)) as caught:
        decoder_spec({**LLAMA, **changes}, "model/config.json")
    return str(caught.value)


def test_a_config_becomes_a_spec() -> None:
    spec = decoder_spec(LLAMA)
    assert (spec.hidden_size, len(spec.layers), spec.layers[0].attention.head_dim) == (48, 2, 8)
    assert spec.layers[0].attention.rope is not None
    assert spec.layers[0].attention.rope.theta == 500000.0


def test_near_misses_of_an_unknown_model_type_are_named() -> None:
    assert error_of(model_type="qwen3moe") == (
        "model/config.json: unknown `model_type` `qwen3moe`\n"
        "fix: did you mean `qwen3_moe` or `qwen2_moe`? all: `trtkit list --families`"
    )
    assert error_of(model_type="mamba").startswith("model/config.json: unknown `model_type` `mamba`\nfix: ")


def test_a_missing_field_is_named() -> None:
    assert error_of(hidden_size=None) == (
        "model/config.json: field `hidden_size` is missing\nfix: take config.json from the model's own folder"
    )


def test_fields_that_may_change_the_mathematics_are_never_ignored() -> None:
    assert error_of(attn_logit_softcapping=30.0, final_factor=2) == (
        "fields that this model family does not have\n"
        "  model/config.json: `attn_logit_softcapping` is `30.0`\n"
        "  model/config.json: `final_factor` is `2`\n"
        "fix: remove those that change nothing"
    )


def test_fields_that_are_off_are_no_fault() -> None:
    decoder_spec({**LLAMA, "attn_logit_softcapping": None, "new_switch": False, "_private": 3})


def test_quantized_checkpoints_are_refused() -> None:
    assert "`quantization_config`" in error_of(quantization_config={"bits": 4})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": True},
            "`scale_attn_by_inverse_layer_idx` is",
        ),
        ({"model_type": "bloom", "apply_residual_connection_post_layernorm": True}, "`apply_residual_connection_post"),
        ({"model_type": "opt", "word_embed_proj_dim": 12}, "`word_embed_proj_dim` is `12`, only `48` is supported"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "`use_bidirectional_attention` is `True`"),
        ({"model_type": "mistral", "layer_types": ["chunked_attention"] * 2}, "`layer_types` is `chunked_attention`"),
        ({"model_type": "mistral", "sliding_window": 0}, "`sliding_window` is `0`; expected at least 1"),
        ({"model_type": "afmoe", "sliding_window": -3}, "`sliding_window` is `-3`; expected at least 1"),
        (
            {"model_type": "llama", "head_dim": 7},
            "model/config.json: 7 of 7 elements turn; expected an even number, at least 2",
        ),
        (
            {"model_type": "glm", "head_dim": 14, "partial_rotary_factor": 0.5, "attention_bias": False},
            "7 of 14 elements turn; expected an even number, at least 2",
        ),
    ],
    ids=lambda item: item["model_type"] if isinstance(item, dict) else "",
)
def test_unsupported_values_are_named(changes: dict[str, Any], named: str) -> None:
    assert named in error_of(**changes)


def test_families_are_small_files_of_data_that_never_import_each_other() -> None:
    folder = Path(decoders.__path__[0])
    files = {path.stem: path.read_text() for path in folder.glob("*.py") if path.stem != "__init__"}
    assert set(known_families().values()) == {f"trtkit.models.decoders.{name}" for name in files}
    for name, text in files.items():
        imported = {node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
        assert len(text.splitlines()) <= 70, name
        assert not {module for module in imported if "decoders" in module or module.startswith(("torch", "tensorrt"))}


def test_opening_a_family_imports_no_other() -> None:
    code = f"import sys; from trtkit.models.registry import decoder_spec; decoder_spec({LLAMA})"
    code += "; print(*[name for name in sys.modules if name.startswith('trtkit.models.decoders.')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["trtkit.models.decoders.llama"]


def test_files_of_families_are_named_by_model_type() -> None:
    """But for six that one file reads together with its own, and one that Python could not import."""
    others = {name: str(file) for name, file in known_families().items() if str(file).rpartition(".")[2] != name}
    assert set(others) == {
        "codegen", "granitemoeshared", "ministral", "mt5", "nemotron-nas", "qwen2_5_vl_text", "umt5"
    }  # fmt: skip


OUTSIDE = """
HF_CLASS = "MyForCausalLM"
from trtkit.models.decoders.llama import spec
"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRTKIT_FAMILIES", str(tmp_path))
    (tmp_path / "my_llama.py").write_text(OUTSIDE, encoding="utf-8")
    (tmp_path / "__init__.py").touch()
    return tmp_path


def test_a_family_comes_from_a_folder(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoder_spec({**LLAMA, "model_type": "my_llama"}).model_type == "my_llama"
    assert "__init__" not in known_families()
    assert (hf_class("my_llama"), len(outside_digest())) == ("MyForCausalLM", 64)
    monkeypatch.delenv("TRTKIT_FAMILIES")
    assert "unknown `model_type` `my_llama`" in error_of(model_type="my_llama")
    assert outside_digest() == ""


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("odd", "HF_CLASS = 'A'", "FILE: no `spec` in it\nfix: a family has "),
        ("odd", "def spec(config):\n    return None\n", "FILE: no `HF_CLASS` in it\nfix: a family has "),
        ("odd", "import no_such_module", "FILE: cannot be imported: ModuleNotFoundError: No module named 'no_such_mo"),
        ("odd", "def spec(:", "FILE: cannot be imported: SyntaxError: "),
        ("llama", OUTSIDE, "FILE: a second family `llama`\nfix: remove it, or give it another `model_type`"),
    ],
)
def test_files_that_hold_no_family_are_refused(outside: Path, name: str, text: str, error: str) -> None:
    path = outside / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    assert error_of(model_type="odd").startswith(error.replace("FILE", str(path)))


def test_a_file_is_only_imported_for_its_own_model_type(outside: Path) -> None:
    (outside / "broken.py").write_text("raise RuntimeError", encoding="utf-8")
    decoder_spec(LLAMA)
    decoder_spec({**LLAMA, "model_type": "my_llama"})


def test_a_folder_of_families_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTKIT_FAMILIES", "no/such")
    error = "TRTKIT_FAMILIES: no/such: no such folder\nfix: it names folders of families' files"
    assert error_of() == error


def test_architectures_are_those_of_transformers() -> None:
    from transformers.models.auto import modeling_auto as auto

    sources = {**auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES}
    readers = {name: sources[name] for name in ENCODER_DECODERS}
    named = {model_type: hf_class(model_type) for model_type in known_families()}
    classes = {**auto.MODEL_MAPPING_NAMES, **auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **readers}
    classes |= {"mistral4": "Mistral4ForCausalLM", "nemotron-nas": "DeciLMForCausalLM"}  # which they do not list
    classes["mimo"] = "MiMoForCausalLM"  # which transformers does not have
    assert {model_type: classes[model_type] for model_type in known_families()} == named


@pytest.mark.parametrize(
    ("model_type", "fix"),
    [
        ("qwen3_5", "the nearest supported are `qwen3`, `qwen3_moe`, `qwen3_5_text`"),
        ("gemma4", "the nearest supported are `gemma`, `gemma2`"),
        ("rwkv", "`trtkit list --families` lists those that are; TRTKIT_FAMILIES adds your own"),
    ],
)
def test_an_unsupported_family_names_the_nearest(model_type: str, fix: str) -> None:
    error = str(unsupported_family(model_type, "config.json"))
    start = f"config.json: `{model_type}` is a language model of a family that is not supported\nfix: {fix}"
    assert error.startswith(start)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"architectures": ["GptOssForCausalLM"]}, True),
        ({"architectures": ["Llama4ForConditionalGeneration"], "vision_config": {}}, True),
        ({"model_type": "mamba", "vocab_size": 100}, True),
        ({"architectures": ["ImageGPTForImageClassification"], "vocab_size": 513}, False),
        ({"architectures": ["LayoutLMv3Model"], "vocab_size": 100, "input_size": 224}, False),
        ({"architectures": ["ViTForImageClassification"]}, False),
    ],
)
def test_language_models_are_told_from_those_of_images(fields: dict[str, Any], expected: bool) -> None:
    assert is_language_model(fields) is expected
