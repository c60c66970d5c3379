"""Options of language models: sizes and caches of their engines, adapters, ranks, and the towers of images."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, model_validator

from trtkit.config.quantize import Calibration
from trtkit.config.strict import StrictModel
from trtkit.dtypes import Precision

_PAGE_TOKENS = 16
_PREFILL_LENGTH = 512
BUILT_IN = "built-in"
"""Value of `llm.speculator` for a draft head in the model's own checkpoint, instead of a folder."""


class LoraOptions(StrictModel):
    """LoRA adapters that requests choose from while an engine runs."""

    max_rank_sum: StrictInt = Field(
        ge=1, le=65536, description="Maximum sum of the ranks of all adapters that are resident at once."
    )
    targets: tuple[str, ...] = Field(
        (),
        description="Modules that adapters may change, by the ends of their names, such as `q_proj`; all linear layers "
        "of attention and feed-forward parts if unset.",
    )


class SparseFfnOptions(StrictModel):
    """Feed-forward parts that read the rows of active neurons only, for ReLU and squared ReLU."""

    keep: Annotated[StrictInt, Field(ge=1)] | tuple[Annotated[StrictInt, Field(ge=1)], ...] | None = Field(
        None,
        description="Blocks of neurons that each new token reads, one number or one for each layer; if unset, the "
        "most that a token of `calibration.data` activates in the layer, which `trtkit build` measures.",
    )
    block: StrictInt = Field(1, ge=1, le=1024, description="Neighboring neurons that are read together.")
    calibration: Calibration = Field(Calibration(), description="Text to choose `keep` by.")

    @model_validator(mode="after")
    def _has_one_choice(self) -> Self:
        if (self.keep is None) == (self.calibration.data is None):
            both = "got both" if self.keep is not None else "got neither"
            raise ValueError(f"`sparse_ffn` needs either `keep` or `calibration.data`; {both}")
        return self


class LlmOptions(StrictModel):
    """The size of a decoder-only LLM's engine."""

    max_batch_size: StrictInt = Field(8, ge=1, description="Slots: number of concurrent sequences.")
    max_sequence_length: StrictInt = Field(2048, ge=1, description="Tokens per slot, prompt and answer together.")
    max_prefill_length: StrictInt = Field(
        default_factory=lambda sizes: min(_PREFILL_LENGTH, sizes.get("max_sequence_length", _PREFILL_LENGTH)),
        ge=1,
        description="Maximum new tokens per slot and step; by default at most `max_sequence_length`.",
        json_schema_extra={"default": _PREFILL_LENGTH},
    )
    max_source_length: StrictInt | None = Field(
        None, ge=1, description="Tokens of a text that the encoder of an encoder-decoder model takes; 512 if unset."
    )
    logits: Literal["last", "all"] = Field("last", description="Logits of the last token or of all tokens.")
    inputs: Literal["ids", "embeds"] = Field("ids", description="`input_ids`, or `inputs_embeds` for hybrids.")
    hidden_states: StrictBool = Field(False, description="Also return the final hidden states.")
    kv_window: Literal["full", "used"] | None = Field(
        None,
        description="Tokens of linear caches that attention reads: a slot's full length (the default), or those in "
        "use, rounded up to a power of two.",
    )
    kv: Literal["linear", "paged"] = Field(
        "linear", description="KV caches: a slot of full length for each sequence, or pages that are taken when needed."
    )
    page_tokens: Literal[16, 32, 64, 128] | None = Field(
        None, description="Tokens per page with `kv: paged`; 16 if unset."
    )
    batching: Literal["packed", "separate"] | None = Field(
        None,
        description="Calls of a step in which some sequences decode and others read prompts: one, in which only "
        "attention sees padding (the default), or one of each kind.",
    )
    lora: LoraOptions | None = Field(None, description="LoRA adapters as inputs of the engine; none if unset.")
    latent_attention: Literal["absorbed", "expanded"] = Field(
        "absorbed",
        description="Latent attention in the space of the cached vectors, which is fast for generating, or on keys and "
        "values of all heads, expanded in each call, which is fast for prompts.",
    )
    speculator: str | None = Field(
        None,
        description="Folder of a head that guesses tokens: EAGLE-3, Medusa, Gemma 4's assistant or MTP modules; "
        "`built-in` for one in the model's own weights. `logits` is `all` then.",
    )
    tree_tokens: StrictInt | None = Field(
        None,
        ge=2,
        le=64,
        description="Guesses of the `speculator` per slot and step, alternatives included, which form a tree; a chain "
        "without alternatives if unset.",
    )
    experts: Literal["auto", "chosen", "all"] = Field(
        "auto",
        description="Experts of a mixture that a step reads: those chosen if they are fewer (with `auto`, all if "
        "TensorRT multiplies their format as it is), or always all.",
    )
    sparse_ffn: SparseFfnOptions | None = Field(
        None, description="Let steps of few tokens read the active neurons of ReLU models only; all if unset."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_logits_to_check(cls, fields: object) -> object:
        """Set `logits: all` with a speculator: guesses are checked with the logits of all tokens."""
        if not isinstance(fields, dict) or fields.get("speculator") is None:
            return fields
        if fields.get("logits", "all") != "all":
            raise ValueError("`speculator` needs `logits: all`: set it, or leave `logits` out")
        return {**fields, "logits": "all"}

    @model_validator(mode="after")
    def _prefill_fits(self) -> Self:
        if self.max_prefill_length > self.max_sequence_length:
            sizes = f"max_prefill_length {self.max_prefill_length} exceeds max_sequence_length"
            raise ValueError(f"{sizes} {self.max_sequence_length}")
        return self

    @model_validator(mode="after")
    def _tree_fits(self) -> Self:
        if self.tree_tokens is None:
            return self
        if self.speculator is None:
            raise ValueError("`tree_tokens` needs a head that guesses: set `speculator`, or leave `tree_tokens` out")
        if self.tree_tokens >= self.max_prefill_length:
            sizes = f"tree_tokens {self.tree_tokens} and the last token exceed max_prefill_length"
            raise ValueError(f"{sizes} {self.max_prefill_length}")
        return self

    @model_validator(mode="after")
    def _pages_fit(self) -> Self:
        if self.kv == "linear":
            if self.page_tokens is not None:
                raise ValueError("`page_tokens` does not apply to `kv: linear`: set `kv: paged`, or leave it out")
        elif self.kv_window is not None:
            raise ValueError("`kv_window` does not apply to `kv: paged`, which reads pages in use: leave it out")
        elif self.max_sequence_length % (self.page_size or 1):
            sizes = f"{self.max_sequence_length} is not a multiple of a page's tokens, {self.page_size}"
            raise ValueError(f"max_sequence_length {sizes}")
        return self

    @property
    def page_size(self) -> int | None:
        """Tokens per page; None if caches are linear."""
        return None if self.kv == "linear" else self.page_tokens or _PAGE_TOKENS


class ParallelOptions(StrictModel):
    """How many GPUs (ranks) share a decoder-only LLM: max(tensor, expert) * pipeline of them."""

    tensor: StrictInt = Field(1, ge=1, le=1024, description="Ranks that share each layer's heads and columns.")
    expert: StrictInt = Field(
        1, ge=1, le=1024, description="Groups of ranks that share a mixture's experts; divides `tensor` if that is set."
    )
    pipeline: StrictInt = Field(1, ge=1, le=1024, description="Stages that share the layers.")
    sequence: StrictBool = Field(
        False, description="Let ranks of `tensor` share the tokens of norms and residual sums (sequence parallelism)."
    )

    context: StrictInt = Field(
        1,
        ge=1,
        le=1024,
        description="Ranks that share the positions of KV caches (context parallelism): all those of `tensor`.",
    )

    @model_validator(mode="after")
    def _experts_fit(self) -> Self:
        if self.tensor > 1 and self.tensor % self.expert:
            raise ValueError(f"`expert`, {self.expert}, does not divide `tensor`, {self.tensor}")
        return self

    @model_validator(mode="after")
    def _context_fits(self) -> Self:
        if self.context not in (1, self.tensor):
            what = (
                f"`context`, {self.context}, is not `tensor`, {self.tensor}: all ranks of a layer share its positions"
            )
            raise ValueError(f"{what}; use {self.tensor}, or remove `context`")
        return self

    @model_validator(mode="after")
    def _tokens_can_be_shared(self) -> Self:
        if self.sequence and self.tensor < 2:
            raise ValueError(
                f"`sequence` needs `tensor` of at least 2, got {self.tensor}; raise it, or remove `sequence`"
            )
        if self.sequence and self.pipeline > 1:
            stages = f"`sequence` does not work with pipeline stages, got {self.pipeline}"
            raise ValueError(f"{stages}; set `pipeline: 1`, or remove `sequence`")
        return self


class VisionOptions(StrictModel):
    """The vision tower of a vision-language model."""

    enabled: StrictBool = Field(True, description="Build the tower; without it, the model takes text only.")
    max_images: StrictInt = Field(4, ge=1, description="Maximum images, or tiles of one image, per call.")
    max_tokens: StrictInt | None = Field(
        None,
        ge=1,
        description="Tokens of the largest image, if they depend on its size; the processor's limit if unset.",
    )
    precision: Precision | None = Field(None, description="Precision of the tower; the model's if unset.")
    keep_fp32: tuple[str, ...] = Field((), description="Globs of the tower's node names, or `op:Type`, kept in fp32.")
