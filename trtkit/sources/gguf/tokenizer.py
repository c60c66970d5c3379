"""Rebuild a tokenizer from a GGUF file's metadata, in the form that transformers loads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import SourceError, reading
from trtkit.sources.gguf.cuts import CUTS
from trtkit.sources.tokenizer import CopiedTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import tokenizers

    from trtkit.sources.gguf.cuts import Cut
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.tokenizer import TokenizerSource


_KEY = "tokenizer.ggml."
_NORMAL = 1
_SPACE = "\u2581"


def sentencepiece_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the tokenizer without its added tokens; text that no piece covers becomes bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens, has_prefix = pieces(metadata), has_space_prefix(metadata)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[metadata.get(_KEY + "unknown_token_id", 0)]
    if stated := metadata.get(_KEY + "merges"):
        left_right = (merge.split(" ") for merge in stated)
        merges = [(left, right) for left, right in left_right]
    else:
        merges = _merges(tokens, metadata[_KEY + "scores"], metadata[_KEY + "token_type"])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    stripped: list[Any] = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    plain = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*plain, *stripped])
    return tokenizer


def pieces(metadata: Mapping[str, Any]) -> list[str]:
    """Return the tokens with SentencePiece's mark for spaces, which llama.cpp's converter replaces in added ones."""
    return [token.replace(" ", _SPACE) for token in metadata[_KEY + "tokens"]]


def has_space_prefix(metadata: Mapping[str, Any]) -> bool:
    """Whether a space is put before the text."""
    return bool(metadata.get(_KEY + "add_space_prefix", True))


def _merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that make a piece: highest score first; of one piece, the earlier parts first."""
    ids = {token: index for index, token in enumerate(tokens) if types[index] == _NORMAL}
    merges = []
    for token, index in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-scores[index], left, right))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(merges)]


# Kinds of tokenizers, and the fields that each needs besides its tokens.
_NEEDED = {"gpt2": "merges", "llama": "scores", "gemma4": "merges"}
_CONTROL, _USER_DEFINED = 3, 4


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


def gguf_tokenizer(file: GgufFile) -> TokenizerSource:
    """Return the file's tokenizer, an empty one if it has none. Raises SourceError for a kind that is not known."""
    kind = file.metadata.get(_KEY + "model", "none")
    if kind in ("none", "no_vocab"):
        return CopiedTokenizer()
    fix = "build from the model's Hugging Face folder, which carries its tokenizer"
    if kind not in _NEEDED:
        raise SourceError(f"tokenizer `{kind}` is not supported; {', '.join(_NEEDED)} are", str(file.path), fix)
    pre = file.metadata.get(_KEY + "pre")
    if kind == "gpt2" and pre not in CUTS:
        raise SourceError(f"pre-tokenizer `{pre}` is not supported; {', '.join(CUTS)} are", str(file.path), fix)
    for name in ("tokens", "token_type", _NEEDED[kind]):
        if _KEY + name not in file.metadata:
            raise SourceError(f"metadata key `{_KEY}{name}` is missing", str(file.path), fix)
    fields = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    return GgufTokenizer(fields, str(file.path))


def build_tokenizer(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return the tokenizer that `tokenizer.ggml.*` describes."""
    if metadata[_KEY + "model"] != "gpt2":
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

    if cut.patterns:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
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
    """Put a start token before and an end token after each text; empty for none."""
    from tokenizers import processors

    if bos or eos:
        single = [part for part in (bos, "$A", eos) if part]
        second = [part for part in (bos, "$B:1", eos) if part]
        special = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token]
        tokenizer.post_processor = processors.TemplateProcessing(single, single + second, special)


def _write_json(path: Path, data: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
