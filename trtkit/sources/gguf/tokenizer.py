"""Rebuild a tokenizer from a GGUF file's metadata, in the form that transformers loads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError, reading
from trtkit.sources.gguf.sentencepiece import has_space_prefix, pieces, sentencepiece_tokenizer
from trtkit.sources.tokenizer import CopiedTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import tokenizers

    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.tokenizer import Tokenizer

_KEY = "tokenizer.ggml."
_CONTROL, _USER_DEFINED = 3, 4
# How text is cut before merging. Llama 3 and Qwen 2 differ in how many digits stay together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# GPT-4o and gpt-oss cut words before capitals, and keep a word's ending such as 's with it.
_ENDINGS, _LOWER, _UPPER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
)
_O200K = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDINGS}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDINGS}",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_LLAMA3, _QWEN2 = _WORDS.format(digits=r"\p{N}{1,3}"), _WORDS.format(digits=r"\p{N}")


@dataclass(frozen=True)
class Cut:
    """How text is cut into words. regex: empty for GPT-2's own; is_digit_alone: each digit is a word.

    adds_bos: a start token is put before the text where the file does not say.
    """

    regex: str = ""
    is_digit_alone: bool = False
    is_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


CUTS = {
    "gpt-2": Cut(),
    "phi-2": Cut(),
    "smollm": Cut(is_digit_alone=True),
    "starcoder": Cut(is_digit_alone=True),
    "llama-bpe": Cut(_LLAMA3, ignores_merges=True, adds_bos=True),
    "smaug-bpe": Cut(_LLAMA3),
    "dbrx": Cut(_LLAMA3),
    "glm4": Cut(_LLAMA3),
    "gpt-4o": Cut(_O200K),
    "qwen2": Cut(_QWEN2, is_nfc=True),
}
"""By `tokenizer.ggml.pre`."""


@dataclass(frozen=True)
class GgufTokenizer:
    """A tokenizer that a GGUF file describes."""

    metadata: Mapping[str, Any]
    where: str

    def write(self, folder: Path) -> list[Path]:
        """Write tokenizer.json, tokenizer_config.json with the chat template, and generation_config.json."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tokenizer.json"
        with reading(self.where):
            build_tokenizer(self.metadata).save(str(path))
            config, generation = self._config(), self._generation()
        written = [path, _write_json(folder / "tokenizer_config.json", config)]
        return [*written, _write_json(folder / "generation_config.json", generation)]

    def _config(self) -> dict[str, Any]:
        tokens, template = self.metadata[_KEY + "tokens"], self.metadata.get("tokenizer.chat_template")
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        ids = {field: self.metadata.get(f"{_KEY}{key}_token_id") for key, field in names.items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{field: tokens[token_id] for field, token_id in ids.items() if token_id is not None},
            **({"chat_template": template} if template else {}),
        }

    def _generation(self) -> dict[str, Any]:
        """Return the ids that generation starts, ends and pads with; chat models may end a turn with another id."""
        ids = {name: self.metadata.get(f"{_KEY}{name}_token_id") for name in ("bos", "eos", "eot", "padding")}
        ends = list(dict.fromkeys(i for i in (ids["eos"], ids["eot"]) if i is not None))
        named = {"bos_token_id": ids["bos"], "eos_token_id": ends[0] if len(ends) == 1 else ends or None}
        named["pad_token_id"] = ids["padding"]
        return {name: value for name, value in named.items() if value is not None}


def gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Return the file's tokenizer, an empty one where it has none. Raises SourceError for a kind that is not known."""
    kind = file.metadata.get(_KEY + "model", "none")
    if kind in ("none", "no_vocab"):
        return CopiedTokenizer()
    fix = "build from the model's Hugging Face folder, which carries its tokenizer"
    if kind not in ("gpt2", "llama"):
        raise SourceError(f"tokenizer `{kind}` is not supported; gpt2 and llama are", str(file.path), fix)
    pre = file.metadata.get(_KEY + "pre")
    if kind == "gpt2" and pre not in CUTS:
        raise SourceError(f"pre-tokenizer `{pre}` is not supported; {', '.join(CUTS)} are", str(file.path), fix)
    needed = ("tokens", "token_type", "merges" if kind == "gpt2" else "scores")
    for name in needed:
        if _KEY + name not in file.metadata:
            raise SourceError(f"metadata key `{_KEY}{name}` is missing", str(file.path), fix)
    own = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    return GgufTokenizer(own, str(file.path))


def build_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the tokenizer that `tokenizer.ggml.*` describes."""
    if metadata[_KEY + "model"] == "llama":
        tokenizer, adds_bos = sentencepiece_tokenizer(metadata), True
        tokens, is_normalized = pieces(metadata), not has_space_prefix(metadata)
    else:
        cut, tokens, is_normalized = CUTS[metadata[_KEY + "pre"]], metadata[_KEY + "tokens"], False
        tokenizer, adds_bos = _byte_level_tokenizer(metadata, cut), cut.adds_bos
    _add_tokens(tokenizer, tokens, metadata[_KEY + "token_type"], is_normalized)
    bos, eos = "", ""
    if metadata.get(_KEY + "add_bos_token", adds_bos):
        bos = tokens[metadata[_KEY + "bos_token_id"]]
    if metadata.get(_KEY + "add_eos_token", False):
        eos = tokens[metadata[_KEY + "eos_token_id"]]
    _add_ends(tokenizer, bos, eos)
    return tokenizer


def _byte_level_tokenizer(metadata: Mapping[str, Any], cut: Cut) -> tokenizers.Tokenizer:
    """Return a byte-level BPE without its added tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    vocabulary = {token: index for index, token in enumerate(metadata[_KEY + "tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata[_KEY + "merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut.ignores_merges))
    if cut.is_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(cut)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _pre_tokenizer(cut: Cut) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if cut.regex:
        split = pre_tokenizers.Split(Regex(cut.regex), "isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if cut.is_digit_alone:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


def _add_tokens(
    tokenizer: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], is_normalized: bool
) -> None:
    """Add the tokens that are never cut: control tokens, which decoding may skip, and user-defined ones.

    is_normalized: user-defined tokens are looked for after spaces were marked.
    """
    from tokenizers import AddedToken

    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    plain = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=is_normalized) for token in plain])


def _add_ends(tokenizer: tokenizers.Tokenizer, bos: str, eos: str) -> None:
    """Put a start token before and an end token behind each text; empty for none."""
    from tokenizers import processors

    if bos or eos:
        single = [part for part in (bos, "$A", eos) if part]
        second = [part for part in (bos, "$B:1", eos) if part]
        special = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token]
        tokenizer.post_processor = processors.TemplateProcessing(single, single + second, special)


def _write_json(path: Path, data: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
