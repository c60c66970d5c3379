"""Merge an adapter into the weights of a language model as they are read, in fp32."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.lora.adapter import open_adapter
from trtkit.models.weights import find_weights, model_weights, stored_spec
from trtkit.sources.attached_folders import adapter_files
from trtkit.sources.checkpoint import Checkpoint, StoredArray
from trtkit.sources.decoder_source import open_decoder_source

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.config.schema import Source
    from trtkit.lora.adapter import Adapter, LowRank
    from trtkit.models.spec import DecoderSpec
    from trtkit.sources.decoder_source import DecoderSource


def open_language_model(source: Source, *, keep_quantized: bool = False) -> DecoderSource:
    """Open a decoder-only LLM; if the source names an adapter, merge it into the weights.

    Raises what `open_decoder_source`, `open_adapter` and `merged` raise.
    """
    opened = open_decoder_source(source, keep_quantized=keep_quantized)
    if source.lora is None:
        return opened
    spec = stored_spec(opened.config, opened.where, opened.checkpoint)
    return merged(opened, spec, open_adapter(Path(source.lora), spec))


def merged(opened: DecoderSource, spec: DecoderSpec, adapter: Adapter) -> DecoderSource:
    """Return a model with an adapter merged into its weights, computed in fp32 as they are read.

    Raises ProblemsError for quantized matrices, SourceError for a table that the checkpoint may hold twice and for a
    base matrix that differs from the adapter's copy.
    """
    weights = find_weights(spec, opened.checkpoint, opened.where)
    assert isinstance(opened.checkpoint, Checkpoint)
    stored = {name: opened.checkpoint.stored(name) for name in opened.checkpoint}
    head, table = f"{spec.names['lm_head']}.weight", weights.name_of("embedding.weight")
    names = {path: weights.name_of(f"{path}.weight") for path in adapter.parts if f"{path}.weight" in weights}
    bases = {path: stored[names.get(path, table)] for path in adapter.parts}  # a tied head uses the table
    _check(adapter, bases, spec)
    if spec.head.is_tied and adapter.parts.keys() & {"embedding", "lm_head"}:
        stored[head] = stored[table]
        names["lm_head"] = head
        names["embedding"] = next(weight.name for weight in model_weights(spec) if weight.path == "embedding.weight")
    is_in_out = spec.is_in_out
    for path, part in adapter.parts.items():
        is_turned = part.module.is_table or (is_in_out and path.startswith("layers."))
        read = partial(_sum, bases[path], part, is_turned=is_turned)
        stored[names[path]] = StoredArray(bases[path].shape, read)
    note = f"adapter {adapter.folder.name} of rank {adapter.adapter_rank} merged into {len(adapter.parts)} matrices"
    files = (*opened.files, *adapter_files(adapter.folder))
    notes = "; ".join(one for one in (opened.note, note) if one)
    return replace(opened, checkpoint=Checkpoint(stored), files=files, note=notes, folder=None)


def _check(adapter: Adapter, bases: dict[str, StoredArray], spec: DecoderSpec) -> None:
    """Raise ProblemsError or SourceError for matrices that the adapter cannot be merged into."""
    quantized = sorted(path for path, base in bases.items() if base.is_quantized)
    if quantized:
        problems = [Problem(f"`{path}` is quantized") for path in quantized[:8]]
        fix = "merge into the original, unquantized model, and let `quantize` quantize the sum"
        raise ProblemsError(f"the adapter changes {len(quantized)} matrices that are quantized", problems, fix)
    if spec.table_copies and "embedding" in adapter.parts:
        what = "the adapter changes the embedding, of which the checkpoint may hold copies"
        raise SourceError(what, str(adapter.folder), "merge it with PEFT (`merge_and_unload`)")
    for path, part in adapter.parts.items():
        if part.base is not None and not _is_same(part.base, bases[path]):
            what = f"the adapter includes a `{path}` that differs from the model's"
            raise SourceError(what, str(adapter.folder), "use the model that the adapter was trained for")


def _is_same(one: StoredArray, other: StoredArray) -> bool:
    """Whether two arrays have equal values."""
    return one.shape == other.shape and np.array_equal(
        np.asarray(one.read(), np.float32), np.asarray(other.read(), np.float32)
    )


def _sum(base: StoredArray, part: LowRank, *, is_turned: bool) -> Array:
    """Return a matrix plus its adapter's update, in fp32."""
    a, b = part.matrices()
    total = np.array(base.read(), np.float32)
    total += a.T @ b.T if is_turned else b @ a
    return total
