"""Quantization options: the method, the layers and the calibration data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, model_validator

from trtkit.config.strict import StrictModel
from trtkit.quantization_methods import AS_STORED, METHODS, NONE, Block, CacheFormat

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[(*METHODS, AS_STORED, NONE)]


class Calibration(StrictModel):
    """Data that the model runs on to measure its activations."""

    data: str | None = Field(
        None,
        description="A text file for LLMs; a folder of images, an image or an .npz file for vision; "
        "a path or `package://module/file`.",
    )
    samples: StrictInt = Field(32, ge=1, description="Maximum number of text windows or images.")
    length: StrictInt = Field(512, ge=2, description="Tokens per text window.")


# Options that change the layers or caches stored in a file.
_CHANGES = ("layers", "exclude", "kv_cache", "head", "block", "zero_points", "smoothing")


class PartOptions(StrictModel):
    """How one part of a model is quantized; its method alone is a short form."""

    method: MethodName = Field(NONE, description="Quantization method; `none` quantizes only the layers in `layers`.")
    kv_cache: CacheFormat | None = Field(None, description="KV cache type of an LLM; the model's if unset.")
    block: Block | None = Field(
        None, description="Block size of int4 methods; the largest that divides the columns if unset."
    )
    zero_points: StrictBool = Field(
        False, description="Give each int4 block a zero point: more accurate, at the cost of one more small product."
    )
    layers: dict[str, MethodName] = Field(
        default_factory=dict,
        description="Methods for layers by glob, such as `*.mlp.down: fp8`; the last match wins.",
    )
    exclude: tuple[str, ...] = Field((), description="Globs of layers or ONNX nodes not to quantize.")
    head: StrictBool = Field(False, description="Also quantize an LLM's untied output projection.")
    algorithm: Literal["mse", "max", "entropy", "percentile"] = Field(
        "mse", description="Calibration algorithm for vision models (INT8 and FP8)."
    )
    keep: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="Share of a vision model's products that may stay unquantized: those that lose most.",
    )
    smoothing: float | None = Field(
        None, ge=0, le=1, description="SmoothQuant's alpha; 0.7 if unset and no better value is known for the model."
    )
    calibration: Calibration = Field(Calibration(), description="Calibration data.")

    @model_validator(mode="after")
    def _stays_as_stored(self) -> Self:
        changed = [key for key in _CHANGES if getattr(self, key)] if self.keeps_stored else []
        if changed:
            keys = " and ".join(f"`{key}`" for key in changed)
            raise ValueError(f"`as_stored` keeps layers as stored in the file: remove {keys}, or use another method")
        return self

    @property
    def is_idle(self) -> bool:
        return self.method == NONE and not self.layers and self.kv_cache is None

    @property
    def keeps_stored(self) -> bool:
        """Whether layers keep the format of a GGUF file."""
        return self.method == AS_STORED

    def types(self, fallback: str | None = None) -> set[str]:
        """Return the types of quantized layers and caches. fallback: the method of layers left by a budget."""
        names = {self.method, *self.layers.values(), fallback}
        caches = {self.kv_cache} if self.kv_cache else set()
        return {METHODS[name].dtype.name for name in names if name in METHODS} | caches


def _read_sparsity(value: object) -> object:
    """Convert 2:4 back from the base-60 number that YAML reads."""
    return "2:4" if value == 2 * 60 + 4 else value


def _read_part(value: Any) -> Any:
    """Convert the short form to a mapping."""
    return {"method": value} if isinstance(value, str) else value


Part = Annotated[PartOptions, BeforeValidator(_read_part, json_schema_input_type=MethodName | PartOptions)]


class QuantizeOptions(PartOptions):
    """How a model is quantized; `trtkit quantize` and `trtkit build` do it.

    `as_stored` keeps what a GGUF file holds; for the other methods see Quantization.
    """

    sparsity: Annotated[Literal["2:4"] | None, BeforeValidator(_read_sparsity)] = Field(
        None,
        description="Prune an LLM's linear layers first: set two of every four adjacent weights in a row to zero, by "
        "ModelOpt's SparseGPT on the calibration data; see also `build.sparse_weights`.",
    )
    parts: dict[str, Part] = Field(
        default_factory=dict,
        description="The same keys, or a method alone, for a hybrid's parts by name, or for a language model's "
        "`vision` tower; see Quantization.",
    )

    @model_validator(mode="after")
    def _stays_sparse(self) -> Self:
        if self.sparsity is None:
            return self
        compensating = "int4_gptq" in (self.method, *self.layers.values())
        if compensating or self.zero_points or self.keeps_stored:
            key = "int4_gptq" if compensating else "zero_points" if self.zero_points else AS_STORED
            raise ValueError(f"`sparsity` cannot be combined with `{key}`, which turns zeros into other numbers")
        return self

    @property
    def is_idle(self) -> bool:
        """Whether nothing is quantized or pruned."""
        return super().is_idle and self.sparsity is None

    @model_validator(mode="after")
    def _has_work(self) -> Self:
        if self.is_idle and all(part.is_idle for part in self.parts.values()):
            raise ValueError("nothing would be quantized: set `method`, `layers`, `kv_cache`, `sparsity` or `parts`")
        return self

    def of(self, part: str) -> PartOptions:
        """Return the options of a hybrid's part; its calibration data defaults to the section's."""
        options = self.parts.get(part, self)
        if options.calibration.data is not None:
            return options
        return options.model_copy(update={"calibration": self.calibration})


def whole(options: PartOptions) -> QuantizeOptions:
    """Return a part's options as those of a whole model. Raises ValueError if nothing would be quantized."""
    return QuantizeOptions(**{name: getattr(options, name) for name in PartOptions.model_fields})
