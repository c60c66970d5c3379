"""Metadata of a GGUF file: detection of unread keys, and fields derived from lists and tensors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtkit.errors import Problem, ProblemsError, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.sources.gguf.file import GgufFile

Fields = dict[str, Any]
"""Fields of a Hugging Face config.json."""
# Keys that change nothing, or that the tensors' shapes imply.
_IMMATERIAL = (
    "vocab_size",
    "tensor_data_layout",
    "attention.causal",
    "rope.scaling.finetuned",
    "attention.value_length",
)


class Metadata:
    """The keys of a file's own architecture; tracks which were read."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        start = f"{architecture}."
        self._values = {key.removeprefix(start): v for key, v in file.metadata.items() if key.startswith(start)}
        self._read = set(_IMMATERIAL)
        self._start, self.where = start, str(file.path)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, or `default` if it is missing. Raises SourceError for a value that varies between layers."""
        self._read.add(key)
        value = self._values.get(key, default)
        if isinstance(value, list):
            if len(set(value)) > 1:
                raise SourceError(f"`{self._start}{key}` differs between layers, which is not supported", self.where)
            value = value[0] if value else default
        return value

    def need(self, key: str) -> Any:
        """Return a value. Raises SourceError if it is missing."""
        value = self.get(key)
        if value is None:
            fix = "convert the model again with a current llama.cpp"
            raise SourceError(f"metadata key `{self._start}{key}` is missing", self.where, fix)
        return value

    def need_list(self, key: str) -> list[Any]:
        """Return a value per layer. Raises SourceError for anything else."""
        self._read.add(key)
        values = self._values.get(key)
        if not isinstance(values, list) or len(values) != self.need("block_count"):
            raise SourceError(f"`{self._start}{key}` does not list all layers", self.where)
        return values

    def listed(self, key: str) -> list[Any]:
        """Return a value as a list, repeated for each layer if the file states a single one.

        Raises SourceError if missing.
        """
        self._read.add(key)
        if isinstance(values := self._values.get(key), list):
            return values
        return [self.need(key)] * int(self.need("block_count"))

    def ignore(self, *keys: str) -> None:
        """Mark keys as read: they change nothing."""
        self._read.update(keys)

    def check_all_read(self) -> None:
        """Raise ProblemsError naming each key that is set but was not read: it may affect the computation."""
        unread = {key: value for key, value in self._values.items() if key not in self._read and value}
        if unread:
            problems = [Problem(f"`{self._start}{key}` is `{value}`", self.where) for key, value in unread.items()]
            raise ProblemsError("metadata that are not supported for this architecture", problems)


def head_dim(metadata: Metadata) -> int:
    """Return the size of a query head."""
    size = int(metadata.need("embedding_length")) // int(metadata.need("attention.head_count"))
    return int(metadata.get("attention.key_length", size))


def has_tensor(file: GgufFile, tensor: str) -> bool:
    """Whether the file, or any block, has a tensor of this name."""
    in_block = re.compile(rf"blk\.\d+\.{re.escape(tensor)}")
    return tensor in file.tensors or any(in_block.fullmatch(name) for name in file.tensors)


def kinds(metadata: Metadata, file: GgufFile, tensors: Mapping[str, str], otherwise: str) -> list[str]:
    """Return each block's kind, determined by the first tensor in `tensors` that it has."""
    names = [[f"blk.{index}.{tensor}" for tensor in tensors] for index in range(int(metadata.need("block_count")))]
    return [
        next(
            (kind for name, kind in zip(layer_names, tensors.values(), strict=True) if name in file.tensors), otherwise
        )
        for layer_names in names
    ]


def sliding_types(metadata: Metadata) -> list[str]:
    """Return `layer_types` of a file that lists which layers use a sliding window.

    Raises SourceError for an incomplete list.
    """
    slides = metadata.need_list("attention.sliding_window_pattern")
    return ["sliding_attention" if is_sliding else "full_attention" for is_sliding in slides]


def key_heads(metadata: Metadata) -> Fields:
    """Return `num_key_value_heads` of a file that omits it for layers without attention."""
    return {"num_key_value_heads": max(int(count) for count in metadata.listed("attention.head_count_kv"))}


def mamba_head(metadata: Metadata) -> int:
    """Return the head size of a recurrent layer."""
    return int(metadata.need("ssm.inner_size")) // int(metadata.need("ssm.time_step_rank"))
