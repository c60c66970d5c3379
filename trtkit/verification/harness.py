"""trtkit's language models as models of lm-evaluation-harness, which this module requires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from trtkit.errors import GenerationError
from trtkit.jobs.events import Progress, ignore
from trtkit.verification.scoring import Question, ScoredContinuation, answer, answer_params, max_scored, score

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lm_eval.api.instance import Instance

    from trtkit.jobs.events import Listener
    from trtkit.llm import LLM
    from trtkit.runtime.text import Tokenizer


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A bundle as a harness model, to pass to `lm_eval.simple_evaluate`.

    Tokenization, special tokens and truncation follow the harness's own Hugging Face model. llm: with logits of every
    token. report: called with the number of finished requests. Raises GenerationError for a bundle without a tokenizer.
    """

    def __init__(self, llm: LLM, report: Listener = ignore) -> None:
        super().__init__()
        if llm.tokenizer is None:
            fix = "build it from a source that has one"
            raise GenerationError("the bundle has no tokenizer", str(llm.frontend.bundle.path), fix)
        self._llm, self._report, self._words = llm, report, llm.tokenizer
        self.tokenizer = llm.tokenizer.hf  # the harness reads its chat template

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return _end_of_text(self._words)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text that has no context."""
        bos = self._words.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        """Maximum number of tokens that a token is predicted from."""
        return max_scored(self._llm)

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches rendered chats."""
        return str(self._llm.frontend.bundle.manifest.name)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """Return a text's tokens, with the tokenizer's special tokens unless the text already has them."""
        if add_special_tokens is None:
            bos = self._words.decode([self.prefix_token_id], skip_special_tokens=False)
            add_special_tokens = not string.startswith(bos)
        return self._words.encode(string, add_special_tokens)

    def apply_chat_template(self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a conversation as text."""
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        return str(self.tokenizer.apply_chat_template(list(chat_history), tokenize=False, **options))

    def loglikelihood(self, requests: Sequence[Instance], **_: object) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether it is the greedy one."""
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return scored

    def loglikelihood_rolling(self, requests: Sequence[Instance], **_: object) -> list[float]:
        """Return the log-likelihood of each whole text, in windows that cover each token once."""
        windows = [self._windows(request.args[0]) for request in requests]
        likelihoods = iter(self._scored([window for text in windows for window in text], "loglikelihood_rolling"))
        return [sum(next(likelihoods)[0] for _ in text) for text in windows]

    def generate_until(self, requests: Sequence[Instance], **_: object) -> list[str]:
        """Return the answer to each prompt."""
        questions = [
            Question(self.tok_encode(prompt), answer_params(keys, index))
            for index, (prompt, keys) in enumerate(request.args for request in requests)
        ]
        return answer(self._llm, questions, self._counted("generate_until", len(questions)))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[object, list[int], list[int]]], **_: object
    ) -> list[tuple[float, bool]]:
        return self._scored([ScoredContinuation(context, tokens) for _, context, tokens in requests], "loglikelihood")

    def _scored(self, continuations: Sequence[ScoredContinuation], name: str) -> list[tuple[float, bool]]:
        scored = score(self._llm, continuations, self._counted(name, len(continuations)))
        return [(result.log, result.is_greedy) for result in scored]

    def _windows(self, text: str) -> list[ScoredContinuation]:
        """Return a text in windows; each token is predicted once, from as much context as fits."""
        options = {"prefix_token": self.prefix_token_id, "max_seq_len": self.max_length, "context_len": 1}
        pieces = get_rolling_token_windows(token_list=self.tok_encode(text), **options)
        return [ScoredContinuation(*make_disjoint_window(piece)) for piece in pieces]

    def _counted(self, name: str, total: int) -> Callable[[], None]:
        """Return a callback that reports one more finished request."""
        done = 0

        def count() -> None:
            nonlocal done
            done += 1
            self._report(Progress(name, done, total))

        return count


def _end_of_text(words: Tokenizer) -> int:
    """Return the tokenizer's end-of-text token, otherwise the model's."""
    token_id = words.hf.eos_token_id
    if token_id is None and not words.eos_token_ids:
        raise GenerationError("neither tokenizer nor model names a token that ends a text", "eos_token_id")
    return int(words.eos_token_ids[0] if token_id is None else token_id)
