"""Tokenizers as files, in the form that transformers loads."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# Files that transformers reads for a tokenizer, and the model authors' generation settings.
_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
)


class TokenizerSource(Protocol):
    """Something that can write a model's tokenizer to a folder."""

    def write(self, folder: Path) -> list[Path]:
        """Write the files that `transformers.AutoTokenizer` needs; return those written, empty without a tokenizer."""
        ...


@dataclass(frozen=True)
class CopiedTokenizer:
    """Tokenizer files from another folder."""

    files: tuple[Path, ...] = ()

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copyfile(path, folder / path.name)) for path in self.files]


def folder_tokenizer(folder: Path) -> CopiedTokenizer:
    """Return the tokenizer of a Hugging Face folder."""
    return CopiedTokenizer(tuple(folder / name for name in _NAMES if (folder / name).is_file()))
