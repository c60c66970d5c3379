"""A head of a model with adapters: it reads the adapted hidden states, and changes no token of any adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import LlamaForCausalLM

from tests import tiny_llm
from tests.adapters import save_adapter
from tests.eagle3 import Head, fields_of, save_head
from trtkit import LLM, SamplingParams
from trtkit.config.schema import ModelConfig
from trtkit.engine.build import build_bundle
from trtkit.jobs.runner import new_runner

if TYPE_CHECKING:
    from pathlib import Path


def test_head_changes_no_token_of_an_adapter(tmp_path: Path) -> None:
    tiny_llm.save(tmp_path / "model", num_hidden_layers=3)
    targets = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    save_adapter(tmp_path / "one", LlamaForCausalLM.from_pretrained(tmp_path / "model"), target_modules=targets)
    torch.manual_seed(2)
    fields = fields_of(len(tiny_llm.tokenizer()), hidden_size=48, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    save_head(tmp_path / "head", Head(fields))
    llm = {"max_batch_size": 3, "max_sequence_length": 64, "max_prefill_length": 16, "lora": {"max_rank_sum": 8}}
    config = ModelConfig.model_validate(
        {
            "source": {"hf": str(tmp_path / "model")},
            "precision": "fp32",
            "llm": {**llm, "speculator": str(tmp_path / "head")},
        }
    )
    bundle = build_bundle(config, tmp_path / "bundle", new_runner(), use_cache=False).bundle
    params = [
        SamplingParams(temperature=30.0, seed=3, max_tokens=14, adapter=name) for name in (None, "one", "one", None)
    ]
    answers, accepted = [], []
    for speculate in (0, 4):
        with LLM(bundle, speculate=speculate, lora={"one": tmp_path / "one"}) as opened:
            answers.append([each.outputs[0].token_ids for each in opened.generate(tiny_llm.PROMPTS, params)])
            accepted.append(opened.statistics.accepted_tokens)
    assert answers[0] == answers[1]
    assert accepted[0] == 0 < accepted[1]
