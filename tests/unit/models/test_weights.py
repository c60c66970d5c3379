from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.models.test_registry import LLAMA
from trtkit.errors import ProblemsError, SourceError
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights, model_weights, with_stored_head

SPEC = decoder_spec({**LLAMA, "num_hidden_layers": 1})


def checkpoint(spec: Any = SPEC) -> dict[str, np.ndarray]:
    return {weight.name: np.zeros(weight.shape, np.float32) for weight in model_weights(spec)}


def test_paths_names_and_shapes_of_a_model() -> None:
    weights = {weight.path: (weight.name, weight.shape) for weight in model_weights(SPEC)}
    assert weights["layers.0.attention.k.weight"] == ("model.layers.0.self_attn.k_proj.weight", (16, 48))
    assert weights["lm_head.weight"] == ("lm_head.weight", (67, 48))
    assert len(weights) == 3 + 9


def test_every_fault_is_told_at_once() -> None:
    arrays = checkpoint()
    del arrays["model.norm.weight"]
    arrays["lm_head.weight"] = np.zeros((66, 48), np.float32)
    arrays["model.layers.0.self_attn.q_proj.bias"] = np.zeros(48, np.float32)
    with pytest.raises(ProblemsError) as caught:
        find_weights(SPEC, arrays, "model.safetensors")
    assert str(caught.value) == (
        "the weights do not fit a `llama` of this config\n"
        "  model.safetensors: `model.norm.weight` is missing, of shape [48]\n"
        "  model.safetensors: `lm_head.weight` has shape [66, 48]; expected [67, 48]\n"
        "  model.safetensors: `model.layers.0.self_attn.q_proj.bias` is not a weight of this model"
    )


def test_more_than_twenty_faults_are_counted() -> None:
    spec = decoder_spec({**LLAMA, "num_hidden_layers": 3})
    with pytest.raises(ProblemsError, match="and 10 more"):
        find_weights(spec, {})


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_of_a_wrapped_module_are_one_fault(prefix: str) -> None:
    arrays = {prefix + name: array for name, array in checkpoint().items()}
    with pytest.raises(SourceError) as caught:
        find_weights(SPEC, arrays, "model.safetensors")
    assert str(caught.value) == (
        f"model.safetensors: the names of all weights begin with `{prefix}`, which DDP and `torch.compile` add\n"
        f"fix: save the module inside the wrapper, or remove `{prefix}` from the names"
    )


TIED = replace(SPEC, head=replace(SPEC.head, is_tied=True))


def test_buffers_and_copies_of_tied_weights_are_no_fault() -> None:
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    arrays = checkpoint(TIED) | {"lm_head.weight": np.zeros((67, 48)), buffer: np.zeros(4)}
    assert with_stored_head(TIED, arrays) is TIED
    assert "lm_head.weight" not in find_weights(TIED, arrays)


def test_a_stored_head_that_differs_from_the_embedding_is_not_tied() -> None:
    arrays = checkpoint(TIED) | {"lm_head.weight": np.eye(67, 48, dtype=np.float32)}
    spec = with_stored_head(TIED, arrays)
    assert not spec.head.is_tied
    assert find_weights(spec, arrays)["lm_head.weight"] is arrays["lm_head.weight"]
    with pytest.raises(ProblemsError, match=r"`lm_head[.]weight` is not a weight of this model"):
        find_weights(TIED, arrays)


def test_an_embedding_stored_as_the_head_alone_is_found() -> None:
    arrays = checkpoint(TIED)
    arrays["lm_head.weight"] = arrays.pop("model.embed_tokens.weight")
    assert with_stored_head(TIED, arrays) is TIED
    assert find_weights(TIED, arrays)["embedding.weight"] is arrays["lm_head.weight"]


def test_a_checkpoint_of_the_bare_model_is_found_without_its_prefix() -> None:
    spec = replace(SPEC, head=replace(SPEC.head, is_tied=True))
    arrays = {name.removeprefix("model."): array for name, array in checkpoint(spec).items()}
    found = find_weights(spec, arrays)
    assert found["layers.0.mlp.up.weight"] is arrays["layers.0.mlp.up_proj.weight"]


def test_arrays_are_read_only_when_asked_for() -> None:
    class Lazy(dict[str, Any]):
        reads = 0

        def __getitem__(self, name: str) -> Any:
            Lazy.reads += 1
            return super().__getitem__(name)

    found = find_weights(SPEC, Lazy(checkpoint()))
    before = Lazy.reads
    assert len(found) == len(list(found)) == 12
    assert Lazy.reads == before
    assert found["final_norm.weight"].shape == (48,)
    assert Lazy.reads == before + 1


def test_layers_that_predict_later_tokens_are_left_out() -> None:
    """GLM-4.5's checkpoints have one more layer than the model."""
    sizes = {"model_type": "glm4_moe", "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    spec = decoder_spec({**LLAMA, **sizes, "num_nextn_predict_layers": 1})
    arrays = checkpoint(spec)
    later = {"model.layers.2.eh_proj.weight": np.zeros((48, 96)), "model.layers.2.mlp.gate.weight": np.zeros((2, 48))}
    assert set(find_weights(spec, arrays | later)) == {weight.path for weight in model_weights(spec)}
    with pytest.raises(ProblemsError, match=r"`model\.layers\.3\.eh_proj\.weight` is not a weight of this model"):
        find_weights(spec, arrays | {"model.layers.3.eh_proj.weight": np.zeros((48, 96))})
