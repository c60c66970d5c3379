"""One answer while it is made: tokens to text, stop strings, what a stream has not been told yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.runtime.text import IncrementalDetokenizer, StopStrings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.runtime.sampling.params import SamplingParams
    from trtkit.runtime.text import Tokenizer


class Answer:
    """The text of one answer; the engine's Watcher where a stream or stop strings need every token.

    on_news: told when a stream has something to say.
    """

    def __init__(self, tokenizer: Tokenizer | None, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, params.skip_special_tokens)
        self._stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self._pieces: list[str] = []
        self._told_pieces = self._told_tokens = self.told_logprobs = 0
        self.token_ids: list[int] = []
        self.on_news: Callable[[], None] | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def add(self, tokens: Sequence[int]) -> str | None:
        """Take new tokens; return the stop string that they complete, if any."""
        self.token_ids.extend(tokens)
        self._pieces.append(self._stops.add(self._detokenizer.add(tokens)))
        if self.on_news is not None:
            self.on_news()
        return self._stops.matched

    def finish(self, token_ids: Sequence[int], *, has_stop_token: bool) -> None:
        """Take all of the answer's tokens at its end; the token that stopped it, if any, gives no text."""
        rest = token_ids[len(self.token_ids) :]
        shown = rest[:-1] if has_stop_token else rest
        if shown and self._stops.matched is None:
            self._pieces.append(self._stops.add(self._detokenizer.add(shown)))
        self.token_ids.extend(rest)
        if self._stops.matched is None:
            self._pieces.append(self._stops.add(self._detokenizer.finish()) + self._stops.finish())

    def news(self) -> tuple[str, tuple[int, ...]]:
        """Return text and tokens that came since the last call."""
        text = "".join(self._pieces[self._told_pieces :])
        tokens = tuple(self.token_ids[self._told_tokens :])
        self._told_pieces, self._told_tokens = len(self._pieces), len(self.token_ids)
        return text, tokens
