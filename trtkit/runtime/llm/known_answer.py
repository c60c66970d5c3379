"""The request whose answer a bundle knows, asked at the start of several ranks: collectives can fail silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.bundle.known import read_all_known
from trtkit.errors import RankError
from trtkit.runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.bundle.bundle import Bundle
    from trtkit.runtime.llm.outputs import CompletionOutput


def check_known_answer(bundle: Bundle, answer: Callable[[str | list[int], SamplingParams], CompletionOutput]) -> None:
    """Ask the bundle's known request, if it has one. Raises RankError if the ranks answer something else."""
    known = next((each for each in read_all_known(bundle) if {"text_output", "output_ids"} & each.outputs.keys()), None)
    if known is None:
        return
    params = SamplingParams(temperature=0.0, max_tokens=int(known.inputs["max_tokens"].item()))
    if "input_ids" in known.inputs:
        output = answer(known.inputs["input_ids"].reshape(-1).tolist(), params)
        got, expected = str(list(output.token_ids)), str(known.outputs["output_ids"].reshape(-1).tolist())
    else:
        output = answer(known.inputs["text_input"].item().decode(), params)
        got, expected = output.text, known.outputs["text_output"].item().decode()
    if got != expected:
        fix = (
            "the ranks' collectives may do nothing: see `docs/parallel.md`; for a bundle that is right, deploy it again"
        )
        raise RankError(f"the ranks answer the known request with `{got}`, not `{expected}`", str(bundle.path), fix)
