"""Quantization of a model: how, of which layers, and on which data its scales are measured."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, model_validator

from trtkit.config.strict import StrictModel

# Names of ModelOpt and TensorRT-LLM (`--qformat`), where they have one.
LLM_METHODS = ("int8_wo", "int8_sq", "int4_wo", "int4_awq", "int4_gptq", "fp8", "fp8_pc", "nvfp4", "mxfp8")
VISION_METHODS = ("int8", "fp8", "int8_wo", "int4_wo")
# Of a hybrid's parts that the network API writes.
WRITTEN_METHODS = ("int8", "fp8", "int8_wo", "int4_wo", "mxfp8")
Method = Literal[
    "int8", "int8_wo", "int8_sq", "int4_wo", "int4_awq", "int4_gptq", "fp8", "fp8_pc", "nvfp4", "mxfp8",
    "as_stored", "none",
]  # fmt: skip


class Calibration(StrictModel):
    """What runs through the model to measure the ranges of its activations."""

    data: str | None = Field(
        None,
        description="A text file for LLMs; a folder of images, an image or an .npz file for vision; "
        "a path or `package://module/file`.",
    )
    samples: StrictInt = Field(32, ge=1, description="Windows of text, or images, at most.")
    length: StrictInt = Field(512, ge=2, description="Tokens in a window of text.")


# What asks for other layers or caches than a file holds.
_CHANGES = ("layers", "exclude", "kv_cache", "head", "block", "zero_points", "smoothing")


class PartOptions(StrictModel):
    """How one part of a model is quantized; its method alone is a short form."""

    method: Method = Field("none", description="How layers are quantized; `none`: those of `layers` only.")
    kv_cache: Literal["int8", "fp8"] | None = Field(
        None, description="Type of an LLM's caches; the model's when unset."
    )
    block: Literal[32, 64, 128] | None = Field(
        None, description="Columns that share a scale, of the int4 methods; the largest that divides when unset."
    )
    zero_points: StrictBool = Field(
        False, description="Let each int4 block have an offset: nearer to its weights, for one more small product."
    )
    layers: dict[str, Method] = Field(
        default_factory=dict,
        description="Methods of layers by glob, such as `*.mlp.down: fp8`; the last that fits holds.",
    )
    exclude: tuple[str, ...] = Field((), description="Globs of layers, or of ONNX nodes, that stay as they are.")
    head: StrictBool = Field(False, description="Quantize an LLM's untied output projection too.")
    algorithm: Literal["mse", "max", "entropy", "percentile"] = Field(
        "mse", description="How a vision model's ranges follow from what was measured (INT8 and FP8)."
    )
    keep: float = Field(
        0.2, ge=0, lt=1, description="Share of a vision model's products that may stay: those that lose most."
    )
    smoothing: float | None = Field(
        None, ge=0, le=1, description="SmoothQuant's alpha; 0.7, where a model's own is not known."
    )
    calibration: Calibration = Field(Calibration(), description="Data that ranges are measured on.")

    @model_validator(mode="after")
    def _stays_as_stored(self) -> Self:
        given = [key for key in _CHANGES if getattr(self, key)] if self.method == "as_stored" else []
        if given:
            keys = " and ".join(f"`{key}`" for key in given)
            raise ValueError(f"`as_stored` keeps layers as the file holds them: remove {keys}, or use another method")
        return self

    @property
    def is_idle(self) -> bool:
        """Whether nothing is quantized."""
        return self.method == "none" and not self.layers and self.kv_cache is None


def _read_part(value: Any) -> Any:
    """Turn the short form into the mapping."""
    return {"method": value} if isinstance(value, str) else value


Part = Annotated[PartOptions, BeforeValidator(_read_part)]


class QuantizeOptions(PartOptions):
    """How a model is quantized; `trtkit quantize` and `trtkit build` do it.

    int8_wo, int4_wo: weights only, rounded to nearest. int8: weights by channel, activations by one scale. int8_sq:
    the same by SmoothQuant. int4_awq, int4_gptq: weights in blocks, by AWQ or GPTQ. fp8: weights and activations by
    one scale each; fp8_pc: weights by channel. nvfp4, mxfp8: both by blocks. as_stored: keep what a GGUF file holds.
    """

    parts: dict[str, Part] = Field(
        default_factory=dict,
        description="The same keys, or a method alone, for a hybrid's parts by name, or for a language model's "
        "`vision` tower; see Quantization.",
    )

    @model_validator(mode="after")
    def _has_work(self) -> Self:
        if self.is_idle and all(part.is_idle for part in self.parts.values()):
            raise ValueError("nothing would be quantized: name a `method`, or give `layers`, `kv_cache` or `parts`")
        return self

    def of(self, part: str) -> PartOptions:
        """Return the options of a hybrid's part; data that it does not name itself is the section's."""
        own = self.parts.get(part, self)
        if own.calibration.data is not None:
            return own
        return own.model_copy(update={"calibration": self.calibration})


def whole(options: PartOptions) -> QuantizeOptions:
    """Return a part's options as those of a model of its own. Raises ValueError where nothing is to be quantized."""
    return QuantizeOptions(**{name: getattr(options, name) for name in PartOptions.model_fields})
