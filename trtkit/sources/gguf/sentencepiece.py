"""Rebuild a SentencePiece BPE tokenizer (Llama 1 and 2, Mistral, Gemma) from a GGUF file's tokens and scores.

SentencePiece joins the pair whose piece has the highest score; `tokenizers` joins the pair that is listed first.
Listing all pairs by the score of what they make gives the same, as transformers' `LlamaConverter` does it.
Gemma 4's files list the pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tokenizers

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
