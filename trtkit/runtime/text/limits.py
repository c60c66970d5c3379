"""Limits on a single request, without which one request could take all memory or time from the others."""

from typing import Any

MAX_ANSWERS = 1024
"""Answers per prompt, and beams per search."""
MAX_LOGPROBS = 1024
"""Most likely tokens reported per position."""
MAX_WORDS, MAX_WORD_LENGTH = 1024, 1024
"""Words to forbid, to force or to choose from; characters or tokens of each."""
MAX_STOPS, MAX_STOP_LENGTH = 64, 256
"""Stop strings, and characters of each: every new piece of text is searched for all of them."""
MAX_STOP_TOKENS = 256
MAX_SCHEMA_LENGTH, MAX_GRAMMAR_LENGTH = 65_536, 16_384
"""Characters of a JSON schema, and of a regular expression or grammar: the longest rule's cost is quadratic."""
MAX_MULTIPLE = 10_000
"""Least common multiple of a schema's `multipleOf`: one of 999,983 takes 12 seconds to compile."""
MAX_COUNT = 2**31 - 1
"""Limit on token counts: the largest 32-bit integer."""
MAX_FLOAT = 1e30
"""Limit on numbers used for computing scores in fp32, whose range ends near 3.4e38."""
MAX_EXPONENT = 5
"""Limit on the exponent of the length by which beams are scored: larger ones exceed fp32."""
_SHOWN = 80


def shown(value: Any) -> str:
    """Return a value for an error message, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def check_count(count: int, limit: int, of: str) -> None:
    """Raise ValueError if there are more than `limit`."""
    if count > limit:
        raise ValueError(f"{count} {of} are more than the limit, {limit}")


def check_text(text: str) -> None:
    """Raise ValueError for text that cannot be encoded in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise ValueError(f"character {error.start} is half of a surrogate pair, {code}: not valid text") from None
