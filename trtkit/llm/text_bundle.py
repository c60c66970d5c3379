"""A language model's bundle before its network is opened: everything that prompts and settings are checked against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from trtkit.builder.decoders import llm_options
from trtkit.bundle.bundle import Bundle, open_bundle
from trtkit.errors import GenerationError, RequestError
from trtkit.llm.encoded import AudioPrompts, TextPrompts
from trtkit.llm.engine.request import Request, check_request
from trtkit.llm.images import ImagePrompts
from trtkit.llm.prompts import PreparedPrompt, PromptReader
from trtkit.llm.sampling.guides import GuideFactory
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.runtime.text import eos_token_ids, open_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.bundle.records import EncoderRecord
    from trtkit.llm.encoded import EncoderPrompts
    from trtkit.llm.prompts import AnyPrompt
    from trtkit.llm.sampling.params import SamplingParams
    from trtkit.runtime.text import Tokenizer


_NEVER = -1e9
"""Added to the score of a token that must never be chosen."""


@dataclass(frozen=True)
class TextBundle:
    """A language model's bundle. max_length: tokens per slot. vocab_size: of the network's logits.

    tokenizer: None if the bundle has none; prompts are then token ids. slots: concurrent sequences of its engine.
    has_all_logits: whether the engine outputs logits of every token. images: None if it takes none. encoded: None if it
    has no encoder.
    """

    bundle: Bundle
    tokenizer: Tokenizer | None
    vocab_size: int
    max_length: int
    slots: int
    has_all_logits: bool
    images: ImagePrompts | None = None
    encoded: EncoderPrompts | None = None

    @property
    def path(self) -> Path:
        """The bundle's folder."""
        return self.bundle.path

    @cached_property
    def reader(self) -> PromptReader:
        """Turns prompts into tokens."""
        record = self.bundle.manifest.encoder
        length = self.max_length if record is None or record.audio is not None else record.length
        return PromptReader(self.tokenizer, self.images, length, self.encoded)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that settings are resolved against."""
        eos_ids = eos_token_ids(self.path / "model")
        if self.tokenizer is None:
            return Vocabulary(self.vocab_size, eos_ids)
        encode = partial(self.tokenizer.encode, add_special_tokens=False)
        return Vocabulary(self.vocab_size, eos_ids, encode, GuideFactory(self.tokenizer.hf, eos_ids))

    def prepare(self, prompt: AnyPrompt, params: SamplingParams) -> PreparedPrompt:
        """Tokenize a prompt and resolve its settings: the slow part of a large request, without torch.

        Nothing here is changed, so that another thread may do it. Raises RequestError if the prompt cannot be served.
        """
        if isinstance(prompt, PreparedPrompt):
            return prompt
        if params.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer; the bundle has none", "stop", "use `stop_token_ids`")
        read = self.reader.tokens(prompt)
        return PreparedPrompt(read, Settings.resolve(self._spoken(params, read.ids), self.vocabulary))

    def _spoken(self, params: SamplingParams, ids: Sequence[int]) -> SamplingParams:
        """Return settings that also bar what an encoder-decoder model must not generate, or not at the start."""
        if self.encoded is None:
            return params
        barred = dict.fromkeys(self.encoded.suppressed, _NEVER)
        processors = (self.encoded.first_filter(ids),) if self.encoded.suppressed_first else ()
        return replace(
            params,
            logit_bias={**barred, **params.logit_bias},
            logits_processors=(*processors, *params.logits_processors),
        )

    def check(self, prepared: PreparedPrompt) -> PreparedPrompt:
        """Return the prompt with its images inserted. Raises RequestError if it can never be served."""
        if prepared.read.merged is None:
            prepared = replace(prepared, read=self.reader.merge(prepared.read))
        check_request(Request("", prepared.read.ids, prepared.settings), self)
        return prepared


def read_text_bundle(bundle: Bundle | Path | str) -> TextBundle:
    """Read what prompts and settings are checked against. Raises BundleError, GenerationError."""
    opened = open_bundle(bundle)
    manifest, folder = opened.manifest, opened.path / "model"
    if manifest.interface != "tokens":
        fix = "give a language model's bundle; `trtkit run` runs other models"
        raise GenerationError("the bundle does not hold a language model", str(opened.path), fix)
    logits = next(output for output in manifest.outputs if output.name == "logits")
    tokenizer = open_tokenizer(folder)
    options = llm_options(manifest.config)
    images = None if manifest.images is None else ImagePrompts(manifest.images, folder, tokenizer)
    limits = (options.max_sequence_length, options.max_batch_size, options.logits == "all")
    return TextBundle(opened, tokenizer, logits.shape[-1], *limits, images, _encoder_prompts(manifest.encoder, folder))


def _encoder_prompts(record: EncoderRecord | None, folder: Path) -> EncoderPrompts | None:
    """Return what reads the prompts of an encoder-decoder model; None for other models."""
    if record is None:
        return None
    return TextPrompts(record, folder) if record.audio is None else AudioPrompts(record, folder)
