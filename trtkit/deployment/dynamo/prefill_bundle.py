"""Prompts computed by another build of a model than the one that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.config.llm import LlmOptions
from trtkit.errors import DeployError
from trtkit.runtime.decoder.open import rope_lengths, weights_digest

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest

_OPTION = "--prefill-bundle"


def check_prefill_bundle(prompts: Bundle, answers: Bundle) -> None:
    """Raise DeployError unless `prompts` computes what `answers` goes on from, for every prompt that it takes."""
    if prompts.manifest.interface != "tokens" or weights_digest(prompts.manifest) != weights_digest(answers.manifest):
        what = f"{prompts.path} is not a build of the model of {answers.path} with the same weights and precision"
        raise DeployError(what, _OPTION, "build both from the same source; only sizes and forms under `llm` may differ")
    if prompts.manifest.grid != answers.manifest.grid:
        what = f"{prompts.path} has {prompts.manifest.grid.ranks} ranks, {answers.path} {answers.manifest.grid.ranks}"
        raise DeployError(what, _OPTION, "build both with the same `parallel`")
    if rope_lengths(prompts) != rope_lengths(answers):
        what = f"{prompts.path} turns positions otherwise than {answers.path}, whose slots have another length"
        raise DeployError(what, _OPTION, f"build it with `llm.max_sequence_length: {_length(answers.manifest)}`")
    length, needed = _length(prompts.manifest), _length(answers.manifest)
    if length < needed:
        what = f"its slots hold {length} tokens, those of {answers.path} {needed}"
        raise DeployError(what, _OPTION, f"build it with `llm.max_sequence_length: {needed}` or more")


def _length(manifest: Manifest) -> int:
    return (manifest.config.llm or LlmOptions()).max_sequence_length
