"""How many steps and computed prompt tokens `generate` saves by ordering many prompts, with a tiny random model.

96 prompts on 8 slots, each with one of 12 prefixes of 96 tokens; answer lengths are log-normal.
`python -m benchmarks.generate_order`
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measure import write
from tests.support import tiny_llm
from trtkit import LLM, SamplingParams
from trtkit.builder.build import build_bundle
from trtkit.config.load import load_config
from trtkit.jobs.runner import new_runner
from trtkit.llm import PreparedPrompt, TextBundle, read_text_bundle

PROMPTS, BEGINNINGS, BEGINNING, SLOTS, SEEDS = 96, 12, 96, 8, 10


def prompts_of(text: TextBundle, seed: int) -> list[PreparedPrompt]:
    """Return prompts in a random order."""
    generator = np.random.default_rng(seed)
    beginnings = generator.integers(6, 300, (BEGINNINGS, BEGINNING))
    prompts = []
    for index in range(PROMPTS):
        rest = generator.integers(6, 300, generator.integers(8, 24))
        ids = [*generator.choice(beginnings).tolist(), *rest.tolist()]
        most = int(np.clip(generator.lognormal(3, 1), 4, 128))
        params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
        prompts.append(replace(text.prepare(ids, params), request_id=str(index)))
    return prompts


def answer(text: TextBundle, seed: int, *, is_ordered: bool) -> tuple[int, int]:
    """Answer all prompts; return the numbers of steps and of computed prompt tokens."""
    with LLM(text, runtime="reference") as llm:
        prompts = prompts_of(text, seed)
        list(llm.answers(prompts)) if is_ordered else llm.generate(prompts)
        return llm.statistics.steps, llm.statistics.prompt_tokens


def main() -> None:
    """Measure and write the results."""
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = tiny_llm.save(folder / "model")
        for kv in ("linear", "paged"):
            sizes = f"max_batch_size: {SLOTS}, max_sequence_length: 256, max_prefill_length: 64"
            config = folder / f"{kv}.yaml"
            config.write_text(f"source: {{hf: {model}}}\nllm: {{kv: {kv}, {sizes}}}\n")
            bundle = build_bundle(load_config(str(config)), folder / kv, new_runner()).bundle.path
            text = read_text_bundle(bundle)
            runs = {
                order: np.mean([answer(text, seed, is_ordered=order == "ordered") for seed in range(SEEDS)], axis=0)
                for order in ("as written", "ordered")
            }
            figures[kv] = {
                order: {"steps": steps, "computed_prompt_tokens": tokens} for order, (steps, tokens) in runs.items()
            }
    write("generate_order", {"prompts": PROMPTS, "slots": SLOTS, "seeds": SEEDS, **figures})


if __name__ == "__main__":
    main()
