from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from trtkit.errors import SourceError
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.sources.checkpoint import Checkpoint, StoredArray
from trtkit.sources.huggingface.stacked_experts import stack_experts, unstack_experts
from trtkit.sources.safetensors_file import read_folder

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.models.weights import WeightArrays

SIZES = {"vocab_size": 67, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
GLM = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 10},
    "olmoe": {"num_experts": 3, "num_experts_per_tok": 2},
    "glm4_moe": GLM,
    "granitemoe": {"num_local_experts": 3},
    "granitemoeshared": {"num_local_experts": 3, "shared_intermediate_size": 12},
}
OTHERS = {
    "llama4_text": {"num_local_experts": 3, "num_key_value_heads": 1, "intermediate_size_mlp": 16},
    "gpt_oss": {"num_local_experts": 3, "num_experts_per_tok": 2, "num_key_value_heads": 1},
}
AXK1 = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, **GLM}
AXK1 |= {"num_key_value_heads": 2, "n_group": 1, "topk_group": 1}
AS_HELD = ("qwen3_moe", "olmoe", "glm4_moe")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_expert_has_its_rows_of_the_array_of_all(model_type: str, tmp_path: Path) -> None:
    model = model_of(model_type)
    model.save_pretrained(tmp_path)
    weights, held = weights_of(model, tmp_path), model.state_dict()
    both = [name for name in held if name.endswith("experts.gate_up_proj")]
    assert both
    for name in both:
        layer = name.split(".")[2]
        gate_up, down = held[name].numpy(), held[name.replace("gate_up", "down")].numpy()
        for expert, rows in enumerate(gate_up):
            path = f"layers.{layer}.moe.experts.{expert}"
            parts = np.concatenate([weights[f"{path}.{part}.weight"] for part in ("gate", "up")])
            assert np.array_equal(parts, rows)
            assert np.array_equal(weights[f"{path}.down.weight"], down[expert])


@pytest.mark.parametrize("model_type", AS_HELD)
def test_experts_as_modules_hold_them_are_read_alike(model_type: str, tmp_path: Path) -> None:
    """A state dict has arrays of all experts; `save_pretrained` writes each of its own, as on the hub."""
    model = model_of(model_type)
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "held").mkdir()
    save_file({name: value.clone() for name, value in model.state_dict().items()}, tmp_path / "held/model.safetensors")
    saved, held = (weights_of(model, tmp_path / name) for name in ("saved", "held"))
    assert all(np.array_equal(saved[path], held[path]) for path in saved)


def test_experts_whose_rows_take_turns_are_those_of_transformers(tmp_path: Path) -> None:
    model = model_of("gpt_oss")
    model.save_pretrained(tmp_path)
    weights, held = weights_of(model, tmp_path), model.state_dict()
    arrays = {name.removeprefix("model."): value.numpy() for name, value in held.items() if ".experts." in name}
    assert len(arrays) == 8
    for layer, expert in ((0, 0), (1, 2)):
        start, path = f"layers.{layer}.mlp.experts.", f"layers.{layer}.moe.experts.{expert}"
        both, biases = arrays[f"{start}gate_up_proj"][expert].T, arrays[f"{start}gate_up_proj_bias"][expert]
        for offset, part in enumerate(("gate", "up")):
            assert np.array_equal(weights[f"{path}.{part}.weight"], both[offset::2])
            assert np.array_equal(weights[f"{path}.{part}.bias"], biases[offset::2])
        assert np.array_equal(weights[f"{path}.down.weight"], arrays[f"{start}down_proj"][expert].T)
        assert np.array_equal(weights[f"{path}.down.bias"], arrays[f"{start}down_proj_bias"][expert])


def test_experts_that_are_stored_in_out_are_those_of_transformers(tmp_path: Path) -> None:
    model = model_of("llama4_text")
    model.save_pretrained(tmp_path)
    weights, held = weights_of(model, tmp_path), model.state_dict()
    start = "model.layers.1.feed_forward.experts."
    for expert in range(3):
        path = f"layers.1.moe.experts.{expert}"
        both = np.concatenate([weights[f"{path}.{part}.weight"] for part in ("gate", "up")])
        assert np.array_equal(both, held[f"{start}gate_up_proj"][expert].T)
        assert np.array_equal(weights[f"{path}.down.weight"], held[f"{start}down_proj"][expert].T)


def test_experts_of_either_orientation_are_told_by_the_hidden_size() -> None:
    both, down = np.arange(48.0).reshape(2, 6, 4), np.arange(24.0).reshape(2, 4, 3)  # 3 rows of each part, 4 hidden
    start = "model.layers.0.mlp."
    for turn in (False, True):
        arrays = {"gate.weight": np.zeros((2, 4)), "experts.gate_up_proj": both, "experts.down_proj": down}
        arrays = {name: each.swapaxes(1, 2) if turn and each.ndim == 3 else each for name, each in arrays.items()}
        stored = {start + name: StoredArray(each.shape, lambda each=each: each) for name, each in arrays.items()}  # type: ignore[misc]
        apart = Checkpoint(unstack_experts(stored, "qwen3_vl_moe_text"))
        assert np.array_equal(apart[f"{start}experts.1.gate_proj.weight"], both[1, :3])
        assert np.array_equal(apart[f"{start}experts.1.up_proj.weight"], both[1, 3:])
        assert np.array_equal(apart[f"{start}experts.1.down_proj.weight"], down[1])
        together = stack_experts(apart, "qwen3_vl_moe_text")
        assert np.array_equal(together[f"{start}experts.gate_up_proj"], both)


def test_stacking_again_gives_the_arrays_of_all() -> None:
    arrays = {"model.layers.1.block_sparse_moe.input_linear.weight": np.arange(48.0).reshape(2, 6, 4)}
    stored = {name: StoredArray(array.shape, lambda array=array: array) for name, array in arrays.items()}  # type: ignore[misc]
    apart = Checkpoint(unstack_experts(stored, "granitemoe"))
    assert len(apart) == 4
    together = stack_experts(apart, "granitemoe")
    assert set(together) == set(arrays)
    assert all(np.array_equal(together[name], array) for name, array in arrays.items())


def test_kimi_names_mlps_with_experts_as_published_or_as_transformers_saves_them() -> None:
    part = StoredArray((2, 2), lambda: np.zeros((2, 2)))
    for dense in ("mlp", "block_sparse_moe"):
        files = {f"model.layers.0.{dense}.up_proj.weight": part, "model.layers.1.block_sparse_moe.gate.weight": part}
        names = unstack_experts(files, "kimi_linear").keys()
        assert names == {"model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.gate.weight"}


def test_ax_k1_has_no_bias_of_the_choice_if_the_checkpoint_has_none() -> None:
    """Its published files lack it, and hold the norm of what mixtures give for layers without experts, too."""
    config = AutoConfig.for_model("axk1", **SIZES, **AXK1)
    model = AutoModelForCausalLM.from_config(config)
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    arrays = {name: value.numpy() for name, value in model.state_dict().items() if name != bias}
    arrays["model.layers.0.post_mlp_layernorm.weight"] = np.ones(24, np.float32)
    spec = decoder_spec(model.config.to_dict())
    for given in (None, np.array([1.0, 2.0, 3.0, 4.0], np.float32)):
        held = arrays if given is None else {**arrays, bias: given}
        stored = {name: StoredArray(array.shape, lambda array=array: array) for name, array in held.items()}  # type: ignore[misc]
        weights = find_weights(spec, Checkpoint(unstack_experts(stored, "axk1")))
        want = np.zeros(4) if given is None else given
        assert np.array_equal(weights["layers.1.moe.choice_bias"], want)


def test_an_array_that_is_not_of_all_experts_is_refused() -> None:
    stored = {"model.layers.0.mlp.experts.gate_up_proj": StoredArray((3, 5, 4), lambda: np.zeros((3, 5, 4)))}
    with pytest.raises(SourceError) as caught:
        unstack_experts(stored, "qwen3_moe")
    assert str(caught.value) == (
        "`model.layers.0.mlp.experts.gate_up_proj` has shape [3, 5, 4]; expected one array for each expert"
    )


def model_of(model_type: str) -> Any:
    config = AutoConfig.for_model(model_type, **SIZES, **{**FAMILIES, **OTHERS}[model_type])
    return AutoModelForCausalLM.from_config(config)


def weights_of(model: Any, folder: Path) -> WeightArrays:
    spec = decoder_spec(model.config.to_dict())
    return find_weights(spec, Checkpoint(unstack_experts(read_folder(folder)[0], spec.model_type)))
