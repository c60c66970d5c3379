"""Packed calls of a model with recurrent layers: a Falcon-H1 with random weights on the reference executor, fp32.

`decode_s` and `mixed_s` are as in `packed`, with prompt chunks of as many tokens as recurrent layers take in one call.
Rounds are interleaved. `python -m benchmarks.packed_recurrent` measures both.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.measure import interleaved, ratio, summary, write
from benchmarks.packed import SLOTS, decode_s, mixed_s
from trtkit.config.schema import ModelConfig
from trtkit.llm.execution import config_network

ROUNDS, BUDGET = 3, 64
CALLS = ("separate", "packed")
MODEL = {
    **{"vocab_size": 8192, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 4},
    **{"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 1024},
    **{"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64, "mamba_n_groups": 1, "mamba_d_state": 128},
}


def config_of(folder: Path, calls: str) -> ModelConfig:
    """Return the config of the model in `folder`."""
    sizes = {"max_batch_size": SLOTS, "max_sequence_length": 512, "max_prefill_length": BUDGET, "batching": calls}
    return ModelConfig.model_validate({"source": {"hf": str(folder)}, "precision": "fp32", "llm": sizes})


def main() -> None:
    """Measure and write the results."""
    figures: dict[str, Any] = {"slots": SLOTS, "budget": BUDGET, "model": MODEL}
    with TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("falcon_h1", **MODEL))
        figures["parameters"] = model.num_parameters()
        model.save_pretrained(folder)
        networks = {calls: config_network(config_of(Path(folder), calls), "tensorrt_rtx") for calls in CALLS}
    for name, step in (("decode", decode_s), ("mixed", partial(mixed_s, budget=BUDGET))):
        times = interleaved({calls: partial(step, networks[calls]) for calls in CALLS}, ROUNDS, 0)
        figures[f"{name}_s"] = {calls: summary(each) for calls, each in times.items()}
        figures[f"{name}_ratio"] = ratio(times["packed"], times["separate"])
    write("packed_recurrent", figures)


if __name__ == "__main__":
    main()
