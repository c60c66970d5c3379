"""transformers' model of a source: read by transformers itself, whatever trtkit reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

from tests.support import tiny_llm
from tests.support.tiny_vlm import VLMS, folder_of, model_of
from trtkit.errors import SourceError
from trtkit.sources.checkpoint import Checkpoint
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.huggingface.model import causal_lm, text_model

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.tensor([[5, 9, 2, 30, 7]])


def rewrite(folder: Path, without: str = "", **added: torch.Tensor) -> None:
    """Change a folder's weights. added: by name with `__` for dots."""
    stored = load_file(folder / "model.safetensors")
    stored |= {name.replace("__", "."): value for name, value in added.items()}
    kept = {name: value for name, value in stored.items() if name != without}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


def test_a_plain_folder_is_read_by_transformers_alone(tmp_path: Path) -> None:
    opened = open_hf_folder(tiny_llm.save(tmp_path))
    unread = replace(opened, checkpoint=Checkpoint({}), config={"model_type": "llama"})
    want = logits(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    torch.testing.assert_close(logits(causal_lm(unread)), want)


@pytest.mark.parametrize("is_read_by_trtkit", [False, True])
def test_experts_of_odd_sizes_run(tmp_path: Path, is_read_by_trtkit: bool) -> None:
    """torch multiplies several experts at once only if rows of them are whole 16 bytes."""
    config = MixtralConfig(
        vocab_size=99, hidden_size=42, intermediate_size=54, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=1, head_dim=14, num_local_experts=4, experts_implementation="eager",
    )  # fmt: skip
    model = MixtralForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    opened = open_hf_folder(tmp_path)
    opened = replace(opened, folder=None) if is_read_by_trtkit else opened
    torch.testing.assert_close(logits(causal_lm(opened)), logits(model))


@pytest.mark.parametrize("is_read_by_trtkit", [False, True])
def test_a_stored_head_that_differs_is_used(tmp_path: Path, is_read_by_trtkit: bool) -> None:
    tiny_llm.save(tmp_path, tie_word_embeddings=True)
    tied = logits(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    rewrite(tmp_path, lm_head__weight=torch.randn(len(tiny_llm.tokenizer()), 48))
    opened = open_hf_folder(tmp_path)
    opened = replace(opened, folder=None) if is_read_by_trtkit else opened
    want = logits(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))
    assert not torch.allclose(want, tied, atol=0.1)
    torch.testing.assert_close(logits(causal_lm(opened)), want)


@pytest.mark.parametrize(
    ("missing", "added", "expected"),
    [
        ("model.norm.weight", {}, "1 weights are missing by transformers' reading: `model.norm.weight`"),
        ("", {"model__extra__weight": torch.ones(2)}, "1 weights are not the model's by transformers' reading: "),
    ],
)
def test_weights_that_transformers_would_invent_or_leave_out_are_named(
    missing: str, added: dict[str, torch.Tensor], expected: str, tmp_path: Path
) -> None:
    tiny_llm.save(tmp_path)
    rewrite(tmp_path, missing, **added)
    with pytest.raises(SourceError) as caught:
        causal_lm(open_hf_folder(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path}: {expected}")


def test_a_wrapped_language_model_is_compared_with_the_whole_and_quantized_alone() -> None:
    opened = open_hf_folder(folder_of(VLMS["llava"]))
    want = logits(model_of(VLMS["llava"]))
    assert type(causal_lm(opened)).__name__ == "LlavaForConditionalGeneration"
    assert type(text_model(opened)).__name__ == "LlamaForCausalLM"
    for model in (causal_lm(opened), text_model(opened)):
        torch.testing.assert_close(logits(model), want)


def test_a_folders_own_penalties_do_not_change_greedy_answers(tmp_path: Path) -> None:
    tiny_llm.save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 9.0, "do_sample": true}')
    assert causal_lm(open_hf_folder(tmp_path)).generation_config.repetition_penalty is None
