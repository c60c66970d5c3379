"""Prompts computed by another build of a model than the one that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.config.llm import LlmOptions
from trtkit.errors import DeployError
from trtkit.network.rope_tables import counted_length
from trtkit.runtime.decoder.network import bundle_spec
from trtkit.runtime.decoder.open import cache_model

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest

_OPTION = "--prefill-bundle"


def check_prefill_bundle(prompts: Bundle, answers: Bundle) -> None:
    """Raise DeployError unless `prompts` computes what `answers` goes on from, for every prompt that it takes."""
    if prompts.manifest.interface != "tokens" or cache_model(prompts.manifest) != cache_model(answers.manifest):
        what = f"{prompts.path} is not a build of the model of {answers.path} with the same weights and precision"
        raise DeployError(what, _OPTION, "build both from the same source; only sizes and forms under `llm` may differ")
    if prompts.manifest.grid != answers.manifest.grid:
        what = f"{prompts.path} has {prompts.manifest.grid.ranks} ranks, {answers.path} {answers.manifest.grid.ranks}"
        raise DeployError(what, _OPTION, "build both with the same `parallel`")
    if _rope_lengths(prompts) != _rope_lengths(answers):
        what = f"{prompts.path} turns positions otherwise than {answers.path}, whose slots have another length"
        raise DeployError(what, _OPTION, f"build it with `llm.max_sequence_length: {_length(answers.manifest)}`")
    length, needed = _length(prompts.manifest), _length(answers.manifest)
    if length < needed:
        what = f"its slots hold {length} tokens, those of {answers.path} {needed}"
        raise DeployError(what, _OPTION, f"build it with `llm.max_sequence_length: {needed}` or more")


def _rope_lengths(bundle: Bundle) -> set[int]:
    """Return what rotary embeddings depend on of the length of slots (LongRoPE)."""
    ropes = [each.rope for each in bundle_spec(bundle).attentions if each.rope is not None]
    return {counted_length(rope, _length(bundle.manifest)) for rope in ropes}


def _length(manifest: Manifest) -> int:
    return (manifest.config.llm or LlmOptions()).max_sequence_length
