"""Writes docs/families.md: each decoder family's errors against transformers. `python -m tests.families`."""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING

import torch

from tests.support.decoder_cases import CASES
from tests.support.decoder_variants import COMMON, variant
from tests.support.decoders import T, executor_of, model_of, relative_rms
from tests.support.docs import DOCS
from trtkit.dtypes import FP16, FP32
from trtkit.models.registry import hf_class

if TYPE_CHECKING:
    from tests.support.decoder_case import Case

PAGE = DOCS / "families.md"
IDS = torch.randint(3, 61, (2, 17), generator=torch.Generator().manual_seed(5))
NEW_TOKENS = 8
_LISTS = ("test_decoder_variants", "test_derived_variants", "test_gemma_variants", "test_recurrent_variants")
_HEAD = """\
# Decoder families

Written by `python -m tests.families`, in about a minute: small random models of every family against transformers 5.23
on a CPU, each with several legal settings (odd sizes, heads tied and not, kinds of rotary embeddings, windows): the
cases of the tests. Errors are relative RMS errors of logits, the largest of a family's cases: in fp32 of one prefill
and of chunks of four tokens, and in fp16 of one prefill. *Greedy*: cases whose next {new} tokens equal those of
transformers, in fp32. In 16 bits, a mixture's router may choose another expert at a near tie, which shows as a large
error of a small random model. transformers has no `DeciLMForCausalLM`: it is put together from its Llama layers, each
with a config of its own. The tests also build every family, quantize it, share it between ranks, and refuse what
is not supported ([Language models](llm.md)).

| `model_type` | class of transformers | cases | fp32 | fp16 | greedy |
| --- | --- | --: | --: | --: | --: |
"""


def cases() -> dict[str, list[Case]]:
    """Return the cases of every family."""
    found = defaultdict(list)
    for case in CASES:
        found[case.model_type].append(case)
    own = (importlib.import_module(f"tests.integration.{name}").VARIANTS for name in _LISTS)
    for base, changes in chain(*own, COMMON):
        case = variant(base, changes)
        found[case.model_type].append(case)
    return dict(sorted(found.items()))


def _fp32_error(case: Case) -> float:
    wanted, runner = model_of(case).logits(IDS), executor_of(case, FP32)
    runner.reset(len(IDS))
    whole = runner.step(IDS)["logits"]
    runner.reset(len(IDS))
    chunks = torch.cat([runner.step(part)["logits"] for part in IDS.split(4, 1)], 1)
    return max(relative_rms(whole, wanted), relative_rms(chunks, wanted))


def _fp16_error(case: Case) -> float:
    runner = executor_of(case, FP16)
    runner.reset(len(IDS))
    return relative_rms(runner.step(IDS)["logits"], model_of(case).logits(IDS, FP16))


def _is_greedy_equal(case: Case) -> bool:
    runner, model = executor_of(case, FP32), model_of(case)
    ids = IDS[:1, : T - NEW_TOKENS]
    runner.reset(1)
    logits = runner.step(ids)["logits"]
    for _ in range(NEW_TOKENS):
        token = logits[:, -1:].argmax(-1)
        if not torch.equal(token, model.logits(ids)[:, -1:].argmax(-1)):
            return False
        ids = torch.cat([ids, token], 1)
        logits = runner.step(token)["logits"]
    return True


def _row(family: str, own: list[Case]) -> str:
    exact, rounded = (max(measure(case) for case in own) for measure in (_fp32_error, _fp16_error))
    equal = sum(map(_is_greedy_equal, own))
    return f"| `{family}` | `{hf_class(family)}` | {len(own)} | {exact:.1e} | {rounded:.1e} | {equal} |\n"


def main() -> None:
    """Measure all families and write the page."""
    rows = []
    for family, own in cases().items():
        rows.append(_row(family, own))
        for cached in (executor_of, model_of):
            cached.cache_clear()
        print(rows[-1], end="", file=sys.stderr)
    PAGE.write_text(_HEAD.format(new=NEW_TOKENS) + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
