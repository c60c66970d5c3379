"""Checks that one build of a model can compute prompts for another build, which answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.config.llm import LlmOptions
from trtkit.errors import DeployError
from trtkit.llm.execution.open import rope_lengths, weights_digest

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest
    from trtkit.bundle.records import FileRecord

_OPTION = "--prefill-bundle"
_SOURCE = "from the same source"


def check_prefill_bundle(prompts: Bundle, answers: Bundle) -> None:
    """Raise DeployError unless `answers` can continue the caches of `prompts`, for every prompt that it accepts."""
    if prompts.manifest.interface != "tokens":
        raise DeployError(f"{prompts.path} does not hold a language model", _OPTION, f"build both {_SOURCE}")
    if weights_digest(prompts.manifest) != weights_digest(answers.manifest):
        difference, remedy = _difference(prompts.manifest, answers.manifest)
        what = f"{prompts.path} is not a build of the model of {answers.path}: {difference}"
        raise DeployError(what, _OPTION, f"build both {remedy}; only sizes and forms under `llm` may differ")
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


def _difference(prompts: Manifest, answers: Manifest) -> tuple[str, str]:
    """Describe how two models differ in weights, precision or tokenizer, and how to build both."""
    if prompts.config.precision != answers.config.precision:
        what = f"`precision` is {prompts.config.precision}, not {answers.config.precision}"
        return what, "with the same `precision`"
    if _has_draft(prompts) != _has_draft(answers):
        return "only one of them has an `llm.speculator`", "with the same `llm.speculator`, or without one"
    if (kinds := _cache_kinds(prompts)) != (needed := _cache_kinds(answers)):
        return f"its KV caches are {kinds}, not {needed}", "with the same `quantize.kv_cache`"
    if names := _differing_files(prompts.sources, answers.sources):
        return ", ".join(f"`{name}`" for name in names) + (" differs" if len(names) == 1 else " differ"), _SOURCE
    return "`quantize` differs", "with the same `quantize`, or from one quantized folder"


def _has_draft(manifest: Manifest) -> bool:
    return manifest.decoder is not None and manifest.decoder.speculator is not None


def _cache_kinds(manifest: Manifest) -> str:
    """Return the data types of the KV caches."""
    inputs = (tensor for stage in manifest.stages for tensor in stage.inputs if tensor.feeder == "cache")
    return " and ".join(sorted({tensor.dtype for tensor in inputs}))


def _differing_files(prompts: tuple[FileRecord, ...], answers: tuple[FileRecord, ...]) -> list[str]:
    """Return the names of files whose contents differ or that only one of them has."""
    first, second = ({(Path(file.path).name, file.sha256) for file in files} for files in (prompts, answers))
    return sorted({name for name, _ in first ^ second})


def _length(manifest: Manifest) -> int:
    return (manifest.config.llm or LlmOptions()).max_sequence_length
