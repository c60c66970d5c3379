"""Speculation at batch 1: SmolLM2 alone, with prompt lookup, a draft model, and an EAGLE-3 head's chains and trees.

examples/speculation trains the head, examples/distillation the draft model, six of SmolLM2's layers. Both are kept in
the cache folder and reused. `python -m benchmarks.speculation` compares ways to guess, `python -m
benchmarks.speculation trees` compares chains with trees. The tables go into examples/speculation/README.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measure import interleaved, summary, write, write_between
from benchmarks.quantize_llm import texts
from trtkit import LLM, SamplingParams
from trtkit.drafts.proposers import ChainProposer
from trtkit.files import cache_folder

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
FOLDER = cache_folder().parent / "trtkit-benchmarks" / "speculation"
BUNDLE, STEPS = FOLDER / "fp16", 240
DRAFT, DRAFT_TRAINING = FOLDER / "draft-fp16", ("--layers", "6", "--steps", "160", "--learning-rate", "5e-4")
PROMPTS, PROMPT, ANSWER, REPEATS = 2, 128, 40, 3
"""Prompts per text, tokens per prompt and per answer, and repeats of each answer."""
VARIANTS: dict[str, Json] = {
    "none": {"speculate": 0},
    "`--lookup 3`": {"speculate": 0, "lookup": 3},
    **{f"draft model, {count} ahead": {"speculate": 0, "draft": DRAFT, "draft_tokens": count} for count in (1, 3)},
    **{f"EAGLE-3, `--speculate {count}`": {"speculate": count} for count in (1, 3)},
}
TREE_TOKENS = (8, 16, 32)
TREES: dict[str, Json] = {
    "none": {"speculate": 0},
    "chain of 3": {"speculate": 3},
    **{f"tree of {tokens}": {"speculate": 3, "bundle": FOLDER / f"tree-{tokens}"} for tokens in TREE_TOKENS},
}


def run(*words: str | Path) -> str:
    """Run a command in the cache folder on one thread; return its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, cwd=FOLDER, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return ran.stdout


def prepare() -> list[str]:
    """Train a head and build the bundle, unless that was done, on one thread; return training's output."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    run(sys.executable, ROOT / "examples/distillation/texts.py")
    head = trained("train.log", "speculation/train.py", "head", "--steps", str(STEPS))
    build(BUNDLE, "llm.logits=all", "llm.speculator=head")
    return head


def prepare_draft() -> list[str]:
    """Train and build the draft model, unless that was done; return training's output."""
    draft = trained("draft.log", "distillation/prune.py", "draft", *DRAFT_TRAINING)
    build(DRAFT, "source.hf=draft")
    return draft


def trained(name: str, script: str, folder: str, *options: str) -> list[str]:
    """Run an example's script unless its log exists; return the log."""
    log = FOLDER / name
    if not log.is_file():
        log.write_text(run(sys.executable, ROOT / "examples" / script, "llama", "train.txt", folder, *options))
    return [line for line in log.read_text().splitlines() if line.startswith("step") or "tokens read" in line]


def build(bundle: Path, *settings: str) -> None:
    """Build a bundle unless it exists."""
    if not (bundle / "manifest.json").is_file():
        words = [word for setting in settings for word in ("--set", setting)]
        run(Path(sys.executable).with_name("trtkit"), "build", "llama", *words, "-o", bundle, "--quiet")


def prompts(llm: LLM, text: str) -> list[list[int]]:
    """Return prompts as token ids, spread over a text."""
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(text)
    return [list(ids[start : start + PROMPT]) for start in range(0, len(ids) - PROMPT, len(ids) // PROMPTS)][:PROMPTS]


def answer(llm: LLM, asked: list[list[int]]) -> Json:
    """Answer prompts one at a time; return tokens, the model's steps after prefill, and times."""
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    outputs = [llm.generate([prompt], params)[0] for prompt in asked]
    tokens = sum(len(output.outputs[0].token_ids) - 1 for output in outputs)
    accepted = sum(output.metrics.accepted_tokens for output in outputs)
    seconds = sum((output.metrics.tpot_s or 0) * (len(output.outputs[0].token_ids) - 1) for output in outputs)
    return {
        "seconds": seconds,
        "answers": [output.outputs[0].token_ids for output in outputs],
        "tokens_per_second": tokens / seconds,
        "tokens_per_step": tokens / (tokens - accepted),
        "ms_per_step": 1000 * seconds / (tokens - accepted),
    }


def measure(variants: dict[str, Json]) -> Json:
    """Measure variants in turn, on prompts of both texts."""
    opened = {
        name: LLM(**{"bundle": BUNDLE, "runtime": "reference", "slots": 1, **options})
        for name, options in variants.items()
    }
    unseen = {"held-out topics": (FOLDER / "held-out.txt").read_text(encoding="utf-8"), "KJV": texts()["KJV"][:40000]}
    figures: Json = {}
    for text, content in unseen.items():
        asked = prompts(opened["none"], content)
        samples = interleaved({name: partial(answer, llm, asked) for name, llm in opened.items()}, REPEATS, 0)
        figures[text] = {name: summarized(runs) for name, runs in samples.items()}
        for name, runs in samples.items():
            assert all(each["answers"] == samples["none"][0]["answers"] for each in runs), name
    return figures


def summarized(runs: list[Json]) -> Json:
    """Return the figures of repeated runs, which accept equally many guesses."""
    rates = {key: summary([each[key] for each in runs]) for key in ("tokens_per_second", "ms_per_step")}
    return {"tokens_per_step": round(runs[0]["tokens_per_step"], 3), **rates}


def table(figures: Json) -> str:
    """Return the figures as Markdown."""
    columns = ("tokens per step", "ms per step", "tokens/s")
    lines = [f"| guesses | {' | '.join(f'{text}: {column}' for text in figures for column in columns)} |"]
    lines.append("| --- |" + " --: |" * len(columns) * len(figures))
    for name in next(iter(figures.values())):
        cells = [name]
        for variants in figures.values():
            row, plain = variants[name], variants["none"]["tokens_per_second"]["median"]
            rate = row["tokens_per_second"]["median"]
            cells += [f"{row['tokens_per_step']:.2f}", f"{row['ms_per_step']['median']:.0f}"]
            cells.append(f"{rate:.1f} ({rate / plain:.2f}x)")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def head_share() -> float:
    """Return the head's share of decoding time for three guesses, after a warm-up."""
    spent: list[float] = []
    propose = ChainProposer.propose

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        drafts = propose(*arguments)
        spent.append(time.perf_counter() - began)
        return drafts

    with LLM(BUNDLE, runtime="reference", slots=1, speculate=3) as llm:
        asked = prompts(llm, (FOLDER / "held-out.txt").read_text(encoding="utf-8"))
        answer(llm, asked)
        with patch.object(ChainProposer, "propose", timed):
            seconds = answer(llm, asked)["seconds"]
    share: float = round(sum(spent) / seconds, 3)
    return share


def compare_ways() -> None:
    """Compare ways to guess."""
    log, about = {"head": prepare(), "draft": prepare_draft()}, {"prompt": PROMPT, "answer": ANSWER}
    figures = measure(VARIANTS)
    write("speculation", {"training": log, **about, "head_share": head_share(), "texts": figures})
    write_between(ROOT / "examples/speculation/README.md", "speculation", table(figures))


def compare_trees() -> None:
    """Compare chains with trees of guesses from the same head."""
    log = prepare()
    for tokens in TREE_TOKENS:
        build(FOLDER / f"tree-{tokens}", "llm.logits=all", "llm.speculator=head", f"llm.tree_tokens={tokens}")
    figures = measure(TREES)
    write("speculation_trees", {"training": log, "prompt": PROMPT, "answer": ANSWER, "texts": figures})
    write_between(ROOT / "examples/speculation/README.md", "trees", table(figures))


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:] == ["trees"]:
        compare_trees()
    else:
        compare_ways()


if __name__ == "__main__":
    main()
