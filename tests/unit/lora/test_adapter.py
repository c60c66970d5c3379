"""Adapters that trtkit refuses, each with what is wrong, where, and what to do."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from trtkit.errors import ProblemsError, SourceError, TrtkitError
from trtkit.lora.adapter import check_config, open_adapter
from trtkit.models.registry import decoder_spec

if TYPE_CHECKING:
    from pathlib import Path

SPEC = decoder_spec(
    {
        "model_type": "llama",
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32,
        "rms_norm_eps": 1e-5,
    }
)
FIELDS = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "init_lora_weights": True}
Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shapes = {"A": (2, 8), "B": (8, 2)}
    tensors = {Q.format(layer, kind): np.ones(shape, np.float32) for layer in (0, 1) for kind, shape in shapes.items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    change(tmp_path)
    return tmp_path


def change(folder: Path, **fields: Any) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({**FIELDS, **fields}))


def rewrite(folder: Path, **tensors: np.ndarray | None) -> None:
    """Replace tensors of layer 1, remove those that are None, and add others by their whole names."""
    path = folder / "adapter_model.safetensors"
    named = {Q.format(1, name) if len(name) == 1 else name: array for name, array in tensors.items()}
    kept = {**load_file(path), **named}
    save_file({name: array for name, array in kept.items() if array is not None}, path)


def refused(folder: Path) -> str:
    with pytest.raises(TrtkitError) as caught:
        open_adapter(folder, SPEC)
    return str(caught.value).replace(f"{folder}/", "")


def test_a_plain_adapter_has_its_matrices_by_path_and_its_scale(folder: Path) -> None:
    adapter = open_adapter(folder, SPEC)
    assert list(adapter.parts) == ["layers.0.attention.q", "layers.1.attention.q"]
    a, b = adapter.parts["layers.1.attention.q"].matrices()
    assert (a == 1).all()
    assert (b == 2).all()
    assert adapter.adapter_rank == 2


FORMS = [
    ("peft_type", "LOHA", "`peft_type` is `LOHA`; only `LORA` is supported"),
    ("use_dora", True, "`use_dora` is `True`: DoRA rescales the sum of weight and adapter"),
    ("bias", "all", "`bias` is `all`: biases were trained in addition to the adapter; only `none` is supported"),
    ("lora_bias", True, "`lora_bias` is `True`: the adapter adds biases"),
    (
        "modules_to_save",
        ["lm_head"],
        "`modules_to_save` is `['lm_head']`: whole modules were trained in addition to the adapter",
    ),
    ("target_parameters", ["x"], "`target_parameters` is `['x']`: parameters of experts are adapted"),
    ("alora_invocation_tokens", [1], "`alora_invocation_tokens` is `[1]`: an activated LoRA begins in the middle of a"),
    ("layer_replication", [[0, 1]], "`layer_replication` is `[[0, 1]]`: layers are repeated"),
    ("trainable_token_indices", [3], "`trainable_token_indices` is `[3]`: vectors of tokens were trained"),
    ("use_qalora", True, "`use_qalora` is `True`: this form of adapter is not known"),
    ("kasa_config", {"a": 1}, "`kasa_config` is `{'a': 1}`: this form of adapter is not known"),
    ("ensure_weight_tying", True, "`ensure_weight_tying` is `True`: this form of adapter is not known"),
    ("of_a_later_peft", 0.5, "`of_a_later_peft` is `0.5`: this form of adapter is not known"),
    *[
        (
            "init_lora_weights",
            init,
            f"`init_lora_weights` is `{init}`: the adapter belongs to changed weights of its base",
        )
        for init in ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "mica")
    ],
]


@pytest.mark.parametrize(("field", "value", "what"), FORMS)
def test_other_forms_are_refused_by_name(folder: Path, field: str, value: Any, what: str) -> None:
    change(folder, **{field: value})
    message = refused(folder)
    assert message.startswith("the adapter is of a form that trtkit does not compute\n  adapter_config.json: " + what)
    assert "\n    fix: " in message


@pytest.mark.parametrize(
    "fields",
    [
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}, "lora_dropout": 0.1},
        {"use_dora": False, "modules_to_save": None, "layer_replication": [], "of_a_later_peft": None},
        {"fan_in_fan_out": True, "task_type": "CAUSAL_LM", "megatron_core": "megatron.core"},
    ],
)
def test_fields_without_effect_change_nothing(folder: Path, fields: dict[str, Any]) -> None:
    change(folder, **fields)
    assert open_adapter(folder, SPEC).adapter_rank == 2


def test_all_problems_are_told_at_once(folder: Path) -> None:
    rewrite(folder, A=np.ones((2, 9), np.float32), B=np.ones((8, 2), np.float32))
    rewrite(folder, **{"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": np.ones((2, 8), np.float32)})
    rewrite(folder, **{"base_model.model.score.weight": np.ones((2, 8), np.float32)})
    change(folder, target_modules=["q_proj", "k_proj"])
    assert refused(folder) == (
        "the adapter does not fit the model, a `llama` of 2 layers\n"
        "  adapter_model.safetensors: `base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight`: "
        "the model has no matrix `model.layers.7.self_attn.q_proj`\n"
        "  adapter_model.safetensors: `base_model.model.score.weight` is not a matrix of a plain LoRA adapter\n"
        "  adapter_model.safetensors: `model.layers.1.self_attn.q_proj` has matrices of [2, 9] and [8, 2]; "
        "expected [2, 8] and [8, 2]\n"
        "  adapter_model.safetensors: `model.layers.0.self_attn.k_proj` is one of `target_modules`, "
        "but the file has no matrices for it\n"
        "  adapter_model.safetensors: `model.layers.1.self_attn.k_proj` is one of `target_modules`, "
        "but the file has no matrices for it\n"
        "fix: use the model that the adapter was trained for"
    )


def test_matrices_that_contradict_the_config_are_refused(folder: Path) -> None:
    change(folder, layers_to_transform=[0])
    assert "`model.layers.1.self_attn.q_proj` has matrices, but `target_modules`" in refused(folder)
    change(folder, rank_pattern={"layers.1.self_attn.q_proj": 3})
    assert "has matrices of [2, 8] and [8, 2]; expected [3, 8] and [8, 3]" in refused(folder)
    change(folder)
    rewrite(folder, B=None)
    assert "`model.layers.1.self_attn.q_proj` has `.lora_A.weight`; expected the two matrices of a layer" in refused(
        folder
    )
    rewrite(folder, B=np.ones((8, 2), np.int8))
    assert "holds float32, int8; expected one of float32" in refused(folder)


@pytest.mark.parametrize(
    "fields", [{"target_modules": "("}, {"r": "two"}, {"lora_alpha": None}, {"r": 0}, {"rank_pattern": {"(": 3}}]
)
def test_a_damaged_config_is_refused(folder: Path, fields: dict[str, Any]) -> None:
    change(folder, **fields)
    assert refused(folder).startswith("adapter_config.json: ranks, scales or targets cannot be read: ")


def test_values_that_are_not_numbers_are_refused(folder: Path) -> None:
    rewrite(folder, A=np.full((2, 8), np.nan, np.float32))
    with pytest.raises(SourceError, match=r"the adapter of `layers.1.attention.q` has values that are NaN or infinite"):
        open_adapter(folder, SPEC).parts["layers.1.attention.q"].matrices()


def test_files_that_are_missing_or_pickles_are_refused(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    weights.rename(folder / "adapter_model.bin")
    message = refused(folder)
    assert "the adapter is a pickle (`adapter_model.bin`), which can run code when it is read\nfix: convert" in message
    (folder / "adapter_model.bin").unlink()
    assert "the folder has no `adapter_model.safetensors`" in refused(folder)
    (folder / "adapter_config.json").unlink()
    assert "the folder has no `adapter_config.json`" in refused(folder)
    with pytest.raises(SourceError, match="no such folder"):
        open_adapter(folder / "nowhere", SPEC)


def test_an_empty_adapter_is_refused(folder: Path) -> None:
    save_file({}, folder / "adapter_model.safetensors")
    with pytest.raises(ProblemsError, match="the file has no adapter matrices"):
        open_adapter(folder, SPEC)


BACKTRACKING = "((.)|(..)|(...))*(?(3)X|Y)"


@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": BACKTRACKING},
        {"rank_pattern": {BACKTRACKING: 3}},
        pytest.param({"alpha_pattern": {BACKTRACKING: 3}}, marks=pytest.mark.slow),
        {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": [BACKTRACKING]},
    ],
    ids=str,
)
def test_a_pattern_that_backtracks_for_ever_is_refused_in_seconds(fields: dict[str, Any]) -> None:
    start = time.monotonic()
    with pytest.raises(SourceError, match=r"its pattern `.*` takes too long to match"):
        check_config(
            {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["v_proj"], **fields}, "a"
        ).targets("model.layers.0.self_attn.q_proj")
    assert time.monotonic() - start < 20


def test_nested_repeats_match_nothing_at_once() -> None:
    start, config = time.monotonic(), check_config({"peft_type": "LORA", "target_modules": "(([a-z_.0-9]+)+)+!"}, "a")
    assert not any(config.targets(f"model.layers.{layer}.self_attn.q_proj") for layer in range(300))
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.(q_proj|v_proj)$",
        r"model\.layers\.\d+\.self_attn\.(q|k)_proj",
        r"^(?!.*vision).*(?:q_proj|o_proj)$",
        r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.mlp\.(?:up_proj))",
        "q_proj",
    ],
)
def test_usual_patterns_match_as_in_peft(pattern: str) -> None:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists

    config = check_config({"peft_type": "LORA", "target_modules": pattern}, "adapter_config.json")
    for name in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"):
        for start in ("model.layers.0.", "model.language_model.layers.11.", "model.vision.layers.1."):
            expected = bool(check_target_module_exists(LoraConfig(target_modules=pattern), start + name))
            assert config.targets(start + name) == expected
