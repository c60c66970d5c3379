"""Write Medusa heads as FasterDecoding saves them, next to this file, and the logits that ModelOpt computes with them.

Run where it is installed: python make_medusa.py (nvidia-modelopt 0.47.0).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import modelopt.torch.speculative as mtsp
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
SIZES = {"hidden_size": 20, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
TOKENS, COUNT = 67, 9
"""Tokens of the model, and of the text."""
FORMS = {"medusa": (3, 1), "medusa_deep": (1, 3), "medusa_flat": (5, 0)}
"""Heads, and residual layers of each."""


@torch.no_grad()
def write(form: str) -> None:
    """Write a folder of heads with random weights, and hidden states with the logits that follow them."""
    heads, layers = FORMS[form]
    torch.manual_seed(heads)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=1, vocab_size=TOKENS)).eval()
    mtsp.convert(model, [("medusa", {"medusa_num_heads": heads, "medusa_num_layers": layers})])
    for weight in model.medusa_heads.parameters():
        torch.nn.init.normal_(weight, 0.0, 1.5 * weight.shape[-1] ** -0.5)
    ids, folder = torch.randint(TOKENS, (1, COUNT)), HERE / form
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    logits = torch.stack([each[0] for each in model(ids).medusa_logits])
    hidden = model.model(ids).last_hidden_state[0]
    fields = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "any"}
    (folder / "config.json").write_text(json.dumps(fields) + "\n", encoding="utf-8")
    save_file(model.medusa_heads.state_dict(), folder / "model.safetensors")
    save_file({"hidden_states": hidden.contiguous(), "logits": logits.contiguous()}, folder / "expected.safetensors")


if __name__ == "__main__":
    for each in FORMS:
        write(each)
