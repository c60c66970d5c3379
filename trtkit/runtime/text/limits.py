"""How much one request may hold. Without limits a single request could take the memory, or the time, of all others."""

from typing import Any

MAX_ANSWERS = 1024
"""Answers of a prompt, and beams of a search."""
MAX_LOGPROBS = 1024
"""Most likely tokens that are reported at each place."""
MAX_WORDS, MAX_WORD_LENGTH = 1024, 1024
"""Words to bar, to force or to choose from; characters or tokens of each."""
MAX_STOPS, MAX_STOP_LENGTH = 64, 256
"""Stop strings, and characters of each: every new piece of text is searched for all of them."""
MAX_STOP_TOKENS = 256
MAX_SCHEMA_LENGTH, MAX_GRAMMAR_LENGTH = 65_536, 16_384
"""Characters of a JSON schema, and of an expression or a grammar: the longest rule costs its length squared."""
MAX_MULTIPLE = 10_000
"""Least common multiple of a schema's `multipleOf`: one of 999,983 compiles for 12 seconds."""
MAX_COUNT = 2**31 - 1
"""Of tokens: what 32 bits hold."""
MAX_FLOAT = 1e30
"""Of numbers that scores are computed with in fp32, which ends near 3.4e38."""
MAX_EXPONENT = 5
"""Of an answer's length, by which beams are judged: more leaves fp32."""
_SHOWN = 80


def shown(value: Any) -> str:
    """Return a value as an error shows it: its beginning, where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def check_count(count: int, limit: int, of: str) -> None:
    """Raise ValueError if there are more than `limit`."""
    if count > limit:
        raise ValueError(f"{count} {of} are more than the limit, {limit}")


def check_text(text: str) -> None:
    """Raise ValueError for text that no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise ValueError(f"character {error.start} is half of a surrogate pair, {code}: not valid text") from None
