"""How many seeded answers differ between running alone and in a batch, by precision: a random Llama, 49,152 tokens.

`python -m benchmarks.seeded_answers`; the figures are in docs/generation-settings.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import write
from tests.integration.test_seeded_answers import FLAT, TOKENS
from tests.support import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner

ANSWERS = 600
SIZES = "{max_batch_size: 8, max_sequence_length: 64, max_prefill_length: 16}"


def differing(folder: Path, precision: str) -> int:
    """Return how many of ANSWERS answers of TOKENS tokens differ."""
    config = folder / "m.yaml"
    config.write_text(f"source: {{hf: hf}}\nprecision: {precision}\nllm: {SIZES}\n")
    bundle = build_bundle(load_config(str(config)), folder / precision, new_runner()).bundle.path
    prompts = [{"prompt_token_ids": [5 + number % 300, 7, 11 + number % 13]} for number in range(ANSWERS)]
    params = [
        SamplingParams(seed=number, max_tokens=TOKENS, ignore_eos=True, **FLAT[number % len(FLAT)])
        for number in range(ANSWERS)
    ]
    with LLM(bundle, runtime="reference") as llm:
        together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        pairs = zip(prompts, params, strict=True)
        alone = [llm.generate([prompt], settings)[0].outputs[0].token_ids for prompt, settings in pairs]
    return sum(ours != theirs for ours, theirs in zip(together, alone, strict=True))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        tiny_llm.save(Path(name) / "hf", vocab_size=49_152)
        counts = {precision: differing(Path(name), precision) for precision in ("fp32", "fp16", "bf16")}
    print(write("seeded_answers", {"answers": ANSWERS, "tokens_per_answer": TOKENS, "differing": counts}))
