"""Evaluation of a language model: perplexity on a text, answers to questions, distance from another bundle."""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import GenerationError, RequestError
from trtkit.jobs.events import Phase, Progress
from trtkit.llm.execution import Call, ExecutionOptions, open_execution
from trtkit.llm.text_bundle import read_text_bundle
from trtkit.verification.perplexity import read_window
from trtkit.verification.report import Neurons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.runner import Runner
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.text_bundle import TextBundle
    from trtkit.runtime.text import Tokenizer
    from trtkit.serving_options import Runtime


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate on.

    text: a UTF-8 file to read. questions: whether to ask 16 short questions with checkable answers. windows: number of
    windows of the text to read, 0 for all. window_tokens: their length, at least 2.
    """

    text: str | None = None
    questions: bool = False
    windows: int = 8
    window_tokens: int = 512
    runtime: Runtime = "auto"


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean negative log-likelihood per token, over windows that are read independently.

    seconds, tokens_per_second: of all models that read the text, together.
    """

    perplexity: float
    windows: int
    window_tokens: int
    tokens: int
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class Distance:
    """Distance of a model from another one on the same windows.

    perplexity: the other model's. change: of the perplexity, relative to the other's. divergence_nats: mean
    Kullback-Leibler divergence of the next-token distribution. same_tokens: share of positions with the same most
    likely token.
    """

    perplexity: float
    change: float
    divergence_nats: float
    same_tokens: float


@dataclass(frozen=True)
class Questions:
    """The model's answers. compared_right: number of correct answers of the other model; None without another model."""

    answers: tuple[Answer, ...]
    compared_right: int | None = None

    @property
    def right(self) -> int:
        """Number of correct answers."""
        return sum(answer.is_right for answer in self.answers)

    def to_json(self) -> dict[str, object]:
        """Return JSON data."""
        data: dict[str, object] = {"right": self.right, "of": len(self.answers)}
        data["answers"] = [asdict(answer) for answer in self.answers]
        return data if self.compared_right is None else {**data, "compared_right": self.compared_right}


@dataclass(frozen=True)
class Compared:
    """The bundle to compare with.

    engine_bytes: size of its engine. own_engine_bytes: size of the evaluated bundle's engine.
    """

    bundle: str
    engine_bytes: int
    own_engine_bytes: int


@dataclass(frozen=True)
class Evaluation:
    """The results; None for whatever was not requested. runtime: what ran the model.

    neurons: counts of the neuron blocks that were skipped, for a model that reads only active ones.
    """

    text: str | None
    runtime: str
    perplexity: Perplexity | None = None
    distance: Distance | None = None
    questions: Questions | None = None
    compared: Compared | None = None
    neurons: Neurons | None = None

    def to_json(self) -> dict[str, object]:
        """Return JSON data, as `trtkit eval --json` prints it."""
        data: dict[str, object] = {"text": self.text, "runtime": self.runtime}
        data |= {} if self.perplexity is None else asdict(self.perplexity)
        data |= {} if self.distance is None else {"compared": asdict(self.distance)}
        data |= {} if self.questions is None else {"questions": self.questions.to_json()}
        data |= {} if self.neurons is None else {"neurons": asdict(self.neurons)}
        if self.compared is not None:
            data["compared"] = {**({} if self.distance is None else asdict(self.distance)), **asdict(self.compared)}
        return data

    def __str__(self) -> str:
        """Return the figures, one per line."""
        lines = [f"runtime: {self.runtime}"]
        if self.perplexity is not None:
            lines.append(
                f"perplexity: {self.perplexity.perplexity:.4f} on {self.perplexity.tokens} tokens of {self.text}"
            )
        if self.distance is not None:
            lines.append(f"change: {self.distance.change:+.2%}, {self.distance.divergence_nats:.4f} nats per token")
        if self.questions is not None:
            lines.append(f"answers: {self.questions.right} of {len(self.questions.answers)} right")
        if self.neurons is not None:
            lines.append(f"neurons: {self.neurons}")
        return "\n".join(lines)


def evaluate_bundle(
    bundle: Bundle | Path | str, request: EvaluationRequest, runner: Runner, base: Bundle | Path | str | None = None
) -> Evaluation:
    """Evaluate a language model's bundle.

    base: a bundle to compare it with, such as the one that it was quantized from. A bundle whose engine returns only
    the last token's logits (`llm.logits: last`) is run by the reference executor on the same network. Raises
    GenerationError for a text, bundle or runtime that cannot be used, RequestError for an empty request or for two
    different tokenizers.
    """
    if request.text is None and not request.questions:
        raise RequestError("nothing to evaluate", "", "give a text for perplexity, or ask the questions")
    models = [read_text_bundle(source) for source in (bundle, base) if source is not None]
    for model in models:
        if (encoder := model.bundle.manifest.encoder) is not None:
            what = f"{encoder.kind} cannot be evaluated on text or questions"
            fix = "use `trtkit generate`, or verify it: `trtkit verify BUNDLE --inputs FILE`"
            raise RequestError(what, str(model.path), fix)
    pieces = [] if request.text is None else _same_windows(request.text, models, request)
    runner.report(Phase("open"))
    how = ExecutionOptions(needs_all_logits=True)
    executions = [open_execution(model.bundle, request.runtime, 1, how) for model in models]
    perplexity, distance = _measure(executions, pieces, runner) if pieces else (None, None)
    questions = _ask(executions, models, runner) if request.questions else None
    compared = None if base is None else _compared(base, models)
    counts = executions[0].calls.neurons
    neurons = None if counts is None else Neurons(*counts.values())
    return Evaluation(request.text, executions[0].description, perplexity, distance, questions, compared, neurons)


def _compared(base: Bundle | Path | str, models: Sequence[TextBundle]) -> Compared:
    own_bytes, other = (model.bundle.engine_path().stat().st_size for model in models)
    return Compared(str(base if isinstance(base, (str, Path)) else base.path), other, own_bytes)


def _same_windows(text: str, models: Sequence[TextBundle], request: EvaluationRequest) -> list[list[int]]:
    """Return the text's windows; all models must tokenize them alike."""
    if request.window_tokens < 2 or request.windows < 0:
        what = f"{request.windows} windows of {request.window_tokens} tokens"
        raise RequestError(what, "windows", "give 0 or more windows of at least 2 tokens")
    size = min(request.window_tokens, *(model.max_length for model in models))
    pieces, *others = [_windows(Path(text), model, size) for model in models]
    if any(other != pieces for other in others):
        raise RequestError("the bundles' tokenizers differ, so perplexities per token cannot be compared", "--compare")
    return pieces[: request.windows or len(pieces)]


def _windows(path: Path, model: TextBundle, size: int) -> list[list[int]]:
    """Return the text's tokens in windows of `size`, dropping a shorter remainder. Raises GenerationError."""
    tokenizer = _tokenizer(model)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise GenerationError(f"the text cannot be read: {reason}", str(path), "give a UTF-8 text file") from None
    ids = tokenizer.encode(text)
    if len(ids) < 2:
        raise GenerationError(
            f"the text has {len(ids)} tokens; at least two are needed", str(path), "give a longer text"
        )
    size = min(size, len(ids))
    return [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]


def _tokenizer(model: TextBundle) -> Tokenizer:
    """Return a bundle's tokenizer. Raises GenerationError if it has none."""
    if model.tokenizer is None:
        what, fix = "the bundle has no tokenizer", "build it from a source that has one"
        raise GenerationError(what, str(model.path), fix)
    return model.tokenizer


def _ask(executions: Sequence[DecoderExecution], models: Sequence[TextBundle], runner: Runner) -> Questions:
    """Return the first model's answers, and the number of the second's that are right."""
    runner.report(Phase("questions"))
    pairs = zip(executions, models, strict=True)
    answers, *others = [ask(execution, _tokenizer(model)) for execution, model in pairs]
    return Questions(tuple(answers), sum(answer.is_right for answer in others[0]) if others else None)


def _measure(
    executions: Sequence[DecoderExecution], pieces: Sequence[list[int]], runner: Runner
) -> tuple[Perplexity, Distance | None]:
    """Return the first model's perplexity over windows of one length, and its distance from the second's."""
    started, reads = time.monotonic(), []
    for index, ids in enumerate(pieces):
        runner.report(Progress("perplexity", index, len(pieces)))
        reads.append(read_window(executions, ids))
    seconds, tokens = time.monotonic() - started, sum(map(len, pieces))
    losses = zip(*(read.losses for read in reads), strict=True)
    ours, *others = [math.exp(sum(column) / len(pieces)) for column in losses]
    rate = len(executions) * tokens / seconds
    perplexity = Perplexity(ours, len(pieces), len(pieces[0]), tokens, seconds, rate)
    if not others:
        return perplexity, None
    divergence = sum(read.divergence for read in reads) / len(reads)
    same = sum(read.same for read in reads) / len(reads)
    return perplexity, Distance(others[0], ours / others[0] - 1, divergence, same)


_NEW_TOKENS = 24

# Facts that small models know; an answer is right if it contains one of the words.
QUESTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("What is the capital of France?", ("Paris",)),
    ("What is the capital of Italy?", ("Rome",)),
    ("What is the capital of Japan?", ("Tokyo",)),
    ("What is the capital of Germany?", ("Berlin",)),
    ("What is the largest planet in our solar system?", ("Jupiter",)),
    ("Who wrote Romeo and Juliet?", ("Shakespeare",)),
    ("What is the chemical symbol of gold?", ("Au",)),
    ("What gas do plants take in for photosynthesis?", ("carbon dioxide", "CO2")),
    ("How many days are in a week?", ("seven", "7")),
    ("How many continents are there?", ("seven", "7")),
    ("What is 2 + 2?", ("four", "4")),
    ("What color is the sky on a clear day?", ("blue",)),
    ("At what temperature in degrees Celsius does water freeze?", ("zero", "0")),
    ("Which ocean is the largest?", ("Pacific",)),
    ("Which planet is closest to the Sun?", ("Mercury",)),
    ("What is the opposite of hot?", ("cold", "cool")),
)


@dataclass(frozen=True)
class Answer:
    """A model's answer to one question."""

    question: str
    text: str
    is_right: bool


def ask(execution: DecoderExecution, tokenizer: Tokenizer) -> list[Answer]:
    """Return greedy answers to all questions, using the tokenizer's chat template if it has one.

    A model may read a text nearly as well as before and yet fail to answer: SmolLM2 with an int8 KV cache does.
    """
    texts = [_greedy(execution, tokenizer, _prompt(tokenizer, question)) for question, _ in QUESTIONS]
    pairs = zip(QUESTIONS, texts, strict=True)
    return [Answer(question, text, holds_one_of(text, words)) for (question, words), text in pairs]


def holds_one_of(text: str, words: Sequence[str]) -> bool:
    """Whether a text contains one of the words, as a whole word, ignoring case."""
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in words)


def _prompt(tokenizer: Tokenizer, question: str) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.chat([{"role": "user", "content": question}])
    return tokenizer.encode(f"Question: {question}\nAnswer:")


def _greedy(execution: DecoderExecution, tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
    """Return the greedy continuation from an empty slot, with the prompt in chunks that the network accepts."""
    size, cached, token, answer = execution.max_prefill_length, 0, 0, list[int]()
    chunks = [list(prompt[start : start + size]) for start in range(0, len(prompt), size)]
    while chunks:
        chunk = chunks.pop(0)
        call = Call(0, np.array([chunk], np.int64), np.array([cached], np.int64), np.array([len(chunk)], np.int64))
        logits = execution.forward(call)
        cached += len(chunk)
        if not chunks:
            token = int(logits.reshape(-1, logits.shape[-1])[-1].argmax())
            if token in tokenizer.eos_token_ids or len(answer) == _NEW_TOKENS:
                break
            answer.append(token)
            chunks = [[token]]
    return tokenizer.decode(answer).strip()
