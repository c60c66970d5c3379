"""Write heads as `speculators` saves them, next to this file, and the logits that it computes with them.

Run where it is installed: python make.py (speculators 0.9.0).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3.config import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

HERE = Path(__file__).parent
SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
TOKENS, DRAFT_TOKENS, COUNT, STEPS = 67, 31, 13, 3
"""Tokens of the model and of its head, positions, and guesses after each."""
FORMS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "plain": (LlamaConfig, {}, {}),
    "normed": (
        LlamaConfig,
        {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
        {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    ),
    "qwen3": (
        Qwen3Config,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"norm_before_residual": True, "fc_norm": True},
    ),
}


def head_of(form: str) -> Eagle3DraftModel:
    """Return a head with random weights."""
    kind, layer, fields = FORMS[form]
    config = kind(**SIZES, num_hidden_layers=1, vocab_size=TOKENS, max_position_embeddings=64, **layer)
    config._attn_implementation = "eager"
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    proposals = [GreedyTokenProposalConfig(speculative_tokens=STEPS)]
    kept = SpeculatorsConfig(
        algorithm="eagle3", proposal_methods=proposals, default_proposal_method="greedy", verifier=verifier
    )
    head = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=config,
            draft_vocab_size=DRAFT_TOKENS,
            speculators_config=kept,
            eagle_aux_hidden_state_layer_ids=[1, 2, 4],
            **fields,
        )
    )
    for name, weight in head.named_parameters():
        is_matrix = weight.dim() > 1
        center = 0.0 if is_matrix or name.endswith("bias") else 1.0
        torch.nn.init.normal_(weight, center, 1.5 * weight.shape[-1] ** -0.5 if is_matrix else 0.3)
    ids = torch.randperm(TOKENS)[:DRAFT_TOKENS].sort().values
    known = torch.zeros(TOKENS, dtype=torch.bool)
    known[ids] = True
    head.load_vocab_mappings(known, ids - torch.arange(DRAFT_TOKENS))
    return head.eval()


@torch.no_grad()
def write(form: str) -> None:
    """Write a head's folder, and inputs with the logits that follow them."""
    torch.manual_seed(len(form))
    head, folder = head_of(form), HERE / form
    shutil.rmtree(folder, ignore_errors=True)
    head.save_pretrained(folder)
    hidden = torch.randn(1, COUNT, 3 * SIZES["hidden_size"])
    ids = torch.randint(TOKENS, (1, COUNT))
    logits: list[torch.Tensor] = []
    head.lm_head.register_forward_hook(lambda _module, _inputs, output: logits.append(output[0]))
    head(hidden_states=hidden, input_ids=ids, document_ids=torch.zeros(1, COUNT, dtype=torch.long), ttt_steps=STEPS)
    arrays = {"hidden_states": hidden[0], "input_ids": ids[0], "logits": torch.stack(logits)}
    save_file(arrays, folder / "expected.safetensors")
    (folder / "config.py").unlink()  # the library's code


if __name__ == "__main__":
    for each in FORMS:
        write(each)
